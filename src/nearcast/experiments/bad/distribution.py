"""Figure 13: clients and loads of ten brokers after the nearest placement, with LDM and with GSH (section 6.2.2).

Also measured: whether LDM reaches its alpha and GSH 0.05, how long after the policy's first plan, and for how much of
the time after that; and how much of LDM's incoming load SDM saves. In the paper's simulation every broker holds every
backend subscription, no matter who is moved, so nothing can be saved. In a second world people ask mostly for what is
near them, so that sharing can save something.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from nearcast.experiments.bad.prototype import X_LABEL, columns, cov_panel, curve, load_panels
from nearcast.experiments.bad.runs import (
    Balancing,
    Conditions,
    Measures,
    Placement,
    Runs,
    Simulation,
    Way,
    conditions_of,
    incoming_saved,
    make_runs,
    measures_of,
)
from nearcast.experiments.chart import Chart, Colour, Panel
from nearcast.experiments.result import Progress, Result, estimate, silent
from nearcast.flow.gateways import GatewaySeries

NAME = "bad-13"
GSH_GOAL = 0.05
LOCAL_SHARE = 0.9  # of the subscriptions in the second world

NR = Way(Placement.NR, Balancing.NONE)
LDM_015 = Way(Placement.NR, Balancing.LDM, 0.15)  # 6.2.2
LDM_005 = Way(Placement.NR, Balancing.LDM, 0.05)  # 6.2.2, figure 14
SDM_015 = Way(Placement.NR, Balancing.SDM, 0.15)
GSH = Way(Placement.NR, Balancing.LDM_GSH, 0.15)

Interval = tuple[float, float]


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """How a way of balancing reached its goal. Times are from the policy's first plan, and the worst seed counts."""

    goal: float
    reached: bool  # in every seed
    reached_after_s: float | None
    share_of_time_kept: float  # how much of the time after that was at or below the goal, mean of the seeds
    cov_lowest: float  # the highest of the seeds
    cov_highest_later: float | None  # after it was reached, the highest of the seeds
    cov_end: float  # at the end, the highest of the seeds
    moves_of_first_plan: float
    moves_later: float


class DistributionFigures(msgspec.Struct, frozen=True, kw_only=True):
    nr_clients_most: int  # of one broker, the lowest of the seeds
    nr_clients_fewest: int  # of one broker, the highest of the seeds
    nr_cov: float
    nr_cov_ci95: Interval
    ldm_015_cov: float
    ldm_015_cov_ci95: Interval
    ldm_015_reached: bool
    ldm_005_cov: float
    ldm_005_cov_ci95: Interval
    ldm_005_reached: bool
    gsh_cov: float
    gsh_cov_ci95: Interval
    gsh_below_005: bool
    sdm_incoming_saved_share: float  # of LDM's, both with alpha 0.15
    sdm_incoming_saved_share_ci95: Interval
    sdm_incoming_saved_share_local: float  # in the second world
    sdm_incoming_saved_share_local_ci95: Interval
    ldm_incoming_added_share_local: float  # of what NR has without balancing
    sdm_incoming_added_share_local: float
    goals: dict[str, Goal]
    ways: dict[str, Measures]
    clients: dict[str, list[int]]  # by broker at the end, first seed
    load_bytes_per_s: dict[str, list[float]]  # by broker, mean after everybody has subscribed, first seed
    seeds: tuple[int, ...]
    conditions: Conditions


def run_distribution(
    bench: Simulation, seeds: Sequence[int], progress: Progress = silent, workers: int | None = None
) -> Result:
    runs = make_runs(bench, (NR, LDM_015, LDM_005, SDM_015, GSH), seeds, progress, workers)
    local_scale = msgspec.structs.replace(bench.scale, local_share=LOCAL_SHARE)
    local = msgspec.structs.replace(bench, scale=local_scale)
    near = make_runs(local, (NR, LDM_015, SDM_015), seeds, progress, workers)
    figures = _figures(runs, near)
    return Result(
        name=NAME,
        figures=figures,
        series={"seed": runs.seeds[0], **{name: columns(runs.first(way)) for name, way in _NAMED.items()}},
        chart=_chart(runs),
        rows=_rows(figures, bench),
    )


_NAMED = {"nr": NR, "ldm_015": LDM_015, "ldm_005": LDM_005, "sdm_015": SDM_015, "gsh": GSH}
_GOALS = {"ldm_015": 0.15, "ldm_005": 0.05, "sdm_015": 0.15, "gsh": GSH_GOAL}


def _figures(runs: Runs, near: Runs) -> DistributionFigures:
    ways = {name: measures_of(runs, way) for name, way in _NAMED.items()}
    goals = {name: _goal(runs.done[_NAMED[name]], goal) for name, goal in _GOALS.items()}
    saved, saved_local = (incoming_saved(each, SDM_015, LDM_015) for each in (runs, near))
    return DistributionFigures(
        nr_clients_most=min(int(series.clients[-1].max()) for series in runs.done[NR]),
        nr_clients_fewest=max(int(series.clients[-1].min()) for series in runs.done[NR]),
        nr_cov=ways["nr"].cov,
        nr_cov_ci95=ways["nr"].cov_ci95,
        ldm_015_cov=ways["ldm_015"].cov,
        ldm_015_cov_ci95=ways["ldm_015"].cov_ci95,
        ldm_015_reached=goals["ldm_015"].reached,
        ldm_005_cov=ways["ldm_005"].cov,
        ldm_005_cov_ci95=ways["ldm_005"].cov_ci95,
        ldm_005_reached=goals["ldm_005"].reached,
        gsh_cov=ways["gsh"].cov,
        gsh_cov_ci95=ways["gsh"].cov_ci95,
        gsh_below_005=goals["gsh"].reached,
        sdm_incoming_saved_share=saved.mean,
        sdm_incoming_saved_share_ci95=saved.interval,
        sdm_incoming_saved_share_local=saved_local.mean,
        sdm_incoming_saved_share_local_ci95=saved_local.interval,
        ldm_incoming_added_share_local=-incoming_saved(near, LDM_015, NR).mean,
        sdm_incoming_added_share_local=-incoming_saved(near, SDM_015, NR).mean,
        goals=goals,
        ways=ways,
        clients={name: runs.first(way).clients[-1].tolist() for name, way in _NAMED.items()},
        load_bytes_per_s={name: _mean_loads(runs, way) for name, way in _NAMED.items()},
        seeds=runs.seeds,
        conditions=conditions_of(runs.bench),
    )


def _mean_loads(runs: Runs, way: Way) -> list[float]:
    return [round(float(load)) for load in runs.first(way).loads[runs.bench.subscribed_s :].mean(axis=0)]


def _goal(done: Sequence[GatewaySeries], goal: float) -> Goal:
    after_s, kept, highest = [], [], []
    for series in done:
        began_s = series.rebalanced[0].at_s if series.rebalanced else series.seconds
        there = np.flatnonzero(series.cov[began_s:] <= goal)
        if len(there):
            later = series.cov[began_s + there[0] :]
            after_s.append(float(there[0]))
            kept.append(float((later <= goal).mean()))
            highest.append(float(later.max()))
    everywhere = len(after_s) == len(done)
    return Goal(
        goal=goal,
        reached=everywhere,
        reached_after_s=max(after_s) if everywhere else None,
        share_of_time_kept=sum(kept) / len(done),
        cov_lowest=max(_lowest(series) for series in done),
        cov_highest_later=max(highest) if everywhere else None,
        cov_end=max(float(series.cov[-1]) for series in done),
        moves_of_first_plan=estimate([float(series.moves[-1] - series.moves_later) for series in done]).mean,
        moves_later=estimate([float(series.moves_later) for series in done]).mean,
    )


def _lowest(series: GatewaySeries) -> float:
    loaded = series.cov[series.loads.sum(axis=1) > 0]
    return float(loaded.min()) if len(loaded) else 0.0


def _chart(runs: Runs) -> Chart:
    shown = {"NR": NR, "NR + LDM 0.15": LDM_015, "NR + GSH": GSH}
    coloured = dict(zip(shown, (Colour.GREY, Colour.BLUE, Colour.ORANGE), strict=True))
    clients = []
    for name, way in shown.items():
        series = runs.first(way)
        clients.append(curve(f"{name}, most", series, series.clients.max(axis=1), coloured[name]))
    for name, way in shown.items():
        series = runs.first(way)
        clients.append(curve(f"{name}, fewest", series, series.clients.min(axis=1), coloured[name], dashed=True))
    covs = [curve(name, runs.first(way), runs.first(way).cov, coloured[name]) for name, way in shown.items()]
    covs.append(curve("NR + LDM 0.05", runs.first(LDM_005), runs.first(LDM_005).cov, Colour.GREEN))
    return Chart(
        title=f"{NAME}: ten brokers, nearest placement (seed {runs.seeds[0]})",
        x_label=X_LABEL,
        panels=(
            *load_panels({name: runs.first(way) for name, way in shown.items()}, runs.bench.unit),
            Panel(y_label="clients of a broker", lines=tuple(clients)),
            cov_panel(covs, (0.15, 0.05)),
        ),
    )


def _rows(figures: DistributionFigures, bench: Simulation) -> tuple[tuple[str, str], ...]:
    rows = [("NR: clients of a broker", f"{figures.nr_clients_most:,} or more, down to {figures.nr_clients_fewest:,}")]
    for name, measures in figures.ways.items():
        low, high = measures.cov_ci95
        text = f"cov {measures.cov:.4f} (95 %: {low:.4f} to {high:.4f}), "
        text += f"busiest broker {bench.unit.text(measures.highest_load_bytes_per_s)}"
        rows.append((name, text))
    for name, goal in figures.goals.items():
        when = f"{goal.reached_after_s:.0f} s after its first plan" if goal.reached_after_s is not None else "never"
        text = f"{when}, then {goal.share_of_time_kept:.1%} of the time"
        text += f", highest {goal.cov_highest_later:.4f}" if goal.cov_highest_later is not None else ""
        rows.append((f"{name}: at or below {goal.goal:g}", text))
        rows.append((f"{name}: moves", f"{goal.moves_of_first_plan:,.0f} at once, {goal.moves_later:,.0f} later"))
    rows.append(("incoming load saved by SDM", f"{figures.sdm_incoming_saved_share:.2%} of LDM's"))
    rows.append(("  with local interests", f"{figures.sdm_incoming_saved_share_local:.2%} of LDM's"))
    return (*rows, ("seeds", str(len(figures.seeds))))
