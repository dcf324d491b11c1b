"""Pauses between attempts: longer each time, and never the same for two who failed together."""

from __future__ import annotations

import random

FIRST_S = 0.1
LONGEST_S = 3.0


class Pauses:
    """`next_s()` after a failure, `reset()` after a success."""

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0

    def next_s(self) -> float:
        limit_s = min(self._longest_s, self._first_s * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        return random.uniform(limit_s / 2, limit_s)

    def reset(self) -> None:
        self._failures = 0
