"""Deadlines: callers that wait for an answer, each for so long at most.

Nearly every answer comes in time, and publishers wait in their hundred thousands a second: a timer for each would cost
more than the message. So who begins to wait is put on a list and nothing else; those that have their answer are dropped
when there are many. With every tick of the driver the few that are left get their deadline, which is late by a tick at
most and never early.

The diary of a client: its news, written to the log `nearcast.client` and told to the program.

A cluster in trouble has much to say, the same for thousands of topics. Each kind of note has a pace; how many were left
out is said with the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum

from nearcast.core.client.news import Kind, Note, State, StateChange
from nearcast.core.model.settings import Pace
from nearcast.errors import TimedOut, UsageError

TIMEOUT_S = 30.0  # longer than a broker's death, the forced move of its topics, and a server's restart


class ClientDefault(Enum):
    """For a call that names no limit of its own."""

    CLIENT_DEFAULT = "the limit given to connect()"


CLIENT_DEFAULT = ClientDefault.CLIENT_DEFAULT
Timeout = float | None | ClientDefault  # seconds; None waits without a limit


MANY = 256  # answers are dropped before the garbage collector begins to look at them


class Overdue(Exception):
    """What a future that waited too long is given."""


class _Line:
    """Those with the same limit. Their deadlines are in order by themselves."""

    __slots__ = ("many", "new", "waiting")

    def __init__(self) -> None:
        self.new: list[asyncio.Future[int]] = []  # since the last look
        self.many = MANY
        self.waiting: list[tuple[float, list[asyncio.Future[int]]]] = []  # until when, and who

    def __len__(self) -> int:
        return len(_undone(self.new)) + sum(len(_undone(futures)) for _, futures in self.waiting)

    def drop_answered(self) -> None:
        self.new = _undone(self.new)
        self.many = 2 * len(self.new) + MANY  # so that those who wait long are not looked at for every few

    def look(self, limit_s: float, now_s: float) -> None:
        self.waiting.append((now_s + limit_s, self.new))
        self.new = []
        left = [(until_s, _undone(futures)) for until_s, futures in self.waiting]
        for until_s, futures in left:
            if now_s < until_s:
                break
            for future in futures:
                future.set_exception(Overdue())
        self.waiting = [(until_s, futures) for until_s, futures in left if futures and now_s < until_s]


class Deadlines:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lines: dict[float, _Line] = {}  # by limit

    def __len__(self) -> int:
        """How many wait."""
        return sum(len(line) for line in self._lines.values())

    def begin(self, future: asyncio.Future[int], limit_s: float) -> None:
        """Until it is done, or its time is over: then it gets `Overdue`."""
        line = self._lines.get(limit_s)
        if line is None:
            line = self._lines[checked(limit_s)] = _Line()
        line.new.append(future)
        if len(line.new) > line.many:
            line.drop_answered()

    def look(self) -> None:
        """Tell those whose time has come; forget lines that nobody stands in."""
        if not self._lines:
            return
        now_s = self._now()
        for limit_s, line in list(self._lines.items()):
            line.look(limit_s, now_s)
            if not line.waiting:
                del self._lines[limit_s]


def _undone(futures: list[asyncio.Future[int]]) -> list[asyncio.Future[int]]:
    return [future for future in futures if not future.done()]


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


log = logging.getLogger("nearcast.client")

OnState = Callable[[StateChange], None]

LINES_AT_ONCE = 20
LINES_PER_S = 1.0

_LEVELS = {
    Kind.OPENED: logging.INFO,
    Kind.LOST: logging.INFO,
    Kind.RETRIED: logging.DEBUG,
    Kind.REFUSED: logging.INFO,
    Kind.INTERRUPTED: logging.INFO,
    Kind.MOVED: logging.DEBUG,
}


class Diary:
    def __init__(self, name: str, on_state: OnState | None) -> None:
        self._name = name
        self._on_state = on_state or _nobody
        self._paces = {kind: Pace(LINES_PER_S, LINES_AT_ONCE) for kind in Kind}
        self._omitted = dict.fromkeys(Kind, 0)
        self._changes: list[StateChange] = []

    def tell(self, news: Note | StateChange, now_s: float) -> None:
        """Called in the midst of the machine's work: the program is told after it, by `pass_on`."""
        if isinstance(news, StateChange):
            level = logging.WARNING if news.state is State.DISCONNECTED else logging.INFO
            log.log(level, "%s is %s%s", self._name, news.state, f": {news.reason}" if news.reason else "")
            self._changes.append(news)
            return
        level = _LEVELS[news.kind]
        if not log.isEnabledFor(level):
            return
        pace, kind = self._paces[news.kind], news.kind
        if pace.room(now_s) < 1:
            self._omitted[kind] += 1
            return
        pace.spend(1)
        omitted, self._omitted[kind] = self._omitted[kind], 0
        log.log(level, "%s: %s%s", self._name, news.text, f" (and {omitted} more of this kind)" if omitted else "")

    @property
    def waiting(self) -> bool:
        return bool(self._changes)

    def pass_on(self) -> None:
        """Tell the program what the client has become; what the program does wrong then is its own."""
        changes, self._changes = self._changes, []
        for change in changes:
            try:
                self._on_state(change)
            except Exception:
                log.exception("%s: on_state failed at %s", self._name, change)


def _nobody(change: StateChange) -> None:
    """For a program that does not want to know."""
