"""New topics: how many names that nobody used before one user may bring up in a minute.

A name costs memory, here and at the brokers, for as long as it is remembered there; a name that is in use costs nothing
more, whoever uses it.
"""

from __future__ import annotations

from nearcast.errors import LimitReached
from nearcast.gateway.per_minute import PerMinute

KNOWN_MAX = 100_000  # names; beyond that the one not used for longest counts as new again


class NewTopics:
    """Of one gateway."""

    def __init__(self, per_minute: int) -> None:
        self._limit = per_minute
        self._known: dict[str, None] = {}
        self._begun = PerMinute(per_minute)

    def use(self, user: str, topic: str, now_s: float) -> None:
        """LimitReached: the topic is new, and the user has begun too many."""
        if topic in self._known:
            del self._known[topic]
        elif self._begun.is_full(user, now_s):
            raise LimitReached(f"you have used {self._limit} new topics in a minute: use one of them, or wait a minute")
        else:
            self._begun.note(user, now_s)
        self._known[topic] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
