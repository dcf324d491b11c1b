"""A configuration: what is published and heard during one run."""

from __future__ import annotations

import msgspec

from nearcast.errors import UsageError

CONNECTIONS_MAX = 1000
PAYLOAD_MAX_BYTES = 1 << 20
MESSAGES_MIN = 20  # published in one run: fewer say nothing about latency


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """Every publisher and every subscriber is one connection, on one topic."""

    topics: int
    publishers: int  # on each topic
    subscribers: int  # of each topic
    payload_bytes: int  # without the header
    rate_per_s: float | None = None  # published on each topic; None: as fast as they are delivered
    name: str = ""

    def __post_init__(self) -> None:
        most = f"1 to {CONNECTIONS_MAX}"
        rules = (
            (1 <= self.topics <= CONNECTIONS_MAX, "topics", self.topics, most),
            (1 <= self.publishers <= CONNECTIONS_MAX, "publishers", self.publishers, most),
            (1 <= self.subscribers <= CONNECTIONS_MAX, "subscribers", self.subscribers, most),
            (1 <= self.payload_bytes <= PAYLOAD_MAX_BYTES, "bytes", self.payload_bytes, f"1 to {PAYLOAD_MAX_BYTES}"),
            (self.rate_per_s is None or self.rate_per_s > 0, "messages per second", self.rate_per_s, "more than 0"),
        )
        for kept, what, value, rule in rules:
            if not kept:
                raise UsageError(f"cannot profile with {value} {what}: use {rule}")
        if self.connections > CONNECTIONS_MAX:
            raise UsageError(
                f"{self.topics} topics with {self.publishers} publishers and {self.subscribers} subscribers each need "
                f"{self.connections:,} connections, and {CONNECTIONS_MAX} are allowed: use fewer of them"
            )

    @property
    def connections(self) -> int:
        return self.topics * (self.publishers + self.subscribers)

    @property
    def deliveries(self) -> int:
        """Of one message on every topic."""
        return self.topics * self.subscribers
