"""Figure 6: the load ratios of the servers while the game grows, with Dynamoth (section V.D).

In the paper, the average stays below 1 until the whole system is overloaded, and the busiest server's ratio stays below
1 most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from nearcast.core.model.membership import VIRTUAL_NODES
from nearcast.experiments.chart import Chart, Colour, Limit, Line, Marks, Panel
from nearcast.experiments.dynamoth.elasticity import Conditions
from nearcast.experiments.dynamoth.scalability import Done, Growth, Run, Way, make_runs
from nearcast.experiments.result import Progress, Result, silent
from nearcast.flow.model import Series
from nearcast.flow.network import Delays, LognormalDelays

NAME = "dynamoth-6"
SAFE = 1.0  # V.D: a load ratio of 1 or below is safe


class ServerLoadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the seeds. `before`: until the response time was too long for good; see dynamoth-5."""

    mean_below_one_before: float  # share of the seconds
    busiest_below_one_before: float
    busiest_below_fail_ratio_before: float
    highest_mean_before: float
    players: float
    rebalancings_before: float
    players_at_all_servers: float | None  # when the last server joined; None if it was not needed with every seed
    seeds: tuple[int, ...]
    conditions: Conditions


def run_server_load(
    growth: Growth, delays: Delays | None = None, progress: Progress = silent, workers: int | None = None
) -> Result:
    runs = [
        Run(
            growth=growth,
            way=Way.DYNAMOTH,
            seed=seed,
            virtual_nodes=VIRTUAL_NODES,
            delays=delays or LognormalDelays(),
        )
        for seed in growth.seeds
    ]
    done = make_runs(runs, progress, workers)
    figures, first = _figures(growth, done), done[0].series
    return Result(
        name=NAME,
        figures=figures,
        series={
            "seed": growth.seeds[0],
            "at_s": first.at_s,
            "load_ratio_mean": first.load_ratio_mean,
            "load_ratio_max": first.load_ratio_max,
            "servers": first.brokers,
            "rebalancings_s": [each.at_s for each in first.rebalancings],
        },
        chart=_chart(first, figures),
        rows=_rows(figures),
    )


def _figures(growth: Growth, done: Sequence[Done]) -> ServerLoadFigures:
    conditions = growth.game.conditions
    full = [players for each in done for players in _players_with(each.series, conditions.servers)]
    return ServerLoadFigures(
        mean_below_one_before=fmean(_share_below(each, each.series.load_ratio_mean, SAFE) for each in done),
        busiest_below_one_before=fmean(_share_below(each, each.series.load_ratio_max, SAFE) for each in done),
        busiest_below_fail_ratio_before=fmean(
            _share_below(each, each.series.load_ratio_max, conditions.fail_ratio) for each in done
        ),
        highest_mean_before=fmean(max(each.series.load_ratio_mean[: _steps(each)]) for each in done),
        players=fmean(each.sustained.clients for each in done),
        rebalancings_before=fmean(
            sum(change.at_s <= each.sustained.until_s for change in each.series.rebalancings) for each in done
        ),
        players_at_all_servers=fmean(full) if len(full) == len(done) else None,
        seeds=growth.seeds,
        conditions=conditions,
    )


def _steps(done: Done) -> int:
    """The number of steps until the cluster no longer sustained its players."""
    return round(done.sustained.until_s / done.series.step_s) + 1


def _share_below(done: Done, ratios: Sequence[float], limit: float) -> float:
    before = ratios[: _steps(done)]
    return sum(ratio < limit - 1e-9 for ratio in before) / len(before)


def _players_with(series: Series, servers: int) -> list[int]:
    """The number of players when there were this many servers for the first time; empty if there never were."""
    return [players for players, count in zip(series.clients, series.brokers, strict=True) if count >= servers][:1]


def _chart(series: Series, figures: ServerLoadFigures) -> Chart:
    times = [each.at_s for each in series.rebalancings]
    on_curve = [series.load_ratio_max[round(at_s / series.step_s)] for at_s in times]
    return Chart(
        title=f"{NAME}: load ratios of up to {figures.conditions.servers} servers with Dynamoth",
        x_label="time (s)",
        panels=(
            Panel(
                y_label="load ratio",
                lines=(
                    Line(label="busiest server", x=series.at_s, y=series.load_ratio_max, colour=Colour.ORANGE),
                    Line(label="mean of all servers", x=series.at_s, y=series.load_ratio_mean, colour=Colour.BLUE),
                ),
                marks=(Marks(label="rebalancing", x=times, y=on_curve, colour=Colour.PURPLE),),
                limits=(
                    Limit(label="1: safe below", y=SAFE),
                    Limit(label="1.15: a server fails above", y=figures.conditions.fail_ratio),
                ),
            ),
            Panel(
                y_label="servers",
                lines=(Line(label="servers", x=series.at_s, y=series.brokers, colour=Colour.GREY, steps=True),),
                right_label="players",
                right_lines=(Line(label="players", x=series.at_s, y=series.clients, colour=Colour.GREEN, dashed=True),),
            ),
        ),
    )


def _rows(figures: ServerLoadFigures) -> tuple[tuple[str, str], ...]:
    at_all = figures.players_at_all_servers
    return (
        ("players sustained", f"{figures.players:,.0f}"),
        ("until then: mean load ratio below 1", f"{figures.mean_below_one_before:.1%} of the time"),
        ("until then: busiest server below 1", f"{figures.busiest_below_one_before:.1%} of the time"),
        ("until then: busiest server below 1.15", f"{figures.busiest_below_fail_ratio_before:.1%} of the time"),
        ("until then: highest mean load ratio", f"{figures.highest_mean_before:.2f}"),
        ("until then: rebalancings", f"{figures.rebalancings_before:.0f}"),
        ("all servers in use from", "never" if at_all is None else f"{at_all:,.0f} players"),
    )
