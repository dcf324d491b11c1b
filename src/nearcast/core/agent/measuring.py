"""Measuring: before a topic moves, its clients measure how far the brokers are that it could move to.

Estimates of distances are good enough to find the few best brokers, but not to choose one of them. So an agent asks the
clients of a topic that misses its bound, on the topic's control channel, to probe those few. Until they have, or have
had enough time, the leader is told to wait.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from nearcast.core.model.distances import Sought
from nearcast.core.model.names import CONTROL
from nearcast.core.wire.backend import ServerLink
from nearcast.core.wire.frames import encode_sought

GIVEN_S = 3.0  # what clients have not measured by then stays an estimate
ASK_AGAIN_S = 1.0
REST_S = 30.0  # from one request to the next: who did not answer the last one will not answer this one either
TOPICS_MAX = 1000  # with more at once, the others move by estimates


class _Request(msgspec.Struct):
    """What the clients of one topic are asked."""

    since_s: float
    sought: Sought
    ask_at_s: float = 0.0
    awaited: bool = True  # by the leader

    def open(self, now_s: float) -> bool:
        return now_s - self.since_s < GIVEN_S


class Measuring:
    """Inputs: seek, tick."""

    def __init__(self) -> None:
        self._requests: dict[str, _Request] = {}  # by topic, the oldest first

    def seek(self, topic: str, brokers: Collection[str], now_s: float) -> None:
        """Brokers to which this topic's clients should measure the distance."""
        if not brokers:
            self._requests.pop(topic, None)
            return
        request = self._requests.get(topic)
        if request is None:
            if len(self._requests) >= TOPICS_MAX:
                return
            request = self._requests[topic] = _Request(now_s, Sought(()))
        sought = Sought(tuple(brokers))
        if sought != request.sought:
            request.sought, request.ask_at_s = sought, now_s

    def waits(self, topic: str, now_s: float) -> bool:
        """Whether the leader should wait for the topic's clients."""
        return topic in self._requests and self._requests[topic].open(now_s)

    def tick(self, link: ServerLink, now_s: float) -> list[str]:
        """Ask. Returns the topics that the leader need not wait for any longer."""
        over = []
        for topic, request in list(self._requests.items()):
            if request.open(now_s):
                self._ask(link, topic, request, now_s)
            elif request.awaited:
                request.awaited = False
                over.append(topic)
            elif now_s - request.since_s >= REST_S:
                del self._requests[topic]
        return over

    def _ask(self, link: ServerLink, topic: str, request: _Request, now_s: float) -> None:
        if now_s >= request.ask_at_s:
            request.ask_at_s = now_s + ASK_AGAIN_S
            link.tell(CONTROL + topic.encode(), encode_sought(request.sought))
