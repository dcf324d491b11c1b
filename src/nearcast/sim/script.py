"""A script: plan changes for the operator of a simulated cluster to carry out, each when its time has come.

It brings the plan changes of a flow simulation into the message-level simulator, where every single message counts.
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
    """The broker's server ends and its agent is told; after a while it starts again with nothing in its memory."""

    at_s: float
    broker: str
    away_s: float


Step = Place | Add | Remove | Lose
