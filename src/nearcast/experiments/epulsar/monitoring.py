"""Figure 6: monitoring traffic of one broker, by topics and clients per topic (section 5.6).

Three ways to say where a topic's clients are, each encoded as reports to the controller are:

- `top8`, ours: the broker a topic is on and the best eight, each with its worst latency and 90th percentile.
- `centroids`, the paper's: two centroids and W(t), beside E(t) of the broker the topic is on.
- `all_pairs`: every client's coordinate, without names, which is the least it needs.

The paper reports every 5 s. The product reports a topic when its figures have changed, so this is the most it sends.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
import numpy as np

from nearcast.coordinates.topics import DIGITS, centroids, topic_distances
from nearcast.core.model.distances import TopicDistances
from nearcast.core.wire.bus import encode
from nearcast.experiments.chart import Chart, Colour, Line, Panel
from nearcast.experiments.epulsar.topology import Floats, apart
from nearcast.experiments.result import Progress, Result, silent

NAME = "epulsar-6"
CLIENTS = (2, 4, 8, 16, 32, 64, 128, 256)
TOPICS = (1, 10, 100, 1000)
SAMPLES = 50  # topics that are encoded for the bytes of one
PERIOD_S = 5.0  # between two reports (section 4)
BROKERS = 50
DIMENSIONS = 8
SIZE_S = 0.2  # of the world: a round trip from side to side


class Kind(StrEnum):
    TOP8 = "top8"
    CENTROIDS = "centroids"
    ALL_PAIRS = "all_pairs"


class MonitoringFigures(msgspec.Struct, frozen=True, kw_only=True):
    bytes_per_topic: dict[str, dict[int, float]]  # by kind, then by clients per topic; means
    bytes_per_s: dict[str, dict[str, float]]  # by kind, then by "TOPICS x CLIENTS"
    growth: dict[str, float]  # bytes with the most clients per topic, as a multiple of those with the fewest
    period_s: float
    brokers: int
    seed: int


def run_monitoring(seed: int = 0, progress: Progress = silent) -> Result:
    world = _World(seed)
    per_topic: dict[str, dict[int, float]] = {kind: {} for kind in Kind}
    per_s: dict[str, dict[str, float]] = {kind: {} for kind in Kind}
    for done, clients in enumerate(CLIENTS):
        progress(done, len(CLIENTS), f"{clients} clients per topic")
        made = [world.topic(clients) for _ in range(SAMPLES)]
        for kind in Kind:
            entries = [len(encode({f"topic{number}": topic[kind]})) - 1 for number, topic in enumerate(made)]
            per_topic[kind][clients] = sum(entries) / SAMPLES
            for topics in TOPICS:
                report = {f"topic{number}": made[number % SAMPLES][kind] for number in range(topics)}
                per_s[kind][f"{topics} x {clients}"] = len(encode(report)) / PERIOD_S
    growth = {kind: sizes[CLIENTS[-1]] / sizes[CLIENTS[0]] for kind, sizes in per_topic.items()}
    figures = MonitoringFigures(
        bytes_per_topic=per_topic,
        bytes_per_s=per_s,
        growth=growth,
        period_s=PERIOD_S,
        brokers=BROKERS,
        seed=seed,
    )
    series = {"clients": CLIENTS, "topics": TOPICS, "bytes_per_topic": per_topic, "bytes_per_s": per_s}
    return Result(name=NAME, figures=figures, series=series, chart=_chart(figures), rows=_rows(figures))


class _World:
    """Brokers and clients at random places; coordinates are exact here, because only their size matters."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._brokers = self._places(BROKERS)
        self._names = [f"broker{number}" for number in range(BROKERS)]

    def _places(self, count: int) -> Floats:
        found = self._rng.uniform(0.0, SIZE_S, (count, DIMENSIONS + 1))
        found[:, -1] *= 0.05  # heights
        return found

    def topic(self, clients: int) -> dict[Kind, object]:
        """What each way reports of a topic; half of the clients publish."""
        places = self._places(clients)
        publishers, subscribers = places[: clients // 2], places[clients // 2 :]
        here = int(self._rng.integers(BROKERS))
        found = topic_distances(self._names, here, apart(publishers, self._brokers), apart(subscribers, self._brokers))
        return {
            Kind.TOP8: found,
            Kind.CENTROIDS: TopicDistances(found.now, (), centroids(publishers, subscribers)),
            Kind.ALL_PAIRS: ([_rounded(one) for one in publishers], [_rounded(one) for one in subscribers]),
        }


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(round(value, DIGITS) for value in values.tolist())


def _rows(figures: MonitoringFigures) -> tuple[tuple[str, str], ...]:
    rows = [
        (f"bytes per topic, {kind}", ", ".join(f"{size:,.0f}" for size in sizes.values()))
        for kind, sizes in figures.bytes_per_topic.items()
    ]
    rows.append(("clients per topic", ", ".join(map(str, CLIENTS))))
    rows += [
        (f"{CLIENTS[-1]} clients relative to {CLIENTS[0]}, {kind}", f"{times:.2f} x")
        for kind, times in figures.growth.items()
    ]
    most = f"{TOPICS[-1]} x {CLIENTS[-1]}"
    rows += [
        (f"kB/s, {most} clients, {kind}", f"{rates[most] / 1e3:,.1f}") for kind, rates in figures.bytes_per_s.items()
    ]
    return tuple(rows)


_COLOURS = {Kind.TOP8: Colour.BLUE, Kind.CENTROIDS: Colour.PURPLE, Kind.ALL_PAIRS: Colour.GREEN}
_SHOWN_TOPICS = 1000
_MOST_SHOWN = 64  # clients in the picture: all_pairs grows on in a straight line


def _chart(figures: MonitoringFigures) -> Chart:
    clients = [count for count in CLIENTS if count <= _MOST_SHOWN]
    return Chart(
        title=f"{NAME}: monitoring traffic of one broker",
        x_label="clients per topic",
        panels=(
            Panel(
                y_label="bytes per topic",
                lines=tuple(
                    Line(
                        label=str(kind),
                        x=clients,
                        y=[figures.bytes_per_topic[kind][count] for count in clients],
                        colour=colour,
                        dotted_points=True,
                    )
                    for kind, colour in _COLOURS.items()
                ),
            ),
            Panel(
                y_label="kB/s",
                lines=tuple(
                    Line(
                        label=f"{kind}, {topics:,} topics",
                        x=clients,
                        y=[figures.bytes_per_s[kind][f"{topics} x {count}"] / 1e3 for count in clients],
                        colour=colour,
                        dashed=topics != _SHOWN_TOPICS,
                    )
                    for topics in (_SHOWN_TOPICS, 100)
                    for kind, colour in _COLOURS.items()
                ),
            ),
        ),
    )
