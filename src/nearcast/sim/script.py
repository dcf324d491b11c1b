"""A script: plan changes for the operator of a simulated cluster to carry out, each when its time has come.

It brings the plan changes of a flow simulation into the message-level simulator, where every single message counts.
Some steps are faults that chance alone would seldom put together.
"""

from __future__ import annotations

import msgspec

from nearcast.core.placement import Mode


class Place(msgspec.Struct, frozen=True):
    at_s: float
    topics: dict[str, tuple[Mode, tuple[str, ...]]]


class Add(msgspec.Struct, frozen=True):
    at_s: float
    broker: str


class Remove(msgspec.Struct, frozen=True):
    """Drain the broker, and stop it when it has left."""

    at_s: float
    broker: str


class Lose(msgspec.Struct, frozen=True):
    """The broker's server ends; after a while it starts again with nothing in its memory."""

    at_s: float
    broker: str
    away_s: float
    told: bool = True  # whether the agent hears at once that it has ended


class LoseStore(msgspec.Struct, frozen=True):
    """The store's server ends, and comes back as it was so many commits before; empty if None."""

    at_s: float
    away_s: float
    commits: int | None = None


class Readdress(msgspec.Struct, frozen=True):
    """The broker's server ends, and starts again at another address, with a new agent."""

    at_s: float
    broker: str


class Intrude(msgspec.Struct, frozen=True):
    """Somebody starts one more agent for a broker, with the server of another."""

    at_s: float
    broker: str
    server: str


class Pause(msgspec.Struct, frozen=True):
    """The controller that leads stands still, and wakes with sockets before timers."""

    at_s: float
    for_s: float


class Deafen(msgspec.Struct, frozen=True):
    """A controller that does not lead loses the bus, but not the journal: they are two connections."""

    at_s: float
    for_s: float


class Part(msgspec.Struct, frozen=True):
    """A process and a server cannot reach each other for a while."""

    at_s: float
    process: str
    server: str
    for_s: float


Step = Place | Add | Remove | Lose | LoseStore | Readdress | Intrude | Pause | Deafen | Part
