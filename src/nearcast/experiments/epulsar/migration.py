"""Figure 7: how long clients notice a move of their topic, and how long the move takes, with a distant controller.

Two brokers, topics with one client each, moved from the first broker to the second and back, 16 in flight. Brokers and
clients are in one place. The controller and the store are `delay_ms` away from the brokers, one way. All of it is real:
servers, agents, controller, clients, and every message of the streams; only the distance is emulated.

What is measured
- gap: the longest silence of a topic's stream at its subscriber around a move, beyond the publishing interval. It is
  our client's downtime: it is connected to both brokers during a move. Two more topics, one on each broker, never move
  and are published on ten times as often. What silences them at the same moment is not the move but the machine, which
  runs everything on a few cores; the gap is without it, `raw` with it. `still` is raw, while nothing moves.
- first: the gap of the first move of every topic, to a broker that its client has not used before.
- release: from the order to release the topic to "release complete", the paper's migration time (section 3.6).
- move: from the request until everyone knows, preparation and reconnection included; `queued` with the wait for a turn.
- the baseline (sequential.py): the same release time, and from its client's disconnection to its new connection.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import msgspec

from nearcast.core.model.placement import Mode
from nearcast.errors import UsageError
from nearcast.experiments.chart import Chart, Colour, Limit, Line, Panel
from nearcast.experiments.epulsar.moving import Moved, move_topics
from nearcast.experiments.epulsar.sequential import Sequential, Unloaded
from nearcast.experiments.epulsar.streams import Streams, Tally, gap_s, raw_gap_s
from nearcast.experiments.result import Progress, Result, silent
from nearcast.runtime.console import Console
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.load import percentile
from nearcast.testing.network.emulated import EmulatedNetwork, Endpoint
from nearcast.testing.network.sites import Site, World

GAP_MOST_MS = 20.0  # what we promise
BROKERS = ("b1", "b2")
SITE = "edge"
AFTER_S = 0.3  # a silence that begins this long after a move is not its fault
WARM_S = 1.0  # a client's first message waits until it knows where the topic is
STILL_S = 2.0  # how long the streams are watched without moves
SETTLE_S = 0.5  # between two rounds
STILL_TOPICS = {"still.1": BROKERS[0], "still.2": BROKERS[1]}
STILL_PER_S = 200.0


class MigrationSettings(msgspec.Struct, frozen=True, kw_only=True):
    delays_ms: tuple[float, ...] = (0.0, 20.0, 40.0, 60.0, 80.0)  # one way, brokers to controller and store
    topics: int = 128
    in_flight: int = 16
    rounds: int = 2  # of each delay: there and back
    rate_per_s: float = 20.0  # of each topic's stream
    baseline_topics: int = 32  # it takes their number times several round trips
    counts: tuple[int, ...] = (16, 32, 64, 128)  # figure 7b
    executors: tuple[int, ...] = (4, 16)
    counts_delay_ms: float = 40.0

    def __post_init__(self) -> None:
        if min(self.delays_ms, default=-1.0) < 0 or not 20 <= self.rate_per_s <= 200:
            raise UsageError("delays_ms must be 0 or more, rate_per_s from 20 to 200")
        if min(self.topics, self.in_flight, self.rounds, self.baseline_topics, *self.executors) < 1:
            raise UsageError("topics, in_flight, rounds, baseline_topics and executors must be 1 or more")
        if max((*self.counts, self.baseline_topics)) > self.topics:
            raise UsageError("counts and baseline_topics must not be above topics")


class DelayPoint(msgspec.Struct, frozen=True, kw_only=True):
    """All moves at one distance. Milliseconds."""

    delay_ms: float
    moves: int
    gap_p50: float
    gap_p99: float
    gap_most: float
    raw_p99: float
    still_p99: float
    release_p50: float
    move_p50: float
    queued_p50: float
    baseline_release_p50: float
    baseline_downtime_p50: float
    baseline_downtime_p99: float


class CountPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Figure 7b: all moves of so many topics. `in_flight` is 0 for the baseline. Milliseconds."""

    topics: int
    in_flight: int
    queued_p50: float
    move_p50: float


class MigrationFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. Gaps are the worst of all distances."""

    client_gap_ms_p99: float
    client_gap_ms_most: float
    client_gap_raw_ms_p99: float
    still_gap_ms_p99: float
    first_gap_ms_p99: float
    gap_bound_ms: float
    within_bound: bool
    lost: int
    gaps: int
    interruptions: int
    moves: int
    messages: int
    rate_per_s: float
    topics: int
    in_flight: int
    baseline_topics: int
    baseline_round_trips: float | None  # by which its downtime grows with the distance
    delays: tuple[DelayPoint, ...]
    counts: tuple[CountPoint, ...]


# --- running


class _Stage:
    """A cluster whose agents reach the store over a link of any length."""

    def __init__(self, settings: MigrationSettings) -> None:
        self.settings = settings
        self.topics = [f"moved.{number}" for number in range(settings.topics)]
        self.tally = Tally()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> _Stage:
        world = World((Site(SITE, 0.0),), {}, jitter_share=0.0)
        network = await self._stack.enter_async_context(EmulatedNetwork(world, random.Random(0)))
        self._wan: Endpoint = await network.attach("brokers", SITE)

        async def over_the_wan(broker: str, store_url: str) -> str:
            if not network.knows(store_url):
                await network.place(store_url, SITE)
            return self._wan.resolve(store_url)

        try:
            self.cluster = await self._stack.enter_async_context(
                await LocalCluster.start(brokers=BROKERS, store_for=over_the_wan)
            )
            self.console: Console = await self.cluster.console()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    def set_delay(self, delay_ms: float) -> None:
        self._wan.move(access_delay_s=delay_ms / 1e3)

    async def place_all(self) -> None:
        at = dict.fromkeys(self.topics, BROKERS[0]) | STILL_TOPICS
        await self.console.move_all({topic: (Mode.SINGLE, (broker,)) for topic, broker in at.items()})

    def sequential(self) -> Sequential:
        store_url = self.cluster.store_url
        far_url = self._wan.resolve(store_url)
        return Sequential(self.cluster.urls, store_url, dict.fromkeys(BROKERS, far_url))


async def run_migration(settings: MigrationSettings, progress: Progress = silent) -> Result:
    total = len(settings.delays_ms) + len(settings.executors) + 2
    progress(0, total, f"starting {len(BROKERS)} brokers")
    async with _Stage(settings) as stage:
        await stage.place_all()
        urls = list(stage.cluster.urls.values())
        points: list[DelayPoint] = []
        counted: list[CountPoint] = []
        streams, still = Streams(urls, stage.topics, settings.rate_per_s), Streams(urls, [*STILL_TOPICS], STILL_PER_S)
        async with streams, still:
            await asyncio.sleep(WARM_S)
            gc.freeze()  # a collection of everything would be a silence that no move caused
            first_ms = await _first_gap_ms(stage, streams, still)
            for number, delay_ms in enumerate(settings.delays_ms, start=1):
                progress(number, total, f"{delay_ms:g} ms to the controller, {settings.topics} topics")
                points.append(await _at_distance(stage, streams, still, delay_ms))
            stage.set_delay(settings.counts_delay_ms)
            for number, in_flight in enumerate(settings.executors, start=len(points) + 1):
                progress(number, total, f"{in_flight} in flight, {settings.counts_delay_ms:g} ms")
                counted += [await _counted(stage, count, in_flight) for count in settings.counts]
        gc.unfreeze()
        progress(total - 1, total, "the baseline, one topic after another")
        for count in settings.counts:
            counted.append(await _counted_baseline(stage, count))
    progress(total, total, "done")
    return report(settings, points, counted, streams.tally, first_ms)


async def _first_gap_ms(stage: _Stage, streams: Streams, still: Streams) -> float:
    """Move every topic once, and back."""
    first = await move_topics(stage.console, stage.topics, BROKERS[1], stage.settings.in_flight)
    await asyncio.sleep(SETTLE_S)
    gaps_s = [gap_s(streams, still, each.topic, each.begun_s, each.ended_s + AFTER_S) for each in first]
    await move_topics(stage.console, stage.topics, BROKERS[0], stage.settings.in_flight)
    await asyncio.sleep(SETTLE_S)
    return _ms(gaps_s, 99)


async def _at_distance(stage: _Stage, streams: Streams, still: Streams, delay_ms: float) -> DelayPoint:
    stage.set_delay(delay_ms)
    settings, moves = stage.settings, list[Moved]()
    still_from_s = time.time()
    await asyncio.sleep(STILL_S)
    still_to_s = time.time()
    for number in range(settings.rounds):
        target = BROKERS[1 - number % 2]
        moves += await move_topics(stage.console, stage.topics, target, settings.in_flight)
        await asyncio.sleep(SETTLE_S)
    spans = [(moved.topic, moved.begun_s, moved.ended_s + AFTER_S) for moved in moves]
    gaps_s = [gap_s(streams, still, *span) for span in spans]
    raw_s = [raw_gap_s(streams, *span) for span in spans]
    still_s = [raw_gap_s(streams, topic, still_from_s, still_to_s) for topic in stage.topics]
    baseline = await _baseline(stage, settings.baseline_topics)
    if settings.rounds % 2:
        await move_topics(stage.console, stage.topics, BROKERS[0], settings.in_flight)
    return DelayPoint(
        delay_ms=delay_ms,
        moves=len(moves),
        gap_p50=_ms(gaps_s, 50),
        gap_p99=_ms(gaps_s, 99),
        gap_most=_ms(gaps_s, 100),
        raw_p99=_ms(raw_s, 99),
        still_p99=_ms(still_s, 99),
        release_p50=_median_ms(moves, lambda moved: moved.release_s),
        move_p50=_median_ms(moves, lambda moved: moved.move_s),
        queued_p50=_median_ms(moves, lambda moved: moved.queued_move_s),
        baseline_release_p50=_ms([each.release_s for each in baseline], 50),
        baseline_downtime_p50=_ms([each.downtime_s for each in baseline], 50),
        baseline_downtime_p99=_ms([each.downtime_s for each in baseline], 99),
    )


async def _baseline(stage: _Stage, topics: int) -> list[Unloaded]:
    async with stage.sequential() as sequential:
        return await sequential.move_topics(stage.topics[:topics], *BROKERS)


async def _counted(stage: _Stage, count: int, in_flight: int) -> CountPoint:
    moves = list[Moved]()
    for target in reversed(BROKERS):
        moves += await move_topics(stage.console, stage.topics[:count], target, in_flight)
    return CountPoint(
        topics=count,
        in_flight=in_flight,
        queued_p50=_median_ms(moves, lambda moved: moved.queued_move_s),
        move_p50=_median_ms(moves, lambda moved: moved.move_s),
    )


async def _counted_baseline(stage: _Stage, count: int) -> CountPoint:
    unloaded = await _baseline(stage, count)
    return CountPoint(
        topics=count,
        in_flight=0,
        queued_p50=_ms([each.queued_release_s for each in unloaded], 50),
        move_p50=_ms([each.release_s for each in unloaded], 50),
    )


def _median_ms(moves: Sequence[Moved], time_s: Callable[[Moved], float]) -> float:
    return _ms([time_s(moved) for moved in moves], 50)


def _ms(values_s: Sequence[float], percent: int) -> float:
    return round((percentile(values_s, percent) or 0.0) * 1e3, 1)


# --- reporting


def report(
    settings: MigrationSettings,
    points: Sequence[DelayPoint],
    counted: Sequence[CountPoint],
    tally: Tally,
    first_gap_ms: float,
) -> Result:
    worst = max(point.gap_p99 for point in points)
    figures = MigrationFigures(
        client_gap_ms_p99=worst,
        client_gap_ms_most=max(point.gap_most for point in points),
        client_gap_raw_ms_p99=max(point.raw_p99 for point in points),
        still_gap_ms_p99=max(point.still_p99 for point in points),
        first_gap_ms_p99=first_gap_ms,
        gap_bound_ms=GAP_MOST_MS,
        within_bound=worst <= GAP_MOST_MS,
        lost=tally.lost,
        gaps=tally.gaps,
        interruptions=tally.interruptions,
        moves=sum(point.moves for point in points),
        messages=tally.published,
        rate_per_s=settings.rate_per_s,
        topics=settings.topics,
        in_flight=settings.in_flight,
        baseline_topics=settings.baseline_topics,
        baseline_round_trips=round_trips(points),
        delays=tuple(points),
        counts=tuple(counted),
    )
    series = {"delays": points, "counts": counted, "settings": settings}
    return Result(name="epulsar-7", figures=figures, series=series, chart=chart(settings, points), rows=_rows(figures))


def round_trips(points: Sequence[DelayPoint]) -> float | None:
    """How many round trips to the controller the baseline's downtime contains; None with one distance only."""
    first, last = points[0], points[-1]
    if first.delay_ms == last.delay_ms:
        return None
    longer_ms = last.baseline_downtime_p50 - first.baseline_downtime_p50
    return round(longer_ms / (2 * (last.delay_ms - first.delay_ms)), 2)


def chart(settings: MigrationSettings, points: Sequence[DelayPoint]) -> Chart:
    delays = [point.delay_ms for point in points]

    def line(label: str, values: list[float], colour: Colour, *, dashed: bool = False) -> Line:
        return Line(label=label, x=delays, y=values, colour=colour, dashed=dashed, dotted_points=True)

    return Chart(
        title=f"{settings.topics} topics move, {settings.in_flight} in flight (ePulsar, figure 7)",
        x_label="one-way delay between brokers and controller (ms)",
        panels=(
            Panel(
                y_label="downtime (ms)",
                lines=(
                    line("nearcast: gap, p99", [point.gap_p99 for point in points], Colour.BLUE),
                    line("one by one, with look-up", [p.baseline_downtime_p50 for p in points], Colour.ORANGE),
                ),
            ),
            Panel(
                y_label="gap (ms)",
                lines=(
                    line("gap, p99", [point.gap_p99 for point in points], Colour.BLUE),
                    line("gap, p50", [point.gap_p50 for point in points], Colour.GREEN),
                    line("with stalls of the machine", [point.raw_p99 for point in points], Colour.GREY, dashed=True),
                ),
                limits=(Limit(label=f"{GAP_MOST_MS:g} ms", y=GAP_MOST_MS),),
            ),
            Panel(
                y_label="time of a move (ms)",
                lines=(
                    line("whole move", [point.move_p50 for point in points], Colour.BLUE),
                    line("release alone", [point.release_p50 for point in points], Colour.GREEN),
                    line("release, one by one", [p.baseline_release_p50 for p in points], Colour.ORANGE),
                ),
            ),
        ),
    )


def _rows(figures: MigrationFigures) -> tuple[tuple[str, str], ...]:
    nearest, furthest = figures.delays[0], figures.delays[-1]
    span = f"{nearest.delay_ms:g} to {furthest.delay_ms:g} ms"
    counts = [
        (
            f"{point.topics} topics, {f'{point.in_flight} in flight' if point.in_flight else 'one by one'}",
            f"{point.queued_p50:,.0f} ms with queueing, {point.move_p50:,.0f} ms without",
        )
        for point in figures.counts
    ]
    return (
        ("client gap, p99, worst distance", f"{figures.client_gap_ms_p99:.1f} ms"),
        ("client gap, longest of all", f"{figures.client_gap_ms_most:.1f} ms"),
        ("with stalls of the machine, p99", f"{figures.client_gap_raw_ms_p99:.1f} ms"),
        ("without moves, p99", f"{figures.still_gap_ms_p99:.1f} ms"),
        ("first move of each topic, p99", f"{figures.first_gap_ms_p99:.1f} ms"),
        ("lost messages", f"{figures.lost} of {figures.messages:,}"),
        ("moves", f"{figures.moves:,}, {figures.in_flight} in flight"),
        ("stream of each topic", f"{figures.rate_per_s:g} messages a second"),
        (f"whole move, {span}", f"{nearest.move_p50:.0f} to {furthest.move_p50:.0f} ms"),
        (f"release, {span}", f"{nearest.release_p50:.0f} to {furthest.release_p50:.0f} ms"),
        (
            f"baseline: downtime, {span}",
            f"{nearest.baseline_downtime_p50:.0f} to {furthest.baseline_downtime_p50:.0f} ms",
        ),
        ("baseline: round trips in it", str(figures.baseline_round_trips)),
        *counts,
    )
