"""A play: clients at places, what they publish and hear, and what changes when. Data only; `live.py` performs it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nearcast.errors import UsageError
from nearcast.testing.network.sites import World


class Station(msgspec.Struct, frozen=True):
    """Where an endpoint is at the beginning. `access_delay_s`: one way, from it to its site."""

    site: str
    access_delay_s: float


class GoTo(msgspec.Struct, frozen=True):
    """An endpoint, with all its clients, goes to another site."""

    at_s: float
    endpoint: str
    site: str


class Listen(msgspec.Struct, frozen=True):
    """A client begins to hear a topic."""

    at_s: float
    client: str
    topic: str


class Ignore(msgspec.Struct, frozen=True):
    """A client hears a topic no longer."""

    at_s: float
    client: str
    topic: str


Change = GoTo | Listen | Ignore


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """All that happens, from second 0 on. Every topic has the same rate per publisher and the same bound."""

    world: World
    brokers: Mapping[str, str]  # broker -> site
    control_site: str  # of the controller and the store
    endpoints: Mapping[str, Station]
    clients: Mapping[str, str]  # client -> endpoint
    publications: tuple[tuple[str, str], ...]  # (client, topic)
    subscriptions: tuple[tuple[str, str], ...]  # (client, topic), at the beginning
    changes: tuple[Change, ...]  # by time
    rate_per_s: float  # of each publication
    payload_bytes: int
    bound_s: float  # from publish to receipt

    def __post_init__(self) -> None:
        times_s = [change.at_s for change in self.changes]
        if times_s != sorted(times_s):
            raise UsageError("the changes of a play must be in the order of their times")
        if self.rate_per_s <= 0 or self.payload_bytes < 0 or self.bound_s <= 0:
            raise UsageError("a play needs rate_per_s and bound_s above 0, and payload_bytes of 0 or more")

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(topic for _, topic in self.publications))

    def topics_of(self, endpoint: str) -> list[str]:
        """The topics that clients of this endpoint publish on."""
        return list(dict.fromkeys(topic for client, topic in self.publications if self.clients[client] == endpoint))

    def delay_s(self, endpoint_site: str, endpoint: str, broker: str) -> float:
        """One way, from an endpoint at a site to a broker."""
        return self.endpoints[endpoint].access_delay_s + self.world.delay_s(endpoint_site, self.brokers[broker])
