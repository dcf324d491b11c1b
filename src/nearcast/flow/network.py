"""Network delays between clients and brokers, and the response times that follow.

Delays are one way. Dynamoth (V.B) samples the King data set for every message: one value for client to infrastructure,
two for client to client. King measures round trips between DNS servers; the authors' code halves them, and so do we.

A matrix of round trips is a CSV file, in milliseconds.

    ,Dallas,NewYork            the first line: a cell that is ignored, then the names of the places
    Dallas,0.0,44.5            then one line for each place in the same order: its name, its round trips
    NewYork,44.4,0.0

Cells may be empty where nothing was measured: they take the value of the other direction, or the median of the matrix.

A response time runs from a client's publish until its own update comes back: two one-way network delays and the
broker's part between them. In a workload where no client receives its own messages (figures 4a and 4b), it is the time
from a publisher to a subscriber. The broker's part of the mean is exact; the network's part and the 99th percentile
come from a sample of messages.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import msgspec
import numpy as np

from nearcast.errors import UsageError
from nearcast.flow.brokers import Service
from nearcast.flow.model import Demand, FloatArray, FlowSettings, IntArray, summed
from nearcast.flow.traffic import Layout, TopicTraffic, Work

# --- the matrix file


def read_matrix(path: Path) -> tuple[tuple[str, ...], FloatArray]:
    """The places, and the round trips between them in ms."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read the matrix {path}: {error}") from None
    if len(rows) < 3:
        raise UsageError(f"{path}: not a matrix: expected a line of names and one line for each of at least two places")
    places = tuple(rows[0][1:])
    if len(set(places)) != len(places):
        raise UsageError(f"{path}: a place is named twice in the first line: every place needs its own name")
    if len(rows) - 1 != len(places):
        raise UsageError(
            f"{path}: {len(places)} places in the first line but {len(rows) - 1} lines follow: make it square"
        )
    cells = [_cells(path, number, row, places) for number, row in enumerate(rows[1:], start=2)]
    return places, _filled(path, np.array(cells, dtype=np.float64))


def _cells(path: Path, number: int, row: list[str], places: tuple[str, ...]) -> list[float]:
    expected = places[number - 2]
    if row[0] != expected:
        raise UsageError(f"{path}, line {number}: begins with {row[0]!r}, expected {expected!r} as in the first line")
    if len(row) - 1 != len(places):
        raise UsageError(f"{path}, line {number}: {len(row) - 1} values for {len(places)} places")
    return [_value(path, number, place, cell) for place, cell in zip(places, row[1:], strict=True)]


def _value(path: Path, number: int, place: str, cell: str) -> float:
    if not cell.strip():
        return np.nan
    try:
        value = float(cell)
    except ValueError:
        value = -1.0
    if not (0 <= value < np.inf):
        raise UsageError(
            f"{path}, line {number}, {place}: {cell!r} is not a round trip in ms; leave it empty if unknown"
        )
    return value


def _filled(path: Path, matrix: FloatArray) -> FloatArray:
    """Fill holes with the value of the other direction, or the median."""
    if np.isnan(matrix).all():
        raise UsageError(f"{path}: the matrix has no values")
    both_ways = np.where(np.isnan(matrix), matrix.T, matrix)
    return np.where(np.isnan(both_ways), np.nanmedian(matrix), both_ways)


# --- delays


_MS = 1e-3


class Delays(Protocol):
    """How long messages take between clients and brokers."""

    def one_way_s(self, clients: IntArray, brokers: IntArray, rng: np.random.Generator) -> FloatArray:
        """One delay for each pair of client and broker. Brokers are numbers in order of joining."""
        ...


class LognormalDelays(msgspec.Struct, frozen=True, kw_only=True):
    """King-like: every message has its own delay, whoever sends it, as in the paper.

    The mean is chosen so that two samples add up to 75 ms, the response time the paper reports at rest with the North
    American part of King (V.D). The spread is that of the whole King data set of 1,740 servers: its median round trip
    is 159 ms (Dabek et al., SIGCOMM 2004), its mean about 180 ms (p2psim), and for a lognormal distribution
    mean / median = exp(sigma^2 / 2).
    """

    mean_s: float = 0.0375
    sigma: float = math.sqrt(2 * math.log(180 / 159))

    def __post_init__(self) -> None:
        if self.mean_s <= 0 or self.sigma < 0:
            raise UsageError(f"mean_s {self.mean_s:g} must be above 0, and sigma {self.sigma:g} must not be negative")

    def one_way_s(self, clients: IntArray, brokers: IntArray, rng: np.random.Generator) -> FloatArray:
        return rng.lognormal(math.log(self.mean_s) - self.sigma**2 / 2, self.sigma, len(clients))


class MatrixDelays:
    """Delays from measured round trips. Clients are at random places; so are brokers unless their places are given."""

    def __init__(self, places: tuple[str, ...], round_trip_s: FloatArray, broker_places: tuple[str, ...] = ()) -> None:
        unknown = [place for place in broker_places if place not in places]
        if unknown:
            raise UsageError(f"the matrix has no place {unknown[0]!r}: choose from {', '.join(places[:8])}, ...")
        self.places = places
        self._one_way_s = round_trip_s / 2
        self._broker_rows = np.array([places.index(place) for place in broker_places], dtype=np.int64)

    @classmethod
    def load(cls, path: Path | str, broker_places: tuple[str, ...] = ()) -> Self:
        """A CSV file of round trips in ms; the module docstring describes it."""
        places, round_trip_ms = read_matrix(Path(path))
        return cls(places, round_trip_ms * _MS, broker_places)

    def one_way_s(self, clients: IntArray, brokers: IntArray, rng: np.random.Generator) -> FloatArray:
        at_brokers = (
            self._broker_rows[brokers % len(self._broker_rows)]
            if len(self._broker_rows)
            else _place(brokers, len(self.places), 1)
        )
        return self._one_way_s[_place(clients, len(self.places), 0), at_brokers]


def _place(numbers: IntArray, places: int, kind: int) -> IntArray:
    """The place of the client or broker with this number: random, but always the same."""
    mixed = (numbers.astype(np.uint64) * np.uint64(2) + np.uint64(kind)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.uint64(places)).astype(np.int64)


# --- response times


SAMPLES = 2048  # messages per step: the mean of two delays is then known to about 0.6 ms


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    mean_s: float = math.nan
    p99_s: float = math.nan


@dataclass(frozen=True, slots=True)
class _Messages:
    """The messages whose response times count: how many per second on each topic, and a sample of them."""

    per_s: FloatArray
    publisher: IntArray
    subscriber: IntArray
    topic: IntArray


@dataclass(frozen=True, slots=True)
class Responses:
    """Computes response times from the state of one step and the network's delays."""

    layout: Layout
    traffic: TopicTraffic
    work: Work
    service: Service
    buffer_wait_s: FloatArray  # per topic
    settings: FlowSettings

    def times(self, demand: Demand, delays: Delays, rng: np.random.Generator) -> ResponseTimes:
        messages = _own_updates(demand, self.traffic, rng) or _deliveries(demand, self.traffic, rng)
        if messages is None:
            return ResponseTimes()
        fan_out_s = self._fan_out_s()
        slot = self.layout.slot_of(messages.topic, rng.integers(1 << 40, size=SAMPLES))
        broker = self.layout.slot_broker[slot]
        up_s = delays.one_way_s(messages.publisher, broker, rng)
        down_s = delays.one_way_s(messages.subscriber, broker, rng)
        in_broker_s = (
            self.settings.cpu_s_per_publication
            + self.service.backlog_s[broker]
            + self._crowd_s(broker, rng)
            + fan_out_s[slot] * rng.random(SAMPLES)  # the subscriber's position in the fan-out
            + self.buffer_wait_s[messages.topic]
        )
        mean_s = float((up_s + down_s).mean()) + self._mean_in_broker_s(messages.per_s, fan_out_s)
        return ResponseTimes(mean_s, float(np.quantile(up_s + down_s + in_broker_s, 0.99)))

    def _fan_out_s(self) -> FloatArray:
        """Per slot: how long one publication takes from its first subscriber to its last."""
        per_delivery_s = np.maximum(
            self.settings.cpu_s_per_delivery, self.traffic.bytes_per_delivery / self.settings.limit_bytes_per_s
        )
        return self.work.fan_out * per_delivery_s[self.layout.slot_topic]

    def _crowd_s(self, broker: IntArray, rng: np.random.Generator) -> FloatArray:
        """Random waits with the given means: 0 if the server is idle, else exponential, as in a busy M/G/1 queue."""
        busy = self.service.busy[broker]
        mean_s = np.divide(self.service.crowd_s[broker], busy, out=np.zeros(len(busy)), where=busy > 0)
        return np.where(rng.random(len(busy)) < busy, rng.exponential(size=len(busy)) * mean_s, 0.0)

    def _mean_in_broker_s(self, per_s: FloatArray, fan_out_s: FloatArray) -> float:
        slot_s = self.service.wait_s[self.layout.slot_broker] + fan_out_s / 2
        # In every mode, a topic's messages are spread evenly over its brokers.
        topic_s = self.layout.per_topic(slot_s) / np.maximum(self.layout.count, 1) + self.buffer_wait_s
        return self.settings.cpu_s_per_publication + float(per_s @ topic_s / per_s.sum())


def _own_updates(demand: Demand, traffic: TopicTraffic, rng: np.random.Generator) -> _Messages | None:
    """Updates whose sender is subscribed where it publishes."""
    client, topic, rate_per_s = demand.publications
    per_s = traffic.publications_per_s
    if not demand.all_hear_themselves:
        rate_per_s = rate_per_s * demand.heard_by_themselves()
        per_s = summed(topic, rate_per_s, len(per_s))
    drawn = _draw(rate_per_s, rng)
    return None if drawn is None else _Messages(per_s, client[drawn], client[drawn], topic[drawn])


def _deliveries(demand: Demand, traffic: TopicTraffic, rng: np.random.Generator) -> _Messages | None:
    """All deliveries. The sample draws publishers from all topics equally, which matters only with a matrix."""
    client, topic = demand.subscriptions
    drawn = _draw(traffic.publications_per_s[topic], rng)
    publisher = _draw(demand.publications.rate_per_s, rng)
    if drawn is None or publisher is None:
        return None
    return _Messages(traffic.deliveries_per_s, demand.publications.client[publisher], client[drawn], topic[drawn])


def _draw(weights: FloatArray, rng: np.random.Generator) -> IntArray | None:
    """Random indices, in proportion to their weights; None if all weights are 0."""
    sums = np.cumsum(weights)
    if not len(sums) or sums[-1] <= 0:
        return None
    return np.searchsorted(sums, rng.random(SAMPLES) * sums[-1], side="right")
