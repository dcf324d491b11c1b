"""Leaving a cluster: where ours was is another one, because all of it was started anew.

What a client knows of placements means nothing there. Subscribers are told, and join as if their topics were new to
them; publishers keep what is not acknowledged, and send it again when they know where the topic is now. Calls that wait
go on waiting.

A client may have very many topics, and its program shares the event loop: at every tick some of them leave. The client
belongs to no cluster meanwhile, and joins the other one when the last has left.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nearcast.core.membership import Membership
from nearcast.core.news import Kind, Note

if TYPE_CHECKING:
    from nearcast.core.client import Client

_REASON = "the cluster was started anew"


class Leaving:
    def __init__(self, client: Client, successor: Membership, now_s: float) -> None:
        """Forget all brokers; where topics are is forgotten by and by."""
        self.successor = successor  # the membership to go on with
        self._client = client
        gone, client.membership = list(client.membership.brokers), Membership(version=-1, term=0, brokers={})
        client.tell(Note(Kind.LOST, f"{_REASON}: {len(gone)} brokers are forgotten"))
        for broker in gone:
            client.links.forget(broker, now_s)
            for pattern in client.patterns.values():
                pattern.forget(broker, now_s)
        self._topics = deque(client.outflows | client.inflows)

    def hear(self, membership: Membership) -> None:
        """News of the membership while we are leaving."""
        if membership.cluster != self.successor.cluster or membership.version > self.successor.version:
            self.successor = membership

    def go_on(self, now_s: float) -> bool:
        """Let some topics leave. Returns whether all have."""
        client = self._client
        for _ in range(min(len(self._topics), client.limits.attended)):
            topic = self._topics.popleft()
            for flow in (client.outflows.get(topic), client.inflows.get(topic)):
                if flow is not None:
                    flow.begin_again(_REASON, now_s)
        return not self._topics
