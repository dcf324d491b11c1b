"""Repairs: a subscriber's requests to publishers of a topic for what it missed (PROTOCOL, rules 6, 7 and 10).

A request goes to the inbox of the publisher it concerns, on a server the publisher writes to, and nobody else hears it.
It is sent again until it is answered. After an interruption a second answer is wanted: what ran while we were away may
have been acknowledged only after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from nearcast.core.names import inbox_channel
from nearcast.core.wire import encode_ask

if TYPE_CHECKING:
    from nearcast.core.backend import ClientLink
    from nearcast.core.client import Client
    from nearcast.core.lines import Lines

TRIES = 4
ASKS_PER_S = 5000.0  # of one client
ASKS_BURST = 1000.0

Route = Callable[[int], "list[ClientLink]"]  # publisher -> where it can be asked now


class _Wish:
    __slots__ = ("answers", "at_s", "tries")

    def __init__(self, answers: int, at_s: float) -> None:
        self.answers = answers  # that are still wanted
        self.at_s = at_s
        self.tries = TRIES


class Repairs:
    def __init__(self, client: Client, topic: bytes, lines: Lines) -> None:
        self._client = client
        self._topic = topic
        self._lines = lines
        self._wishes: dict[int, _Wish] = {}

    @property
    def pending(self) -> bool:
        return bool(self._wishes)

    @property
    def asked(self) -> Collection[int]:
        """The publishers that are asked, or will be."""
        return self._wishes.keys()

    def ask_all(self, now_s: float) -> None:
        """We were away: ask every publisher we know."""
        self._ask(self._lines.last, 2, now_s)

    def ask(self, publishers: Iterable[int], now_s: float) -> None:
        """Holes were found in the lines of these."""
        self._ask([publisher for publisher in publishers if publisher not in self._wishes], 1, now_s)

    def _ask(self, publishers: Iterable[int], answers: int, now_s: float) -> None:
        # Soon, at a moment of our own: many subscribers may have lost the same server.
        at_s = now_s + self._client.rng.random() * self._client.timing.resync_s / 4
        for publisher in publishers:
            self._wishes[publisher] = _Wish(answers, at_s)

    def answered(self, publisher: int) -> None:
        """The publisher has sent what it has."""
        wish = self._wishes.get(publisher)
        if wish is not None:
            wish.answers -= 1
            if not wish.answers:
                del self._wishes[publisher]

    def tick(self, route: Route, now_s: float) -> None:
        """Send the requests whose time has come."""
        pace = self._client.asking
        for publisher, wish in list(self._wishes.items()):
            if now_s < wish.at_s:
                continue
            if pace.room(now_s) < 1:
                return
            have, links = self._lines.last.get(publisher), route(publisher)
            if have is None or not links:
                continue
            for link in links:
                link.tell(inbox_channel(publisher), encode_ask(self._topic, self._client.client_id, have))
            pace.spend(len(links))
            wish.at_s = now_s + self._client.timing.resync_s
            wish.tries -= 1
            if not wish.tries:
                del self._wishes[publisher]
