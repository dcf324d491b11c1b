"""Counting: how much has come so far, for people who wait at a terminal."""

from __future__ import annotations

import sys
import time
from typing import Self

PATIENCE_S = 1.0  # nobody needs to be told of what takes less
_CLEAR = "\r\x1b[K"  # the line is written over, and gone at the end


class Counting:
    """Shows nothing if it does not take long, or if stderr is no terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since_s = time.monotonic()
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._shown:
            print(_CLEAR, end="", file=sys.stderr, flush=True)

    def tell(self, count: int) -> None:
        if sys.stderr.isatty() and time.monotonic() - self._since_s > PATIENCE_S:
            self._shown = True
            print(f"{_CLEAR}{count:,} {self._what} ...", end="", file=sys.stderr, flush=True)
