"""Spearman's rank correlation: whether two figures grow together, whatever the form of the curve."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from nearcast.runtime.profiling.runs import Run

RUNS_MIN = 3


def correlations(runs: Sequence[Run]) -> dict[str, float | None]:
    """Of each parameter with the 95th percentile of latency. None for one that did not vary."""
    p95_s = [run.latency_p95_s for run in runs]
    columns: dict[str, list[float]] = {
        "topics": [run.configuration.topics for run in runs],
        "publishers per topic": [run.configuration.publishers for run in runs],
        "subscribers per topic": [run.configuration.subscribers for run in runs],
        "bytes per message": [run.configuration.payload_bytes for run in runs],
        "messages/s per topic": [run.published_per_s / run.configuration.topics for run in runs],
        "messages/s out": [run.output_per_s for run in runs],
        "bytes/s out": [run.output_bytes_per_s for run in runs],
    }
    return {name: spearman(column, p95_s) for name, column in columns.items()}


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """From -1 to 1; None if either does not vary, or if there are too few values."""
    if len(one) < RUNS_MIN:
        return None
    x, y = _centred(ranks(one)), _centred(ranks(other))
    spread = sqrt(sum(a * a for a in x) * sum(b * b for b in y))
    return sum(a * b for a, b in zip(x, y, strict=True)) / spread if spread else None


def ranks(values: Sequence[float]) -> list[float]:
    """From 1. Equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    first = 0
    while first < len(order):
        end = first
        while end < len(order) and values[order[end]] == values[order[first]]:
            end += 1
        for place in order[first:end]:
            found[place] = (first + 1 + end) / 2
        first = end
    return found


def _centred(values: Sequence[float]) -> list[float]:
    mean = sum(values) / len(values)
    return [value - mean for value in values]
