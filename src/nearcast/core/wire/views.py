"""What people are shown of a cluster: parts of the answers to the command line."""

from __future__ import annotations

import msgspec

from nearcast.core.model.logs import PartLoad
from nearcast.core.model.placement import Placement
from nearcast.core.model.reports import Report


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


class BrokerView(msgspec.Struct, frozen=True):
    """A broker in an answer to the command line."""

    url: str
    site: str
    state: str
    alive: bool
    report: Report | None = None
    capacity_bytes_per_s: float = 0.0
    rented: bool = False
    keeps: dict[str, PartLoad] = {}  # log -> what a leaving broker waits for
    messages_high_per_s: float = 0.0
