"""How deep values from outside may be nested. Deeper ones cost a stack frame per level wherever they are handled."""

from __future__ import annotations

from typing import Any

NESTING_MAX = 20


def is_too_deep(value: Any, most: int = NESTING_MAX) -> bool:
    """Whether lists and objects stand in each other deeper than `most`; looks no deeper than that."""
    if not isinstance(value, (dict, list)):
        return False
    if most == 0:
        return True
    inner = value.values() if isinstance(value, dict) else value
    return any(is_too_deep(one, most - 1) for one in inner)
