"""Figure 5: how many players the same 8 servers sustain with Dynamoth and with consistent hashing (Dynamoth V.D).

Every seed is run with Dynamoth, with hashing on rings of 1, 8 and 128 virtual nodes, with the authors' own baseline,
and with the load divided perfectly. Dynamoth is run on one ring only: it begins with one server, which has all topics
whatever the ring, and moves them as it decides. `ratio` is Dynamoth's players over hashing's, `efficiency` is over
those of the perfect division. Both are computed per seed, so that what a seed does to all of them cancels out.

The runs are experiment 2: a game that grows from 120 to 1,200 players, balanced in several ways (Dynamoth V.D). Figures
5 and 6 are two views of them; see also server_load.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from nearcast.core.model.membership import VIRTUAL_NODES
from nearcast.core.model.placement import Mode, Plan
from nearcast.core.model.planning import (
    AddBroker,
    Cause,
    PlaceTopic,
    Policy,
    Proposal,
    ProposedChange,
    Reason,
    Snapshot,
)
from nearcast.errors import UsageError
from nearcast.experiments.chart import Chart, Colour, Limit, Line, Marks, Panel, Sign
from nearcast.experiments.checks import MEAN_S, Sustained, sustained
from nearcast.experiments.dynamoth.elasticity import GOOD_S, Conditions, Game
from nearcast.experiments.result import Estimate, Progress, Result, estimate, run_jobs, silent
from nearcast.flow.model import Series
from nearcast.flow.network import Delays, LognormalDelays
from nearcast.flow.simulation import FlowSimulation
from nearcast.policies.dynamoth import Dynamoth
from nearcast.policies.hash_ring import HashRing
from nearcast.workloads.rgame import Ramp

# --- the authors' baseline


LR_HIGH = 0.80  # the authors' code

_TO_NEW = Reason(Cause.NEW_BROKER, "brokers added", 1.0, 0.0)


class Shedding:
    """What the authors' published code calls consistent hashing: every server gives a new one a few of its topics.

    J. Gascon-Samson's ConsistentHashingRebalancer has no ring. When a load ratio exceeds 0.80, a server is added, and
    each of the N existing servers gives it 1/(N (N+1)) of its topics, evenly picked from their list, whatever their
    load. Equal shares would need 1/(N+1), so the new server stays below average, by more the more servers there are.
    This is not a policy of the product; it is here to explain the paper's ratio of 1.6.
    """

    name = "shedding"

    def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal:
        fresh = sorted(name for name, broker in snapshot.brokers.items() if broker.fresh)
        highest = max(broker.load_ratio for broker in snapshot.brokers.values())
        changes: list[ProposedChange] = []
        if fresh:
            changes += _shed(snapshot, plan, fresh[0])
        elif highest > LR_HIGH and snapshot.spare > 0 and snapshot.coming == 0:
            changes.append(AddBroker(Reason(Cause.HIGH_LOAD, "load_ratio", highest, LR_HIGH)))
        return Proposal(self.name, tuple(changes))


def _shed(snapshot: Snapshot, plan: Plan, new: str) -> list[PlaceTopic]:
    givers = [name for name in sorted(snapshot.brokers) if name != new]
    given: list[PlaceTopic] = []
    for giver in givers:
        topics = sorted(topic for topic, placement in plan.topics.items() if placement.brokers == (giver,))
        count = round(len(topics) / (len(givers) * (len(givers) + 1)))
        if count:
            picked = topics[:: len(topics) // count][:count]
            given += [PlaceTopic(topic, Mode.SINGLE, (new,), _TO_NEW) for topic in picked]
    return given


# --- runs


class Way(StrEnum):
    """How topics are put on servers."""

    DYNAMOTH = "dynamoth"
    HASHING = "hashing"  # consistent hashing with virtual nodes
    SHEDDING = "shedding"  # the baseline of the authors' published code, see `Shedding`
    IDEAL = "ideal"  # the load divided perfectly over all servers, from the start


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a growing game."""

    game: Game = Game()
    players_first: int = 120  # V.D
    players_last: int = 1200  # V.D
    join_every_s: float = 1.0  # ours: the paper's players 'slowly join', its figures show about a quarter of an hour
    hold_s: float = 60.0  # after the last has joined
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    virtual_nodes: tuple[int, ...] = (1, 8, VIRTUAL_NODES)

    def __post_init__(self) -> None:
        if not 0 < self.players_first < self.players_last:
            raise UsageError("players_first must be above 0 and below players_last")
        if min(self.join_every_s, self.hold_s) <= 0 or not self.seeds or not self.virtual_nodes:
            raise UsageError("join_every_s and hold_s must be above 0; give at least one seed and one virtual node")

    @property
    def ramp(self) -> Ramp:
        ends_s = (self.players_last - self.players_first) * self.join_every_s
        return Ramp(((0.0, self.players_first), (ends_s, self.players_last)))

    @property
    def seconds(self) -> float:
        return self.ramp.points[-1][0] + self.hold_s


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run to do."""

    growth: Growth
    way: Way
    seed: int
    virtual_nodes: int
    delays: Delays = LognormalDelays()

    def __str__(self) -> str:
        nodes = f", {self.virtual_nodes} virtual nodes" if self.way in (Way.DYNAMOTH, Way.HASHING) else ""
        return f"{self.way}{nodes}, seed {self.seed}"


class Done(msgspec.Struct, frozen=True):
    """The result of a run."""

    run: Run
    series: Series

    @property
    def sustained(self) -> Sustained:
        return sustained(self.series.clients, self.series.response_s, GOOD_S, step_s=self.series.step_s)


def make_runs(runs: Sequence[Run], progress: Progress = silent, workers: int | None = None) -> list[Done]:
    return run_jobs(make_run, runs, progress, workers)


def make_run(run: Run) -> Done:
    growth = run.growth
    workload, flow = growth.game.workload(growth.ramp, run.seed), growth.game.flow(run.virtual_nodes)
    if run.way is Way.IDEAL:
        brokers = tuple(f"b{number}" for number in range(1, growth.game.servers + 1))
        # In this mode, each broker sends the same share of a topic's output, and nothing is sent twice.
        placements = dict.fromkeys(workload.topics, (Mode.ALL_SUBSCRIBERS, brokers))
        simulation = FlowSimulation(workload, None, flow, run.delays, run.seed, len(brokers), placements)
    else:
        simulation = FlowSimulation(workload, _policy(run), flow, run.delays, run.seed)
    return Done(run, simulation.run(growth.seconds))


def _policy(run: Run) -> Policy:
    if run.way is Way.HASHING:
        return HashRing(run.virtual_nodes)
    return Shedding() if run.way is Way.SHEDDING else Dynamoth()


# --- the experiment


NAME = "dynamoth-5"
PAPER = {"players_dynamoth": 1000, "players_hashing": 625, "ratio": 1.6}  # V.D, read from the text
DEFINITION = (
    f"players in the last second at which the average response time, averaged over {MEAN_S:g} s, "
    f"was below {GOOD_S * 1e3:g} ms"
)
CHART_MAX_MS = 400.0

Interval = tuple[float, float]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Dynamoth against one baseline: means over the seeds, with 95 % confidence intervals."""

    players_dynamoth: float
    players_dynamoth_ci95: Interval
    players_hashing: float
    players_hashing_ci95: Interval
    ratio: float
    ratio_ci95: Interval
    efficiency: float
    efficiency_ci95: Interval
    seconds_above_dynamoth: float  # above the limit before the end: jumps at rebalancings
    seconds_above_hashing: float
    first_breach_dynamoth: float  # players when the limit was first passed, however briefly
    first_breach_hashing: float


class ScalabilityFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The five main figures are those with the product's own number of virtual nodes."""

    players_dynamoth: float
    players_dynamoth_ci95: Interval
    players_hashing: float
    players_hashing_ci95: Interval
    players_ideal: float
    players_ideal_ci95: Interval
    ratio: float
    ratio_ci95: Interval
    efficiency: float
    efficiency_ci95: Interval
    range_ended: bool  # some run was still good with the last player: its figures are lower bounds
    virtual_nodes: int
    by_virtual_nodes: dict[int, Comparison]
    authors_baseline: Comparison
    paper: dict[str, float]
    sustained_means: str
    seeds: tuple[int, ...]
    conditions: Conditions


def run_scalability(
    growth: Growth, delays: Delays | None = None, progress: Progress = silent, workers: int | None = None
) -> Result:
    ways = [(way, VIRTUAL_NODES) for way in (Way.IDEAL, Way.DYNAMOTH, Way.SHEDDING)]
    ways += [(Way.HASHING, nodes) for nodes in growth.virtual_nodes]
    runs = [
        Run(growth=growth, way=way, seed=seed, virtual_nodes=nodes, delays=delays or LognormalDelays())
        for way, nodes in ways
        for seed in growth.seeds
    ]
    done = make_runs(runs, progress, workers)
    figures = _figures(growth, done)
    shown = {way: _of(done, way, figures.virtual_nodes)[0].series for way in (Way.DYNAMOTH, Way.HASHING, Way.IDEAL)}
    return Result(
        name=NAME,
        figures=figures,
        series={"seed": growth.seeds[0], **{way.value: _columns(series) for way, series in shown.items()}},
        chart=_chart(shown[Way.DYNAMOTH], shown[Way.HASHING], figures),
        rows=_rows(figures),
    )


def _of(done: Sequence[Done], way: Way, virtual_nodes: int = VIRTUAL_NODES) -> list[Done]:
    nodes = virtual_nodes if way is Way.HASHING else VIRTUAL_NODES
    return [each for each in done if each.run.way is way and each.run.virtual_nodes == nodes]


# --- figures


def _figures(growth: Growth, done: Sequence[Done]) -> ScalabilityFigures:
    nodes = growth.virtual_nodes
    headline = VIRTUAL_NODES if VIRTUAL_NODES in nodes else nodes[-1]
    dynamoth, ideal = _of(done, Way.DYNAMOTH), _of(done, Way.IDEAL)
    compared = {each: _compare(dynamoth, _of(done, Way.HASHING, each), ideal) for each in nodes}
    shedding = _compare(dynamoth, _of(done, Way.SHEDDING), ideal)
    best, perfect = compared[headline], estimate(_players(ideal))
    return ScalabilityFigures(
        players_dynamoth=best.players_dynamoth,
        players_dynamoth_ci95=best.players_dynamoth_ci95,
        players_hashing=best.players_hashing,
        players_hashing_ci95=best.players_hashing_ci95,
        players_ideal=perfect.mean,
        players_ideal_ci95=perfect.interval,
        ratio=best.ratio,
        ratio_ci95=best.ratio_ci95,
        efficiency=best.efficiency,
        efficiency_ci95=best.efficiency_ci95,
        range_ended=not all(each.sustained.ended for each in done),
        virtual_nodes=headline,
        by_virtual_nodes=compared,
        authors_baseline=shedding,
        paper=PAPER,
        sustained_means=DEFINITION,
        seeds=growth.seeds,
        conditions=growth.game.conditions,
    )


def _compare(dynamoth: Sequence[Done], hashing: Sequence[Done], ideal: Sequence[Done]) -> Comparison:
    mine, theirs = estimate(_players(dynamoth)), estimate(_players(hashing))
    ratio, efficiency = _quotient(dynamoth, hashing), _quotient(dynamoth, ideal)
    return Comparison(
        players_dynamoth=mine.mean,
        players_dynamoth_ci95=mine.interval,
        players_hashing=theirs.mean,
        players_hashing_ci95=theirs.interval,
        ratio=ratio.mean,
        ratio_ci95=ratio.interval,
        efficiency=efficiency.mean,
        efficiency_ci95=efficiency.interval,
        seconds_above_dynamoth=estimate([each.sustained.seconds_above_before for each in dynamoth]).mean,
        seconds_above_hashing=estimate([each.sustained.seconds_above_before for each in hashing]).mean,
        first_breach_dynamoth=estimate([float(each.sustained.clients_at_first_breach) for each in dynamoth]).mean,
        first_breach_hashing=estimate([float(each.sustained.clients_at_first_breach) for each in hashing]).mean,
    )


def _players(done: Sequence[Done]) -> list[float]:
    return [float(each.sustained.clients) for each in done]


def _quotient(ours: Sequence[Done], others: Sequence[Done]) -> Estimate:
    """The quotient per seed; a baseline that was never below the limit counts as one player."""
    pairs = zip(_players(ours), _players(others), strict=True)
    return estimate([mine / max(theirs, 1.0) for mine, theirs in pairs])


def _rows(figures: ScalabilityFigures) -> tuple[tuple[str, str], ...]:
    rows = [
        ("players, Dynamoth", _with_interval(figures.players_dynamoth, figures.players_dynamoth_ci95, 0)),
        ("players, consistent hashing", _with_interval(figures.players_hashing, figures.players_hashing_ci95, 0)),
        ("players, load divided perfectly", _with_interval(figures.players_ideal, figures.players_ideal_ci95, 0)),
        ("ratio, Dynamoth / hashing", _with_interval(figures.ratio, figures.ratio_ci95, 2)),
        ("efficiency, Dynamoth / perfect", _with_interval(figures.efficiency, figures.efficiency_ci95, 3)),
    ]
    for nodes, compared in figures.by_virtual_nodes.items():
        rows.append((f"ratio, virtual nodes: {nodes}", _with_interval(compared.ratio, compared.ratio_ci95, 2)))
    authors = figures.authors_baseline
    rows.append(("ratio to the authors' own baseline", _with_interval(authors.ratio, authors.ratio_ci95, 2)))
    rows.append(("ratio in the paper", f"{PAPER['ratio']:g}"))
    if figures.range_ended:
        rows.append(("lower bounds only", "a run was still good with the last player: use more with --players"))
    tiles, seeds = figures.conditions.tiles, len(figures.seeds)
    rows.append(("tiles, servers, seeds", f"{tiles}, {figures.conditions.servers}, {seeds}"))
    return tuple(rows)


def _with_interval(mean: float, interval: Interval, digits: int) -> str:
    return f"{mean:,.{digits}f}  (95 %: {interval[0]:,.{digits}f} to {interval[1]:,.{digits}f})"


# --- series and chart


def _columns(series: Series) -> dict[str, Any]:
    return {
        "at_s": series.at_s,
        "players": series.clients,
        "deliveries_per_s": [round(value, 1) for value in series.deliveries_per_s],
        "lost_per_s": [round(value, 1) for value in series.lost_per_s],
        "servers": series.brokers,
        "load_ratio_mean": [round(value, 4) for value in series.load_ratio_mean],
        "load_ratio_max": [round(value, 4) for value in series.load_ratio_max],
        "response_s": [round(value, 5) for value in series.response_s],
        "rebalancings_s": [each.at_s for each in series.rebalancings],
    }


def _chart(dynamoth: Series, hashing: Series, figures: ScalabilityFigures) -> Chart:
    sides = (("Dynamoth", dynamoth, Colour.BLUE, Sign.DIAMOND), ("hashing", hashing, Colour.ORANGE, Sign.CIRCLE))
    players = Line(label="players", x=dynamoth.at_s, y=dynamoth.clients, colour=Colour.GREY)
    messages = [
        Line(label=f"{name}: messages", x=series.at_s, y=series.deliveries_per_s, colour=colour)
        for name, series, colour, _ in sides
    ]
    servers = [
        Line(label=f"{name}: servers", x=series.at_s, y=series.brokers, colour=colour, dashed=True, steps=True)
        for name, series, colour, _ in sides
    ]
    responses = [
        Line(label=name, x=series.at_s, y=[value * 1e3 for value in series.response_s], colour=colour)
        for name, series, colour, _ in sides
    ]
    nodes = figures.virtual_nodes
    return Chart(
        title=f"{NAME}: a growing game on up to {figures.conditions.servers} servers (hashing: {nodes} virtual nodes)",
        x_label="time (s)",
        panels=(
            Panel(y_label="players", lines=(players,)),
            Panel(
                y_label="outgoing messages (1/s)",
                lines=tuple(messages),
                right_label="servers",
                right_lines=tuple(servers),
            ),
            Panel(
                y_label="average response time (ms)",
                lines=tuple(responses),
                marks=tuple(_rebalancings(*side) for side in sides),
                limits=(Limit(label="150 ms", y=GOOD_S * 1e3),),
                y_max=CHART_MAX_MS,
            ),
        ),
    )


def _rebalancings(name: str, series: Series, colour: Colour, sign: Sign) -> Marks:
    """Marks on the curve, or at the top where the curve leaves the picture."""
    times = [each.at_s for each in series.rebalancings]
    on_curve = [min(series.response_s[round(at_s / series.step_s)] * 1e3, 0.98 * CHART_MAX_MS) for at_s in times]
    return Marks(label=f"{name}: rebalancing", x=times, y=on_curve, colour=colour, sign=sign)
