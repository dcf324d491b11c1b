"""Deadlines: callers that wait for an answer, each for so long at most.

Nearly every answer comes in time, and publishers wait in their hundred thousands a second: a timer for each would cost
more than the message. So those with the same limit stand in one line, which is in order of their deadlines by itself,
and the driver looks at the heads of the lines with every tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum

from nearcast.errors import TimedOut, UsageError

TIMEOUT_S = 30.0  # longer than a broker's death, the forced move of its topics, and a server's restart


class ClientDefault(Enum):
    """For a call that names no limit of its own."""

    CLIENT_DEFAULT = "the limit given to connect()"


CLIENT_DEFAULT = ClientDefault.CLIENT_DEFAULT
Timeout = float | None | ClientDefault  # seconds; None waits without a limit


class Overdue(Exception):
    """What a future that waited too long is given."""


class Deadlines:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lines: dict[float, dict[asyncio.Future[int], float]] = {}  # by limit: who waits, and until when

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def begin(self, future: asyncio.Future[int], limit_s: float) -> None:
        line = self._lines.get(limit_s)
        if line is None:
            line = self._lines[checked(limit_s)] = {}
        line[future] = self._now() + limit_s

    def end(self, future: asyncio.Future[int], limit_s: float) -> None:
        line = self._lines.get(limit_s)
        if line is not None:
            line.pop(future, None)

    def look(self) -> None:
        """Tell those whose time has come; forget lines that nobody stands in."""
        if not self._lines:
            return
        now_s = self._now()
        for limit_s, line in list(self._lines.items()):
            if not line:
                del self._lines[limit_s]
            for future, until_s in line.items():
                if now_s < until_s:
                    break
                if not future.done():
                    future.set_exception(Overdue())


def checked(limit_s: float) -> float:
    if not limit_s > 0:
        raise UsageError(f"timeout_s={limit_s}: use seconds greater than 0, or None to wait without a limit")
    return limit_s


@asynccontextmanager
async def within(limit_s: float | None, what: str, why: Callable[[], str]) -> AsyncIterator[None]:
    """Do it in this time, or raise TimedOut, which says what was waited for."""
    try:
        async with asyncio.timeout(None if limit_s is None else checked(limit_s)):
            yield
    except TimeoutError as error:
        if isinstance(error, TimedOut):
            raise
        raise timed_out(what, limit_s, why()) from None


def timed_out(what: str, limit_s: float | None, why: str) -> TimedOut:
    return TimedOut(f"{what} within {limit_s:g} s: {why}")
