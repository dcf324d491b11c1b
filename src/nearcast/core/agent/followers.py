"""Followers: clients that subscribe to patterns, and to which topics that makes them subscribers.

To compare all patterns with all topics takes long, and anyone may say any pattern. So the machine only notes what was
said. `Taken` is compared where it keeps nobody waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from nearcast.core.model.counters import PATTERNS_MAX as EACH_MAX
from nearcast.core.model.counters import Behind
from nearcast.core.model.globs import Globs, matcher
from nearcast.core.model.names import TOPIC_BYTES_MAX

PATTERNS_MAX = 1000
FOLLOWS_MAX = 20_000  # pairs of a client and a pattern
MOVED_AT_ONCE = 20  # patterns that are compared with all topics at a time


class TopicClients(msgspec.Struct, frozen=True):
    """The clients of one topic whose distances are known."""

    topic: str
    publishers: tuple[int, ...]
    subscribers: tuple[int, ...]
    behind: Mapping[int, Behind] = {}  # of those clients that have users behind them


class Taken(msgspec.Struct, frozen=True):
    """What has changed. Its functions may be slow."""

    topics: list[TopicClients]  # without the followers of patterns
    followers: Mapping[str, tuple[int, ...]]  # by pattern
    moved: tuple[str, ...]  # patterns about whose followers something is new
    names: tuple[str, ...]  # of all topics, if any pattern is in `moved`

    def __bool__(self) -> bool:
        return bool(self.topics or self.moved)

    @property
    def clients(self) -> set[int]:
        """All clients of which there is anything to know."""
        users = {client for one in self.topics for client in (*one.publishers, *one.subscribers)}
        return users.union(*self.followers.values())

    def complete(self) -> list[TopicClients]:
        """The topics with the followers of patterns."""
        if not self.followers:
            return self.topics
        globs = Globs(self.followers)
        return [self._completed(one, globs.matching(one.topic)) for one in self.topics]

    def _completed(self, one: TopicClients, patterns: Iterable[str]) -> TopicClients:
        more = {client: None for pattern in patterns for client in self.followers[pattern]}
        if not more:
            return one
        return msgspec.structs.replace(one, subscribers=tuple(dict.fromkeys(one.subscribers) | more))

    def concerned(self) -> list[str]:
        """The topics that the patterns in `moved` match."""
        matchers = [matcher(pattern.encode("utf-8", "surrogatepass")) for pattern in self.moved]
        return [
            topic for topic in self.names if (name := topic.encode()) and any(matches(name) for matches in matchers)
        ]


class Followers:
    """Inputs: heard, moved, forget."""

    def __init__(self) -> None:
        self.by_pattern: dict[str, dict[int, None]] = {}
        self._said: dict[int, dict[str, float]] = {}  # client -> pattern -> when it was last said
        self._follows = 0
        self._moved: dict[str, None] = {}

    def __contains__(self, client: int) -> bool:
        return client in self._said

    def heard(self, client: int, patterns: tuple[str, ...], now_s: float) -> int:
        """Returns how many were dropped."""
        taken = sum(self._follow(client, pattern, now_s) for pattern in islice(patterns, EACH_MAX))
        return len(patterns) - taken

    def _follow(self, client: int, pattern: str, now_s: float) -> bool:
        said = self._said.get(client, {})
        if pattern not in said:
            if not self._room(pattern) or len(said) >= EACH_MAX or not _is_pattern(pattern):
                return False
            self.by_pattern.setdefault(pattern, {})[client] = None
            self._follows += 1
            self._moved[pattern] = None
        said[pattern] = now_s
        self._said[client] = said
        return True

    def _room(self, pattern: str) -> bool:
        there = pattern in self.by_pattern or len(self.by_pattern) < PATTERNS_MAX
        return there and self._follows < FOLLOWS_MAX and len(self._moved) < 2 * PATTERNS_MAX

    def moved(self, client: int) -> None:
        """It has measured other distances."""
        self._moved |= dict.fromkeys(self._said.get(client, ()))

    def forget(self, client: int, since_s: float) -> None:
        """Forget the client's patterns that were not said since then."""
        said = self._said.get(client, {})
        for pattern in [pattern for pattern, said_s in said.items() if said_s < since_s]:
            del said[pattern], self.by_pattern[pattern][client]
            self._follows -= 1
            self._moved[pattern] = None
            if not self.by_pattern[pattern]:
                del self.by_pattern[pattern]
        if not said:
            self._said.pop(client, None)

    def take_moved(self) -> tuple[str, ...]:
        """The next patterns about whose followers something is new."""
        moved = tuple(islice(self._moved, MOVED_AT_ONCE))
        for pattern in moved:
            del self._moved[pattern]
        return moved


def _is_pattern(pattern: str) -> bool:
    return 0 < len(pattern) <= TOPIC_BYTES_MAX
