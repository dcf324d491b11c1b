"""What people are shown of a cluster: parts of the answers to the command line."""

from __future__ import annotations

import msgspec

from nearcast.core.model.placement import Placement


class TopicState(msgspec.Struct, frozen=True):
    """A topic in an answer to the command line."""

    placement: Placement
    target: Placement | None = None
    stage: str = ""
    planned: bool = True  # False: it was never placed, and lives on its directory


class Decision(msgspec.Struct, frozen=True):
    """Something a policy decided, and why."""

    at_s: float  # wall clock
    text: str


class GatewayView(msgspec.Struct, frozen=True):
    """One gateway. Rates are what its subscribers' subscriptions ask for (BAD, equations 1-5)."""

    url: str
    site: str
    takes: bool  # whether subscribers may be sent there
    subscribers: int
    frontend: int  # subscriptions of its subscribers
    backend: int  # distinct ones
    incoming_bytes_per_s: float  # I_j: each backend subscription once
    outgoing_bytes_per_s: float  # O_j: each frontend subscription once
    moving: int = 0  # subscribers moving from here, or waiting to
