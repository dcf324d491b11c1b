"""Arrivals: this client's pattern subscriptions say that they are attached to a broker that joins.

A broker that joins carries no topic before every pattern subscriber is there. They say so as subscribers of a topic do
before a move: who is attached to it holds one more channel on every server it uses, named after the join. So at each
server, and at one moment, the holders can be counted against all pattern subscribers. Numbers of different servers or
different joins are never compared: equal numbers do not mean the same clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.core.names import PATTERNS, pattern_readiness

if TYPE_CHECKING:
    from nearcast.core.backend import ClientLink
    from nearcast.core.client import Client


class Arrivals:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._said: dict[ClientLink, set[int]] = {}  # joins we hold the channel of, by link

    def look(self) -> None:
        """Say what is true now. Called when a pattern subscription or the membership has changed."""
        flows = self._client.patterns.values()
        links = dict.fromkeys(link for flow in flows for link in flow.open_links())
        joins = self._joins() if links else set()
        for link in links:
            said = self._said.setdefault(link, set())
            for joined in sorted(joins - said):
                link.subscribe(pattern_readiness(joined))
            for joined in sorted(said - joins):
                link.unsubscribe(pattern_readiness(joined))
            self._said[link] = set(joins)
        for link in [link for link in self._said if link not in links]:
            del self._said[link]

    def _joins(self) -> set[int]:
        """The joins under way that all our pattern subscriptions are ready for."""
        membership, flows = self._client.membership, self._client.patterns.values()
        return {
            info.joined
            for broker, info in membership.brokers.items()
            if broker not in membership.ring and not info.leaving and all(flow.attached(broker) for flow in flows)
        }

    def part(self, link: ClientLink) -> None:
        """No pattern subscription of ours uses the link any more: give everything back at one moment."""
        said = self._said.pop(link, set())
        link.unsubscribe(PATTERNS, *(pattern_readiness(joined) for joined in sorted(said)))
