"""The threshold R_out^th: the highest rate of delivered messages at which latency is still about as without load.

- A run is *slow* if its 95th percentile is above a limit: a factor times the unloaded one, or a given time.
- The *unloaded* 95th percentile is the median over the runs that deliver at most a tenth of the highest rate.
- The threshold is the rate of that run which leaves the fewest runs on the wrong side: slow ones at or below it, others
  above it. Of several such rates it is the lowest. So one run that something else has disturbed does not move it.
- If no run above it is slow, the broker can do more: the threshold is a lower bound.
- Slow runs in which the measuring program was busy, and not the server, do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from nearcast.runtime.calibration import LimitedBy
from nearcast.runtime.profiling.runs import Run

UNLOADED_SHARE = 0.1  # of the highest rate
UNLOADED_MIN = 3  # runs
RUNS_MIN = 8
FACTOR = 3.0


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    messages_high_per_s: float = 0.0  # 0: there is none
    at_least: bool = False  # no slower run was found: it is a lower bound
    unloaded_p95_s: float | None = None
    limit_s: float | None = None
    runs: int = 0  # that counted
    slow: int = 0
    misplaced: int = 0  # on the wrong side
    problem: str = ""  # why there is none


def threshold(runs: Sequence[Run], *, factor: float = FACTOR, limit_s: float | None = None) -> Threshold:
    unloaded_s = _unloaded_p95_s(runs)
    if limit_s is None and unloaded_s is not None:
        limit_s = factor * unloaded_s
    if limit_s is None:
        return Threshold(
            problem=f"fewer than {UNLOADED_MIN} runs were below a tenth of the highest rate, so the latency without "
            "load is not known: make more runs, or give a limit"
        )
    counted = sorted(
        (run.output_per_s, run.latency_p95_s > limit_s)
        for run in runs
        if run.latency_p95_s <= limit_s or run.limited_by is not LimitedBy.MEASURING
    )
    rate_per_s, misplaced = _split(counted)
    problem = ""
    if len(counted) < RUNS_MIN:
        rate_per_s, problem = 0.0, f"{len(counted)} runs count, and a threshold needs {RUNS_MIN}: make more runs"
    elif not rate_per_s:
        problem = "most runs are slow, also those with the lowest rates: give a higher limit"
    return Threshold(
        messages_high_per_s=rate_per_s,
        at_least=rate_per_s > 0 and not any(slow for output, slow in counted if output > rate_per_s),
        unloaded_p95_s=unloaded_s,
        limit_s=limit_s,
        runs=len(counted),
        slow=sum(slow for _, slow in counted),
        misplaced=misplaced,
        problem=problem,
    )


def _unloaded_p95_s(runs: Sequence[Run]) -> float | None:
    highest = max((run.output_per_s for run in runs), default=0.0)
    found = [run.latency_p95_s for run in runs if run.output_per_s <= UNLOADED_SHARE * highest]
    return median(found) if len(found) >= UNLOADED_MIN else None


def _split(counted: Sequence[tuple[float, bool]]) -> tuple[float, int]:
    """The rate that leaves the fewest on the wrong side, and how many those are. `counted` ascends."""
    wrong = sum(not slow for _, slow in counted)
    best, best_wrong = 0.0, wrong
    for rate_per_s, slow in counted:
        wrong += 1 if slow else -1
        if wrong < best_wrong:
            best, best_wrong = rate_per_s, wrong
    return best, best_wrong
