"""Figure 14: how alpha and beta affect the cov and the number of moves, with LDM (section 6.2.2).

`run_bad` runs any of the BAD experiments by its name on the command line.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nearcast.experiments.bad import distribution, prototype
from nearcast.experiments.bad.prototype import X_LABEL, columns, cov_panel, curve
from nearcast.experiments.bad.runs import (
    Balancing,
    Conditions,
    Measures,
    Placement,
    Prototype,
    Runs,
    Simulation,
    Way,
    conditions_of,
    described,
    make_runs,
    measures_of,
)
from nearcast.experiments.chart import Chart, Colour, Line, Panel
from nearcast.experiments.result import Progress, Result, silent

NAME = "bad-14"
ALPHAS = (0.05, 0.10, 0.15)  # the paper names the first and the last
BETAS_BYTES_PER_S = (300e6, 600e6)  # the paper names the first; the second is about the mean load at the end

_COLOURS = (Colour.ORANGE, Colour.GREEN, Colour.BLUE)
_LDM = {
    f"LDM, alpha {alpha:.2f}, beta {beta / 1e6:.0f} MB/s": Way(Placement.NR, Balancing.LDM, alpha, beta)
    for beta in BETAS_BYTES_PER_S
    for alpha in ALPHAS
}
_WAYS = {**_LDM, "GSH": Way(Placement.NR, Balancing.LDM_GSH)}


class SensitivityFigures(msgspec.Struct, frozen=True, kw_only=True):
    ways: dict[str, Measures]
    migrations_alpha_005: float  # with the paper's beta
    migrations_alpha_015: float
    cov_alpha_005: float
    cov_alpha_015: float
    seeds: tuple[int, ...]
    conditions: Conditions


def run_sensitivity(
    bench: Simulation, seeds: Sequence[int], progress: Progress = silent, workers: int | None = None
) -> Result:
    runs = make_runs(bench, tuple(_WAYS.values()), seeds, progress, workers)
    ways = {name: measures_of(runs, way) for name, way in _WAYS.items()}
    low, *_, high = list(ways.values())[: len(ALPHAS)]
    figures = SensitivityFigures(
        ways=ways,
        migrations_alpha_005=low.migrations,
        migrations_alpha_015=high.migrations,
        cov_alpha_005=low.cov,
        cov_alpha_015=high.cov,
        seeds=runs.seeds,
        conditions=conditions_of(bench),
    )
    rows = [(name, described(measures, bench.unit)) for name, measures in ways.items()]
    return Result(
        name=NAME,
        figures=figures,
        series={"seed": runs.seeds[0], **{name: columns(runs.first(way)) for name, way in _WAYS.items()}},
        chart=_chart(runs),
        rows=(*rows, ("seeds", str(len(runs.seeds)))),
    )


def _chart(runs: Runs) -> Chart:
    covs: list[Line] = []
    moves: list[Line] = []
    for place, (name, way) in enumerate(_LDM.items()):
        series, colour, dashed = runs.first(way), _COLOURS[place % len(ALPHAS)], place >= len(ALPHAS)
        covs.append(curve(name.removeprefix("LDM, "), series, series.cov, colour, dashed))
        moves.append(curve(f"_{name}", series, series.moves, colour, dashed))
    shuffled = runs.first(_WAYS["GSH"])
    covs.append(curve("GSH", shuffled, shuffled.cov, Colour.GREY))
    return Chart(
        title=f"{NAME}: alpha and beta of LDM, nearest placement (seed {runs.seeds[0]})",
        x_label=X_LABEL,
        panels=(cov_panel(covs), Panel(y_label="moves of LDM so far", lines=tuple(moves))),
    )


def run_bad(name: str, seeds: Sequence[int], progress: Progress = silent, workers: int | None = None) -> Result:
    if name == distribution.NAME:
        return distribution.run_distribution(Simulation(), seeds, progress, workers)
    if name == NAME:
        return run_sensitivity(Simulation(), seeds, progress, workers)
    return prototype.run_prototype(name, Prototype(), seeds, progress, workers)
