"""Rates as people write them: `125MB`, `1Gbit`, `80MiB/s`, `1.5e8`."""

from __future__ import annotations

import re

from nearcast.errors import UsageError

_RATE = re.compile(r"(?P<number>\d+(?:\.\d*)?(?:e\+?\d+)?)\s*(?P<unit>[a-z]*)(?:/s|ps)?", re.IGNORECASE)
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
_SIZES = {"": 1.0, "b": 1.0, "byte": 1.0, "bytes": 1.0, "bit": 1 / 8, "bits": 1 / 8}
_FACTORS = {prefix + size: factor * of for prefix, factor in _PREFIXES.items() for size, of in _SIZES.items()}

BYTES_PER_S_MAX = 1e12  # 8 Tbit/s: more is a slip of the pen


def bytes_per_s(text: str) -> float:
    """The rate in bytes per second, or UsageError saying how to write one."""
    hint = "write a number of bytes per second, or one with a unit: 125MB, 80MiB, 1Gbit"
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"bad rate {text!r}: {hint}")
    unit = found["unit"].lower().removesuffix("ps")
    if unit not in _FACTORS:
        raise UsageError(f"bad rate {text!r}: unknown unit {found['unit']!r}; {hint}")
    rate = float(found["number"]) * _FACTORS[unit]
    if not 1 <= rate <= BYTES_PER_S_MAX:
        raise UsageError(f"bad rate {text!r}: {rate:g} bytes per second is out of range; {hint}")
    return rate


def megabytes_per_s(rate: float) -> str:
    """For tables, without a unit."""
    return f"{rate / 1e6:,.1f}"
