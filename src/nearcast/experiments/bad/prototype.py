"""Figures 5 to 12: the prototype's world, RND, RR and NR, with and without balancing (section 6.1.3).

Figures 5, 7, 8 and 9 show the load of each broker over time; 6, 10 and 11 the busiest broker, the cov and the moves; 12
the moves of the three placements, with a table of all placements and all ways of balancing. They are views of the same
runs.

The curves of a run become panels of charts, and columns of the JSON file, with a value every ten seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from nearcast.experiments.bad.runs import (
    Balancing,
    Conditions,
    Measures,
    Placement,
    Prototype,
    Runs,
    Unit,
    Way,
    conditions_of,
    described,
    incoming_saved,
    make_runs,
    measures_of,
)
from nearcast.experiments.chart import Chart, Colour, Limit, Line, Panel
from nearcast.experiments.result import Progress, Result, silent
from nearcast.flow.gateways import GatewaySeries
from nearcast.flow.model import FloatArray, IntArray

# --- curves


EVERY_S = 10
COLOURS = tuple(Colour)
X_LABEL = "time (minutes)"
HEADROOM = 1.05


def minutes(series: GatewaySeries) -> list[float]:
    return [second / 60 for second in range(0, series.seconds, EVERY_S)]


def thinned(values: FloatArray | IntArray, digits: int | None = None) -> list[float]:
    kept = values[::EVERY_S]
    return (kept if digits is None else np.round(kept, digits)).tolist()


def load_panels(shown: Mapping[str, GatewaySeries], unit: Unit) -> tuple[Panel, ...]:
    """The load of each broker, one panel per run, all with the same scale. The first panel names the brokers."""
    highest = max(float(series.loads.max()) for series in shown.values()) / unit.bytes_per_s
    return tuple(
        Panel(
            y_label=f"{title}\nload ({unit.name})",
            lines=_broker_lines(series, unit, named=place == 0),
            y_max=highest * HEADROOM,
        )
        for place, (title, series) in enumerate(shown.items())
    )


def _broker_lines(series: GatewaySeries, unit: Unit, named: bool) -> tuple[Line, ...]:
    x = minutes(series)
    return tuple(
        Line(
            label=f"{'' if named else '_'}broker {broker + 1}",  # matplotlib leaves names with _ out of the legend
            x=x,
            y=thinned(series.loads[:, broker] / unit.bytes_per_s),
            colour=COLOURS[broker % len(COLOURS)],
            dashed=broker >= len(COLOURS),
        )
        for broker in range(series.loads.shape[1])
    )


def cov_panel(lines: Sequence[Line], limits: Sequence[float] = ()) -> Panel:
    return Panel(
        y_label="coefficient of variation",
        lines=tuple(lines),
        limits=tuple(Limit(label=f"alpha {alpha:g}", y=alpha) for alpha in limits),
    )


def curve(
    label: str, series: GatewaySeries, values: FloatArray | IntArray, colour: Colour, dashed: bool = False
) -> Line:
    return Line(label=label, x=minutes(series), y=thinned(values), colour=colour, dashed=dashed)


def columns(series: GatewaySeries) -> dict[str, object]:
    """What the JSON file keeps of a run."""
    return {
        "at_s": list(range(0, series.seconds, EVERY_S)),
        "load_bytes_per_s": [thinned(series.loads[:, broker], 1) for broker in range(series.loads.shape[1])],
        "incoming_bytes_per_s": thinned(series.incoming.sum(axis=1), 1),
        "clients": [thinned(series.clients[:, broker]) for broker in range(series.clients.shape[1])],
        "cov": thinned(series.cov, 4),
        "migrations": thinned(series.moves),
        "frontend_subscriptions": thinned(series.frontend),
        "backend_subscriptions": thinned(series.backend),
        "rebalanced": series.rebalanced,
    }


# --- the experiment


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
    sdm_incoming_saved_share: float | None = None  # of LDM's incoming load, if both were run
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
    """The ways that have curves. Of all placements and ways of balancing, figure 12 shows the moves of LDM and SDM."""
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
