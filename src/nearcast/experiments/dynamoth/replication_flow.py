"""Figures 4a and 4b in the flow simulator, at the paper's sizes."""

from __future__ import annotations

from statistics import fmean

import msgspec

from nearcast.core.placement import Mode
from nearcast.errors import UsageError
from nearcast.experiments.dynamoth.replication import PUBLISHERS, RATE_PER_S, REPLICAS, TOPIC, Crowd, Point, report
from nearcast.experiments.result import Progress, Result, silent
from nearcast.flow.delays import Delays
from nearcast.flow.series import Series
from nearcast.flow.settings import FlowSettings
from nearcast.flow.simulation import FlowSimulation
from nearcast.workloads.hot_topic import MESSAGE_BYTES, HotTopic


class FlowSizes(msgspec.Struct, frozen=True, kw_only=True):
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
