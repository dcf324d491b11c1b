"""Reports: what an agent tells the leader about its broker, once a second."""

from __future__ import annotations

import msgspec

from nearcast.core.model.counters import TopicCounters
from nearcast.core.model.distances import BrokerCoordinate, TopicDistances


class Report(msgspec.Struct, frozen=True, tag=True):
    """One second of one broker: the server's own figures, and the sum of what clients counted."""

    broker: str
    at_s: float
    seconds: float
    output_bytes_per_s: float
    input_bytes_per_s: float
    connections: int
    memory_bytes: int
    cpu_share: float
    counted_bytes_per_s: float  # how much of the output the clients' counters explain
    topics: dict[str, TopicCounters] = {}
    memory_max_bytes: int = 0  # what the server may use; 0: no limit
    round_trips_s: dict[str, float] | None = None  # to other brokers, if they have changed
    coordinate: BrokerCoordinate | None = None  # of the broker, together with its round trips, if the leader wants it
    distances: dict[str, TopicDistances] = {}  # topics whose distances have changed, and some others in turn
