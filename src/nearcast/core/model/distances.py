"""Distances: how far a topic's clients are from brokers, as agents report it and policies read it; and brokers from
each other.

Everything an agent reports of a topic is constant in the number of its clients.
"""

from __future__ import annotations

import msgspec

from nearcast.core.model.bounds import Bound
from nearcast.core.model.journal import BEGINNING, Position

PERCENTILE_KNOWN = 90.0  # the one that agents report
CANDIDATES_MAX = 8  # brokers in one report of a topic

BROKERS_MAX = 250  # whose distances from each other agents are told: those of more would be too much to send and learn

# --- topics


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """A broker that a topic could be on. Times are one way; maxima of several agents can be merged."""

    broker: str
    publisher_s: float  # from the farthest publisher
    subscriber_s: float  # to the farthest subscriber
    p90_s: float  # of all pairs of a publisher and a subscriber

    @property
    def worst_s(self) -> float:
        """E(t): the worst pair's latency."""
        return self.publisher_s + self.subscriber_s


def latency_s(candidate: Candidate, bound: Bound | None) -> float:
    """The latency that a bound is about.

    A bound for at most 90 % of the pairs is judged by the 90th percentile, one above that by the worst pair: so no
    bound is taken for kept that may be missed.
    """
    return candidate.p90_s if by_percentile(bound) else candidate.worst_s


def by_percentile(bound: Bound | None) -> bool:
    """Whether the 90th percentile decides, not the worst pair."""
    return bound is not None and bound.percentile is not None and bound.percentile <= PERCENTILE_KNOWN


class Centroids(msgspec.Struct, frozen=True, array_like=True):
    """What ePulsar reports of a topic (section 3.2). A coordinate is a position, and a height at its end."""

    publishers: tuple[float, ...]
    subscribers: tuple[float, ...]
    deviation_s: float  # W(t): the largest distances from the two centroids, added


class Spread(msgspec.Struct, frozen=True, array_like=True):
    """Where most of a topic's publishers are, or of its subscribers."""

    count: int
    broker: str  # the nearest one for most of them
    near: int  # for how many


class TopicDistances(msgspec.Struct, frozen=True, array_like=True):
    """Where a topic's clients are. Without publishers or without subscribers there is nothing to say."""

    now: Candidate  # the broker it is on
    best: tuple[Candidate, ...] = ()  # by their worst latency, the best first
    centroids: Centroids | None = None
    measuring: bool = False  # clients are on the move, or measure how far the best ones are: wait until they have
    publishers: Spread | None = None
    subscribers: Spread | None = None


# --- brokers


POINT_MAX_S = 1000.0  # a value of a coordinate: farther away is a lie or a bug
DIMENSIONS_MAX = 16


class BrokerCoordinate(msgspec.Struct, frozen=True, array_like=True):
    """Where a broker is (Vivaldi), and how sure its agent is of that."""

    point_s: tuple[float, ...]  # a position, and a height at its end
    error: float

    @property
    def possible(self) -> bool:
        values = (*self.point_s, self.error)
        return 2 <= len(self.point_s) <= DIMENSIONS_MAX and all(abs(value) <= POINT_MAX_S for value in values)


class BrokerDistances(msgspec.Struct, frozen=True, tag=True):
    """What the leader tells agents: how far brokers are from each other, as they have measured it."""

    term: int
    round_trips_s: dict[str, dict[str, float]]  # from -> to
    coordinates: dict[str, BrokerCoordinate] = {}
    centroids: bool = False  # the policy wants them
    journal: Position = BEGINNING


class Sought(msgspec.Struct, frozen=True):
    """An agent's request to a topic's clients: measure how far these brokers are."""

    brokers: tuple[str, ...]
