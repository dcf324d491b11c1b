"""What a client needs around its calls: deadlines for callers that wait, and a diary of its news.

`Deadlines` watches the callers, `Diary` reports the news.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum

from nearcast.core.client.news import Kind, Note, State, StateChange
from nearcast.core.model.settings import RateLimit
from nearcast.errors import TimedOut, UsageError

# --- deadlines


TIMEOUT_S = 30.0  # longer than a broker's death, the forced move of its topics, and a server's restart


class ClientDefault(Enum):
    """Stands for the client's own limit, in a call that names none."""

    CLIENT_DEFAULT = "the limit given to connect()"


CLIENT_DEFAULT = ClientDefault.CLIENT_DEFAULT
Timeout = float | None | ClientDefault  # seconds; None waits without a limit


MANY = 256  # answers are dropped before the garbage collector begins to look at them


class Overdue(Exception):
    """Set as the exception of a future that waited too long."""


class _Line:
    """Waiters with the same limit, so their deadlines are in order by themselves."""

    __slots__ = ("many", "new", "waiting")

    def __init__(self) -> None:
        self.new: list[asyncio.Future[int]] = []  # since the last look
        self.many = MANY
        self.waiting: list[tuple[float, list[asyncio.Future[int]]]] = []  # until when, and who

    def __len__(self) -> int:
        return len(_undone(self.new)) + sum(len(_undone(futures)) for _, futures in self.waiting)

    def drop_answered(self) -> None:
        self.new = _undone(self.new)
        self.many = 2 * len(self.new) + MANY  # so that long waiters are not checked too often

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
    """Fails callers that have waited too long.

    Nearly every answer comes in time, and hundreds of thousands of publishers start waiting every second: a timer for
    each would cost more than the message. So a new waiter is only put on a list, and answered ones are dropped when the
    list gets long. On each tick of the driver the few that are left get their deadline, which is late by at most one
    tick and never early.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lines: dict[float, _Line] = {}  # by limit

    def __len__(self) -> int:
        """How many callers wait."""
        return sum(len(line) for line in self._lines.values())

    def begin(self, future: asyncio.Future[int], limit_s: float) -> None:
        """Watch the future until it is done or its time is up; then it gets `Overdue`."""
        line = self._lines.get(limit_s)
        if line is None:
            line = self._lines[checked(limit_s)] = _Line()
        line.new.append(future)
        if len(line.new) > line.many:
            line.drop_answered()

    def look(self) -> None:
        """Fail the futures whose time is up, and forget empty lines."""
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
    """Run the body within this time, or raise TimedOut saying what it was waiting for."""
    try:
        async with asyncio.timeout(None if limit_s is None else checked(limit_s)):
            yield
    except TimeoutError as error:
        if isinstance(error, TimedOut):
            raise
        raise timed_out(what, limit_s, why()) from None


def timed_out(what: str, limit_s: float | None, why: str) -> TimedOut:
    return TimedOut(f"{what} within {limit_s:g} s: {why}")


# --- the diary


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
    """Writes a client's news to the log `nearcast.client`, and passes state changes on to the program.

    A cluster in trouble produces much news, and the same for thousands of topics. So each kind of note is rate limited,
    and the next one says how many were left out.
    """

    def __init__(self, name: str, on_state: OnState | None) -> None:
        self._name = name
        self._on_state = on_state or _nobody
        self._limits = {kind: RateLimit(LINES_PER_S, LINES_AT_ONCE) for kind in Kind}
        self._omitted = dict.fromkeys(Kind, 0)
        self._changes: list[StateChange] = []

    def tell(self, news: Note | StateChange, now_s: float) -> None:
        """Called while the machine is working, so the program hears of it later, in `pass_on`."""
        if isinstance(news, StateChange):
            level = logging.WARNING if news.state is State.DISCONNECTED else logging.INFO
            log.log(level, "%s is %s%s", self._name, news.state, f": {news.reason}" if news.reason else "")
            self._changes.append(news)
            return
        level = _LEVELS[news.kind]
        if not log.isEnabledFor(level):
            return
        limit, kind = self._limits[news.kind], news.kind
        if limit.room(now_s) < 1:
            self._omitted[kind] += 1
            return
        limit.spend(1)
        omitted, self._omitted[kind] = self._omitted[kind], 0
        log.log(level, "%s: %s%s", self._name, news.text, f" (and {omitted} more of this kind)" if omitted else "")

    @property
    def waiting(self) -> bool:
        return bool(self._changes)

    def pass_on(self) -> None:
        """Report state changes to the program; an error in its callback is logged."""
        changes, self._changes = self._changes, []
        for change in changes:
            try:
                self._on_state(change)
            except Exception:
                log.exception("%s: on_state failed at %s", self._name, change)


def _nobody(change: StateChange) -> None:
    """For a program that does not want state changes."""
