"""Figures 4a and 4b: one topic with more and more subscribers or publishers, on one server and on three.

Dynamoth section V.C. In 4a one publisher sends 10 messages a second to 100 ... 800 subscribers, and the topic is
replicated with mode all_publishers; in 4b 100 ... 800 publishers send 10 messages a second each to one subscriber, with
mode all_subscribers. `run_flow` measures in the flow simulator, at the paper's sizes; replication_live.py measures on
real servers. `Crowd` and `report` are the same for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from nearcast.core.model.placement import Mode
from nearcast.errors import UsageError
from nearcast.experiments.chart import Chart, Colour, Limit, Line, Marks, Panel, Sign
from nearcast.experiments.result import Progress, Result, silent
from nearcast.flow.model import FlowSettings, Series
from nearcast.flow.network import Delays
from nearcast.flow.simulation import FlowSimulation
from nearcast.workloads.hot_topic import MESSAGE_BYTES, HotTopic

# --- the figures


RATE_PER_S = 10.0  # publications of each publisher (V.C)
REPLICAS = 3  # servers of the replicated topic (V.C)
GOOD_S = 0.150  # the response time a game needs (V.D)
FAILED_SHARE = 0.99  # below this share of deliveries a point has failed
CHART_MAX_MS = 600.0
TOPIC = "crowd"


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two figures: many subscribers, or many publishers."""

    name: str
    who: str
    mode: Mode  # of the replicated topic
    paper: str  # what the paper found


SUBSCRIBERS = Crowd(
    name="dynamoth-4a",
    who="subscribers",
    mode=Mode.ALL_PUBLISHERS,
    paper="one server: response time grows with the subscribers and explodes above 500; three stay low up to 800",
)
PUBLISHERS = Crowd(
    name="dynamoth-4b",
    who="publishers",
    mode=Mode.ALL_SUBSCRIBERS,
    paper="one server supports 200 publishers, three nearly 600; above that deliveries fail",
)
CROWDS = {crowd.name: crowd for crowd in (SUBSCRIBERS, PUBLISHERS)}


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. `response_ms` is None if nothing arrived."""

    servers: int
    clients: int
    response_ms: float | None
    p99_ms: float | None
    delivered_share: float

    @property
    def failed(self) -> bool:
        return self.delivered_share < FAILED_SHARE or self.response_ms is None

    @property
    def good(self) -> bool:
        return not self.failed and (self.response_ms or 0.0) < GOOD_S * 1e3


class ReplicationFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`supported_*`: the most clients such that every point up to there was below 150 ms and lost nothing.

    `ratio` is a lower bound if `range_ended`: three servers were still good at the last point.
    """

    who: str
    mode: str
    setting: str  # "flow" or "live"
    publications_per_s: float
    supported_one: int
    supported_three: int
    ratio: float | None
    range_ended: bool
    conditions: dict[str, float]
    points: list[Point]


def report(crowd: Crowd, setting: str, conditions: dict[str, float], points: Sequence[Point]) -> Result:
    """The figures, the chart and the rows of one figure."""
    one, three = supported(points, 1), supported(points, REPLICAS)
    figures = ReplicationFigures(
        who=crowd.who,
        mode=crowd.mode.value,
        setting=setting,
        publications_per_s=RATE_PER_S,
        supported_one=one,
        supported_three=three,
        ratio=three / one if one else None,
        range_ended=three == max(point.clients for point in points),
        conditions=conditions,
        points=list(points),
    )
    return Result(
        name=crowd.name,
        figures=figures,
        series={"paper": crowd.paper},
        chart=_chart(crowd, setting, points),
        rows=_rows(crowd, figures),
    )


def supported(points: Sequence[Point], servers: int) -> int:
    """The most clients before the first point that is not good; 0 if the first is not."""
    most = 0
    for point in sorted((point for point in points if point.servers == servers), key=lambda point: point.clients):
        if not point.good:
            break
        most = point.clients
    return most


def _chart(crowd: Crowd, setting: str, points: Sequence[Point]) -> Chart:
    lines, marks = [], []
    for servers, colour in ((1, Colour.ORANGE), (REPLICAS, Colour.BLUE)):
        mine = [point for point in points if point.servers == servers]
        label = "1 server" if servers == 1 else f"{servers} servers, {crowd.mode}"
        held = [point for point in mine if not point.failed]
        xs, ys = [float(point.clients) for point in held], [point.response_ms for point in held]
        lines.append(Line(label=label, x=xs, y=ys, colour=colour, dotted_points=True, dashed=servers > 1))
        failed = [float(point.clients) for point in mine if point.failed]
        if failed:
            at = [0.94 * CHART_MAX_MS if servers == 1 else 0.88 * CHART_MAX_MS] * len(failed)
            marks.append(Marks(label=f"{label}: deliveries fail", x=failed, y=at, colour=colour, sign=Sign.CROSS))
    source = "flow simulator" if setting == "flow" else "real servers, emulated capacity"
    return Chart(
        title=f"{crowd.name}: one topic with many {crowd.who} ({source})",
        x_label=f"number of {crowd.who}",
        panels=(
            Panel(
                y_label="mean response time (ms)",
                lines=tuple(lines),
                marks=tuple(marks),
                limits=(Limit(label="150 ms", y=GOOD_S * 1e3),),
                y_max=CHART_MAX_MS,
            ),
        ),
    )


def _rows(crowd: Crowd, figures: ReplicationFigures) -> tuple[tuple[str, str], ...]:
    at_least = "at least " if figures.range_ended else ""
    ratio = "unknown" if figures.ratio is None else f"{at_least}{figures.ratio:.2f}"
    return (
        (f"{crowd.who} below 150 ms, one server", f"{figures.supported_one:,}"),
        (f"{crowd.who} below 150 ms, three servers", f"{at_least}{figures.supported_three:,}"),
        ("ratio", ratio),
        ("the paper", crowd.paper),
    )


# --- in the flow simulator


class FlowSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of the runs in the flow simulator."""

    counts: tuple[int, ...] = (100, 200, 300, 400, 500, 600, 700, 800)  # V.C
    seconds: float = 60.0  # of each point: long enough for an output buffer of 8 MB to fill
    counted_s: float = 30.0  # the last of them are averaged
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 1:
            raise UsageError("counts must be one or more numbers of at least 1")
        if not 0 < self.counted_s <= self.seconds:
            raise UsageError("counted_s must be above 0 and not above seconds")


def run_flow(crowd: Crowd, delays: Delays, progress: Progress = silent, sizes: FlowSizes | None = None) -> Result:
    sizes, settings = sizes or FlowSizes(), FlowSettings()
    points: list[Point] = []
    total = 2 * len(sizes.counts)
    for servers, mode in ((1, Mode.SINGLE), (REPLICAS, crowd.mode)):
        for count in sizes.counts:
            progress(len(points), total, f"{count} {crowd.who}, servers: {servers}")
            many, one = (count, 1) if crowd is PUBLISHERS else (1, count)
            brokers = tuple(f"b{number}" for number in range(1, servers + 1))
            simulation = FlowSimulation(
                HotTopic(many, one, publications_per_s=RATE_PER_S, name=TOPIC),
                None,
                settings,
                delays,
                sizes.seed,
                brokers=servers,
                placements={TOPIC: (mode, brokers)},
            )
            points.append(_point(simulation.run(sizes.seconds), servers, count, sizes))
    progress(total, total, "done")
    conditions = {
        "cpu_s_per_delivery": settings.cpu_s_per_delivery,
        "subscriber_bytes_per_s": settings.subscriber_bytes_per_s,
        "output_buffer_bytes": settings.output_buffer_bytes,
        "capacity_bytes_per_s": settings.capacity_bytes_per_s,
        "message_bytes": MESSAGE_BYTES + settings.overhead_bytes,
        "seconds_per_point": sizes.seconds,
    }
    return report(crowd, "flow", conditions, points)


def _point(series: Series, servers: int, count: int, sizes: FlowSizes) -> Point:
    steps = max(1, round(sizes.counted_s / series.step_s))
    delivered, lost = sum(series.deliveries_per_s[-steps:]), sum(series.lost_per_s[-steps:])
    return Point(
        servers=servers,
        clients=count,
        response_ms=fmean(series.response_s[-steps:]) * 1e3,
        p99_ms=fmean(series.response_p99_s[-steps:]) * 1e3,
        delivered_share=delivered / (delivered + lost) if delivered + lost else 0.0,
    )
