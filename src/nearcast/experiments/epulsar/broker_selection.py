"""Figures 4 and 5: broker selection for a game in cities and for swarms of drones (section 5.5).

Clients are placed at random a thousand times. Each way of choosing brokers is judged by true latencies: the share of
pairs of a publisher and a subscriber that miss the bound, and the worst pair. The paper adds round trips where a
message goes one way, and so does the gate here; the halved figures are beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

import msgspec
import numpy as np

from nearcast.experiments.chart import Chart, Colour, Limit, Line, Panel
from nearcast.experiments.epulsar.placements import PLACEMENTS, Engine, Tallies, Town, jobs_for, run_job
from nearcast.experiments.epulsar.selection import Tally, Way
from nearcast.experiments.epulsar.topology import Floats, Topology, city_topology, zone_topology
from nearcast.experiments.result import Progress, Result, silent
from nearcast.workloads.uav import zone_centres

MMOG_BOUND_S = 0.100  # section 5.1.2
UAV_BOUND_S = 0.040  # section 5.1.1
CITIES = (5, 10, 20, 30, 40, 50, 60)  # the paper does not say which
ZONES = tuple(range(2, 11))
GAP_MOST = 0.003  # of the violation ratio, above all_pairs


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """One way on one topology. Ratios are shares of all pairs."""

    violation_ratio: float
    violation_ratio_halved: float
    worst_ms: float  # round trips added, the worst of all pairs
    mean_worst_ms: float  # mean over topics of the worst pair
    hopeless_ratio: float  # topics for which no broker seemed to keep the bound


class SelectionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """By number of brokers, then by way."""

    sizes: dict[int, dict[str, Measures]]
    violation_ratio: dict[str, float]  # means over the sizes
    violation_ratio_halved: dict[str, float]
    gap_to_all_pairs: dict[str, float]  # the largest over the sizes; below zero is better than all_pairs
    gap_allowed: float
    within_gap: bool  # of top8
    violations_top8: int
    placements: int
    bound_ms: float
    seed: int
    source: str  # of the latencies, or of the base stations


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between the two figures."""

    name: str
    title: str
    x_label: str
    bound_s: float
    source: str
    seed: int = 0
    placements: int = PLACEMENTS


def run_cities(
    names: Sequence[str], rtt_s: Floats, selection: Selection, engine: Engine, progress: Progress = silent
) -> Result:
    sizes = [count for count in CITIES if count < len(names)] + [len(names)]
    worlds: dict[int, tuple[Topology, Town | None]] = {}
    for done, count in enumerate(sizes):
        progress(done, len(sizes), f"coordinates and estimates of {count} cities")
        worlds[count] = (city_topology(names, rtt_s, count, selection.seed), None)
    return _run(worlds, selection, engine, progress)


def run_zones(stations: Floats, selection: Selection, engine: Engine, progress: Progress = silent) -> Result:
    corners = np.array([stations.min(axis=0), stations.max(axis=0)])
    worlds: dict[int, tuple[Topology, Town | None]] = {
        zones: (zone_topology(zones, selection.seed), Town(corners, zone_centres(stations, zones, selection.seed)))
        for zones in ZONES
    }
    return _run(worlds, selection, engine, progress)


def _run(
    worlds: dict[int, tuple[Topology, Town | None]], selection: Selection, engine: Engine, progress: Progress
) -> Result:
    jobs = {
        size: jobs_for(topology, selection.bound_s, selection.seed, selection.placements, town)
        for size, (topology, town) in worlds.items()
    }
    outcomes = iter(engine(run_job, [job for some in jobs.values() for job in some], progress))
    found = {size: [next(outcomes) for _ in some] for size, some in jobs.items()}
    sums = {size: {way: reduce(add, (one[way] for one in some)) for way in Way} for size, some in found.items()}
    figures = _figures(sums, selection)
    return Result(
        name=selection.name,
        figures=figures,
        series={str(size): {str(way): tally for way, tally in ways.items()} for size, ways in sums.items()},
        chart=_chart(figures, selection),
        rows=_rows(figures),
    )


# --- figures


def _measures(tally: Tally) -> Measures:
    return Measures(
        violation_ratio=tally.violations / tally.pairs,
        violation_ratio_halved=tally.violations_halved / tally.pairs,
        worst_ms=tally.worst_s * 1e3,
        mean_worst_ms=tally.sum_worst_s / tally.topics * 1e3,
        hopeless_ratio=tally.hopeless / tally.topics,
    )


def _figures(sums: dict[int, Tallies], selection: Selection) -> SelectionFigures:
    sizes = {size: {str(way): _measures(tally) for way, tally in ways.items()} for size, ways in sums.items()}
    gaps = {
        str(way): max(ways[way].violation_ratio - ways[Way.ALL_PAIRS].violation_ratio for ways in sizes.values())
        for way in Way
    }
    count = len(sizes)
    return SelectionFigures(
        sizes=sizes,
        violation_ratio={str(way): sum(ways[way].violation_ratio for ways in sizes.values()) / count for way in Way},
        violation_ratio_halved={
            str(way): sum(ways[way].violation_ratio_halved for ways in sizes.values()) / count for way in Way
        },
        gap_to_all_pairs=gaps,
        gap_allowed=GAP_MOST,
        within_gap=gaps[Way.TOP8] <= GAP_MOST,
        violations_top8=sum(ways[Way.TOP8].violations for ways in sums.values()),
        placements=selection.placements,
        bound_ms=selection.bound_s * 1e3,
        seed=selection.seed,
        source=selection.source,
    )


def _rows(figures: SelectionFigures) -> tuple[tuple[str, str], ...]:
    rows = []
    for way in Way:
        shown = [f"{ways[way].violation_ratio:.2%}" for ways in figures.sizes.values()]
        rows.append((f"pairs above {figures.bound_ms:g} ms, {way}", ", ".join(shown)))
    for way in (Way.CENTROIDS, Way.ESTIMATED, Way.TOP8):
        rows.append((f"  {way}, at most above all_pairs", f"{figures.gap_to_all_pairs[way] * 100:+.2f} points"))
    for way in Way:
        rows.append(
            (f"worst pair (ms), {way}", ", ".join(f"{ways[way].worst_ms:.0f}" for ways in figures.sizes.values()))
        )
    for way in (Way.CENTROIDS, Way.ALL_PAIRS, Way.TOP8, Way.PERFECT):
        shown = [f"{ways[way].hopeless_ratio:.1%}" for ways in figures.sizes.values()]
        rows.append((f"topics that seem hopeless, {way}", ", ".join(shown)))
    for way in (Way.HASHING, Way.TOP8):
        rows.append((f"pairs above the bound one way, {way}", f"{figures.violation_ratio_halved[way]:.2%}"))
    rows.append(("brokers", ", ".join(map(str, figures.sizes))))
    rows.append(("placements, seed, source", f"{figures.placements:,}, {figures.seed}, {figures.source}"))
    return tuple(rows)


# --- the picture


_COLOURS = {
    Way.HASHING: Colour.ORANGE,
    Way.CENTROIDS: Colour.PURPLE,
    Way.ALL_PAIRS: Colour.GREEN,
    Way.TOP8: Colour.BLUE,
    Way.PERFECT: Colour.GREY,
}
_LABELS = {Way.CENTROIDS: "centroids (the paper's)", Way.TOP8: "top8 (ours)", Way.PERFECT: "perfect knowledge"}


def _chart(figures: SelectionFigures, selection: Selection) -> Chart:
    near = tuple(way for way in _COLOURS if way is not Way.HASHING)
    ratios = {way: [ways[way].violation_ratio for ways in figures.sizes.values()] for way in near}
    panels = [
        Panel(
            y_label="worst pair (ms)",
            lines=tuple(_line(figures, way, "worst_ms", 1.0, shown=True) for way in _COLOURS),
            limits=(Limit(label=f"bound, {figures.bound_ms:g} ms", y=figures.bound_ms),),
        ),
        Panel(
            y_label="pairs above\nthe bound (%)",
            lines=tuple(_line(figures, way, "violation_ratio", 100.0) for way in _COLOURS),
        ),
    ]
    if any(map(any, ratios.values())):
        lines = tuple(_line(figures, way, "violation_ratio", 100.0) for way in near)
        panels.append(Panel(y_label="without\nhashing (%)", lines=lines))
    return Chart(title=selection.title, x_label=selection.x_label, panels=tuple(panels))


def _line(figures: SelectionFigures, way: Way, field: str, unit: float, shown: bool = False) -> Line:
    return Line(
        label=_LABELS.get(way, str(way)) if shown else f"_{way}",
        x=list(figures.sizes),
        y=[getattr(ways[way], field) * unit for ways in figures.sizes.values()],
        colour=_COLOURS[way],
        dashed=way is Way.PERFECT,
        dotted_points=way is not Way.PERFECT,  # it lies upon the best of the others
    )
