"""The diary of a client: its news, written to the log `nearcast.client` and told to the program.

A cluster in trouble has much to say, the same for thousands of topics. Each kind of note has a pace; how many were left
out is said with the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from nearcast.core.news import Kind, Note, State, StateChange
from nearcast.core.pace import Pace

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
