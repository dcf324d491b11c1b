"""Troubles: errors that nobody thought of, in parts of a process that must go on. They are logged and shown.

What a part expects to go wrong it handles itself. Anything else is a mistake of ours or of somebody's plug-in; the part
goes on, and the operator is told: in the log, and for a while in the process's `problem` or `/health`. A mistake that
shows ten times a second must not fill the disk. So the first of each kind is logged with its traceback, and after that
once a minute how often it came again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

SHOWN_S = 60.0  # how long after the last time it is shown as a problem, and between two lines of the log
KINDS_MAX = 100  # of errors that are told apart

_Kind = tuple[str, type[BaseException], int]  # what failed, how, and in which line
_OTHERS: _Kind = ("", BaseException, 0)


class Troubles:
    """Used by tasks and threads of one process."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: Counter[str] = Counter()
        self._last: dict[str, str] = {}
        self._shown: tuple[float, str] = (-1e9, "")
        self._logged_s: dict[_Kind, float] = {}
        self._unlogged: Counter[_Kind] = Counter()

    def note(self, part: str, error: BaseException) -> None:
        """`part` failed unexpectedly and goes on."""
        text = repr(error)[:200]
        now_s = time.monotonic()
        self._counts[part] += 1
        self._last[part] = text
        self._shown = (now_s, f"{part} failed: {text}")
        self._write(part, error, text, now_s)

    @property
    def problem(self) -> str:
        """What failed last, in words; empty if that is a while ago."""
        at_s, text = self._shown
        return text if time.monotonic() - at_s < SHOWN_S else ""

    def of(self, part: str) -> str:
        """What failed last of one part, and how often; empty if nothing did."""
        count = self._counts[part]
        return f"failed {count} times, last: {self._last[part]}" if count else ""

    def _write(self, part: str, error: BaseException, text: str, now_s: float) -> None:
        kind: _Kind = (part, type(error), _line_of(error))
        if kind not in self._logged_s and len(self._logged_s) >= KINDS_MAX:
            kind = _OTHERS
        if kind not in self._logged_s:
            self._logged_s[kind] = now_s
            self._log.error("%s failed and goes on", part, exc_info=error)
        elif now_s - self._logged_s[kind] >= SHOWN_S:
            self._logged_s[kind] = now_s
            self._log.error("%s failed %d times more: %s", part, self._unlogged.pop(kind, 0) + 1, text)
        else:
            self._unlogged[kind] += 1


def _line_of(error: BaseException) -> int:
    """Where it was raised."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        line, trace = trace.tb_lineno, trace.tb_next
    return line
