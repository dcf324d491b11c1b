"""The experiments by their names on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from nearcast.experiments.bad import distribution, prototype, sensitivity
from nearcast.experiments.bad.benches import Prototype, Simulation
from nearcast.experiments.result import Progress, Result, silent


def run_bad(name: str, seeds: Sequence[int], progress: Progress = silent, workers: int | None = None) -> Result:
    if name == distribution.NAME:
        return distribution.run_distribution(Simulation(), seeds, progress, workers)
    if name == sensitivity.NAME:
        return sensitivity.run_sensitivity(Simulation(), seeds, progress, workers)
    return prototype.run_prototype(name, Prototype(), seeds, progress, workers)
