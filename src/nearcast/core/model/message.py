"""What a subscription or a reader yields: messages, and the events that say something is missing."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message. `publisher` and `sequence` are None for a message that came without our envelope."""

    topic: str
    payload: bytes
    publisher: int | None
    sequence: int | None
    published_at: float  # seconds since the Unix epoch, by the publisher's clock
    received_at: float  # seconds since the Unix epoch, by our clock
    pattern: str | None = None  # the pattern it was subscribed by, if any
    user: str = ""  # login of the user who published it through a gateway; empty for a program's own message

    @property
    def latency_s(self) -> float:
        """Seconds from publish to receipt; only as accurate as the two clocks agree."""
        return self.received_at - self.published_at


class Gap(msgspec.Struct, frozen=True):
    """Messages `first..last` of one publisher will not arrive; none of them was delivered."""

    topic: str
    publisher: int
    first: int
    last: int
    reason: str

    @property
    def count(self) -> int:
        return self.last - self.first + 1


class Interrupted(msgspec.Struct, frozen=True):
    """The subscription was not attached: messages may be missing, and how many is not known.

    Sent at once when it begins (`until_s` is None), again if it turns out to reach further back, and once more when the
    subscription is whole (`until_s` set).
    """

    topic: str
    since_s: float
    until_s: float | None
    reason: str


class Lost(msgspec.Struct, frozen=True):
    """Messages of a log that a reader will not get: nobody has them any more."""

    log: str
    part: str  # the life of the broker that kept them
    count: int | None  # None: not known
    reason: str


Event = Message | Gap | Interrupted
Kept = Message | Lost  # what reading a log yields
