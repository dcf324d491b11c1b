"""The result of an experiment, how it is written to files, how means are estimated, and runs on all cores."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

import msgspec

from nearcast.errors import UsageError
from nearcast.experiments.chart import Chart

# --- results and files


# Called with the steps done, the total number of steps, and what is being done.
Progress = Callable[[int, int, str], None]


def silent(done: int, total: int, what: str) -> None:
    """For callers that show no progress."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an experiment, the series behind them, and a chart.

    `figures` is what `--json` prints: a struct of the experiment's own. `series` are the curves, for readers who want
    to draw them again. Both go into one JSON file beside the picture.
    """

    name: str  # as on the command line
    figures: msgspec.Struct
    series: Mapping[str, Any]
    chart: Chart
    rows: tuple[tuple[str, str], ...]  # the figures as text


class Files(msgspec.Struct, frozen=True):
    json: Path
    png: Path


def open_folder(path: Path) -> Path:
    """The folder for the files, created if needed. Called before an experiment runs, so that it fails early."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror}; choose another folder with --out") from None
    return path


def write(result: Result, folder: Path) -> Files:
    from nearcast.experiments.plot import draw

    files = Files(folder / f"{result.name}.json", folder / f"{result.name}.png")
    document = {"experiment": result.name, "figures": result.figures, "series": result.series}
    encoded = msgspec.json.encode(document, enc_hook=_plain)
    files.json.write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")
    draw(result.chart, files.png)
    return files


def _plain(value: Any) -> Any:
    """NumPy arrays and numbers as lists and numbers."""
    return value.tolist()


# --- estimates


# The 0.975 quantile of Student's t for 1, 2, ... degrees of freedom, from the usual tables.
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
T_975_MANY = 1.96  # of the normal distribution, the limit


class Estimate(msgspec.Struct, frozen=True):
    """`low` to `high` holds the true mean with 95 % confidence, if runs differ only by chance."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} (95 %: {self.low:.4g} to {self.high:.4g})"

    @property
    def interval(self) -> tuple[float, float]:
        return (self.low, self.high)


def estimate(values: Sequence[float]) -> Estimate:
    """The mean and confidence interval of runs with different seeds: Student's t, two-sided, 95 %.

    For one value alone the interval is unbounded.
    """
    if not values:
        raise UsageError("an estimate needs at least one run: use one seed or more")
    mean = fmean(values)
    if len(values) == 1:
        return Estimate(mean, -math.inf, math.inf)
    freedom = len(values) - 1
    quantile = T_975[freedom - 1] if freedom <= len(T_975) else T_975_MANY
    half = quantile * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


# --- runs on all cores


Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


def run_jobs(
    function: Callable[[Job], Outcome], jobs: Sequence[Job], progress: Progress, workers: int | None = None
) -> list[Outcome]:
    """Do independent runs on all cores. Results are in the order of the jobs, whichever finishes first.

    Other processes must be able to import `function` and the jobs. Progress shows a job's text.
    """
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    outcomes: list[Outcome] = []
    if workers <= 1:
        for job in jobs:
            progress(len(outcomes), len(jobs), str(job))
            outcomes.append(function(job))
    else:
        with ProcessPoolExecutor(workers) as pool:
            for job, outcome in zip(jobs, pool.map(function, jobs), strict=True):
                outcomes.append(outcome)
                progress(len(outcomes), len(jobs), str(job))
    progress(len(jobs), len(jobs), "done")
    return outcomes
