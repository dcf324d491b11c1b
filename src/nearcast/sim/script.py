"""The script of a simulation: steps that the operator carries out.

They are carried out in order, each when its time has come and its brokers are members. A script brings the plan
changes of a flow simulation into the message-level simulator, where every single message counts. Some steps are faults
that chance would seldom combine.
"""

from __future__ import annotations

import msgspec

from nearcast.core.model.placement import Mode


class Place(msgspec.Struct, frozen=True):
    """Move these topics to these placements."""

    at_s: float
    topics: dict[str, tuple[Mode, tuple[str, ...]]]


class Add(msgspec.Struct, frozen=True):
    """Start one more broker."""

    at_s: float
    broker: str


class Remove(msgspec.Struct, frozen=True):
    """Drain the broker, and stop it when it has left."""

    at_s: float
    broker: str


class Lose(msgspec.Struct, frozen=True):
    """The broker's server ends; after a while it starts again with an empty memory."""

    at_s: float
    broker: str
    away_s: float
    told: bool = True  # whether the agent learns at once that it has ended


class LoseStore(msgspec.Struct, frozen=True):
    """The store's server ends, and comes back as it was this many commits ago; empty if None."""

    at_s: float
    away_s: float
    commits: int | None = None


class Readdress(msgspec.Struct, frozen=True):
    """The broker's server ends and starts again at another address, with a new agent."""

    at_s: float
    broker: str


class Intrude(msgspec.Struct, frozen=True):
    """One more agent is started for a broker, at another broker's server."""

    at_s: float
    broker: str
    server: str


class Pause(msgspec.Struct, frozen=True):
    """The leading controller is paused. When it wakes, it serves sockets before timers."""

    at_s: float
    for_s: float


class Deafen(msgspec.Struct, frozen=True):
    """A controller that does not lead loses the bus, but not the journal: these are two connections."""

    at_s: float
    for_s: float


class Part(msgspec.Struct, frozen=True):
    """A process and a server cannot reach each other for a while."""

    at_s: float
    process: str
    server: str
    for_s: float


class Keep(msgspec.Struct, frozen=True):
    """Create a log of these topics."""

    at_s: float
    topics: str  # a pattern
    name: str = "kept"
    retain_s: float = 3600.0
    retain_bytes: int = 1 << 30
    quorum: int = 0  # that of the world if 0


class Drop(msgspec.Struct, frozen=True):
    """Drop a log."""

    at_s: float
    name: str = "kept"


Step = Keep | Drop | Place | Add | Remove | Lose | LoseStore | Readdress | Intrude | Pause | Deafen | Part
