"""Runs that do not depend on each other, on all cores. Results come in the order of the jobs, whoever is done first."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from nearcast.experiments.result import Progress

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


def run_jobs(
    function: Callable[[Job], Outcome], jobs: Sequence[Job], progress: Progress, workers: int | None = None
) -> list[Outcome]:
    """`function` and jobs must be importable by another process; a job's text is what progress shows."""
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
