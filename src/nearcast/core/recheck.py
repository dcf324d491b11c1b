"""Recheck: after the store has lost data, a client asks once more where its topics are.

The journal was put together again from what brokers had. If one of them was gone by then, a topic that nobody else knew
of is known no more: its clients may be attached to a broker that has no record of it, while others use it anew at its
directory. So in a new era of the membership every topic is looked up once. Mostly the answer is no news.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.core.client import Client


class Recheck:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._topics: OrderedDict[bytes, None] = OrderedDict()  # without an answer yet

    def __contains__(self, topic: bytes) -> bool:
        return topic in self._topics

    def begin(self) -> None:
        self._topics = OrderedDict.fromkeys(self._client.outflows | self._client.inflows)

    def found(self, topic: bytes) -> None:
        self._topics.pop(topic, None)

    def tick(self, now_s: float) -> None:
        """Ask for some; each has its turn again until it is found."""
        client = self._client
        for _ in range(min(len(self._topics), client.limits.attended)):
            topic, _ = self._topics.popitem(last=False)
            if topic in client.outflows or topic in client.inflows:
                self._topics[topic] = None
                client.ask(topic, now_s)
