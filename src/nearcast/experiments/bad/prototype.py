"""Figures 5 to 12: the prototype's world, RND, RR and NR, with and without balancing (section 6.1.3).

5, 7, 8 and 9 show the load of each broker over time; 6, 10 and 11 the busiest broker, the cov and the moves; 12 the
moves of the three placements, and the figures of all of them with all ways of balancing. They are views of the same
runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nearcast.experiments.bad.benches import Conditions, Prototype, conditions_of
from nearcast.experiments.bad.curves import COLOURS, X_LABEL, columns, cov_panel, curve, load_panels
from nearcast.experiments.bad.measures import Measures, described, incoming_saved, measures_of
from nearcast.experiments.bad.runs import Balancing, Placement, Runs, Way, make_runs
from nearcast.experiments.chart import Chart, Colour, Panel
from nearcast.experiments.result import Progress, Result, silent

_DM = (Balancing.LDM, Balancing.SDM)
_ALL = (Balancing.NONE, *_DM)
_GSH = (Balancing.LDM_GSH, Balancing.SDM_GSH)

LOADS = {
    "bad-5": (Placement.RND, _ALL),
    "bad-7": (Placement.RR, _ALL),
    "bad-8": (Placement.NR, _ALL),
    "bad-9": (Placement.NR, _GSH),
}
COMPARISONS = {
    "bad-6": (Placement.RND, _ALL),
    "bad-10": (Placement.NR, _ALL),
    "bad-11": (Placement.NR, (*_DM, *_GSH)),
}
MIGRATIONS = "bad-12"
_COLOURS = dict(zip(Balancing, (Colour.GREY, Colour.BLUE, Colour.ORANGE, Colour.GREEN, Colour.PURPLE), strict=True))


class PrototypeFigures(msgspec.Struct, frozen=True, kw_only=True):
    ways: dict[str, Measures]
    frontend: float  # subscriptions, the most of a run, mean of the seeds
    backend: float
    sdm_incoming_saved_share: float | None = None  # of LDM's incoming load, where both are there
    sdm_incoming_saved_share_ci95: tuple[float, float] | None = None
    seeds: tuple[int, ...]
    conditions: Conditions


def run_prototype(
    name: str, bench: Prototype, seeds: Sequence[int], progress: Progress = silent, workers: int | None = None
) -> Result:
    ways = _ways(name)
    runs = make_runs(bench, ways, seeds, progress, workers)
    figures = _figures(runs, ways)
    return Result(
        name=name,
        figures=figures,
        series={"seed": runs.seeds[0], **{str(way): columns(runs.first(way)) for way in _shown(name, ways)}},
        chart=_chart(name, runs, ways),
        rows=_rows(figures, bench),
    )


def _ways(name: str) -> tuple[Way, ...]:
    if name == MIGRATIONS:
        return tuple(Way(placement, balancing) for placement in Placement for balancing in Balancing)
    placement, balancings = LOADS[name] if name in LOADS else COMPARISONS[name]
    return tuple(Way(placement, balancing) for balancing in balancings)


def _shown(name: str, ways: Sequence[Way]) -> list[Way]:
    """Those with curves: of all placements and ways of balancing, figure 12 draws the moves of LDM and SDM."""
    return [way for way in ways if name != MIGRATIONS or way.balancing in _DM]


def _figures(runs: Runs, ways: Sequence[Way]) -> PrototypeFigures:
    first = runs.done[ways[0]]
    ldm, sdm = (Way(ways[0].placement, balancing) for balancing in _DM)
    one_placement = len({way.placement for way in ways}) == 1
    saved = incoming_saved(runs, sdm, ldm) if one_placement and {ldm, sdm} <= set(ways) else None
    return PrototypeFigures(
        ways={str(way): measures_of(runs, way) for way in ways},
        frontend=sum(int(series.frontend.max()) for series in first) / len(first),
        backend=sum(int(series.backend.max()) for series in first) / len(first),
        sdm_incoming_saved_share=saved.mean if saved else None,
        sdm_incoming_saved_share_ci95=saved.interval if saved else None,
        seeds=runs.seeds,
        conditions=conditions_of(runs.bench),
    )


def _chart(name: str, runs: Runs, ways: Sequence[Way]) -> Chart:
    if name in LOADS:
        title = f"{name}: load of each broker, {ways[0].placement} placement"
        panels = load_panels({str(way): runs.first(way) for way in ways}, runs.bench.unit)
    elif name in COMPARISONS:
        title = f"{name}: {ways[0].placement} placement, ways of balancing compared"
        panels = _comparison(runs, ways)
    else:
        title = f"{name}: subscriber moves by placement"
        panels = tuple(_migrations(runs, balancing) for balancing in _DM)
    return Chart(title=f"{title} (seed {runs.seeds[0]})", x_label=X_LABEL, panels=panels)


def _comparison(runs: Runs, ways: Sequence[Way]) -> tuple[Panel, ...]:
    unit = runs.bench.unit
    found = [(way, runs.first(way), _COLOURS[way.balancing]) for way in ways]
    return (
        Panel(
            y_label=f"busiest broker ({unit.name})",
            lines=tuple(
                curve(str(way.balancing), series, series.highest / unit.bytes_per_s, colour)
                for way, series, colour in found
            ),
        ),
        cov_panel([curve(f"_{way}", series, series.cov, colour) for way, series, colour in found], (runs.bench.alpha,)),
        Panel(
            y_label="moves so far",
            lines=tuple(curve(f"_{way}", series, series.moves, colour) for way, series, colour in found),
        ),
    )


def _migrations(runs: Runs, balancing: Balancing) -> Panel:
    return Panel(
        y_label=f"{balancing}\nmoves so far",
        lines=tuple(
            curve(f"{'' if balancing is _DM[0] else '_'}{placement}", series, series.moves, colour)
            for placement, colour in zip(Placement, COLOURS, strict=False)
            for series in (runs.first(Way(placement, balancing)),)
        ),
    )


def _rows(figures: PrototypeFigures, bench: Prototype) -> tuple[tuple[str, str], ...]:
    rows = [(name, described(measures, bench.unit)) for name, measures in figures.ways.items()]
    if figures.sdm_incoming_saved_share is not None and figures.sdm_incoming_saved_share_ci95 is not None:
        low, high = figures.sdm_incoming_saved_share_ci95
        saved = f"{figures.sdm_incoming_saved_share:.2%} of LDM's (95 %: {low:.2%} to {high:.2%})"
        rows.append(("incoming load saved by SDM", saved))
    counts = f"{figures.frontend:,.0f}, {figures.backend:,.0f}, {len(figures.seeds)}"
    return (*rows, ("frontend and backend subscriptions, seeds", counts))
