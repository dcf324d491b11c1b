"""The measures of the paper: load of the busiest broker, coefficient of variation, number of moves (section 6.1.3).

Loads and cov are means over the time after everybody has subscribed; moves are those of the whole run.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nearcast.experiments.bad.benches import Bench, Unit
from nearcast.experiments.bad.runs import Runs, Way
from nearcast.experiments.confidence import Estimate, estimate
from nearcast.flow.gateway_series import GatewaySeries

Interval = tuple[float, float]


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the seeds."""

    cov: float
    cov_ci95: Interval
    highest_load_bytes_per_s: float  # of the busiest broker
    highest_load_bytes_per_s_ci95: Interval
    incoming_bytes_per_s: float  # of all brokers together
    incoming_bytes_per_s_ci95: Interval
    migrations: float
    migrations_ci95: Interval
    migrations_later: float  # after the first plan
    shuffles: float


def measures_of(runs: Runs, way: Way) -> Measures:
    bench, done = runs.bench, runs.done[way]
    cov = estimate([mean_cov(series, bench) for series in done])
    highest = estimate([float(series.highest[bench.subscribed_s :].mean()) for series in done])
    incoming = estimate([mean_incoming(series, bench) for series in done])
    migrations = estimate([float(series.moves[-1]) for series in done])
    return Measures(
        cov=cov.mean,
        cov_ci95=cov.interval,
        highest_load_bytes_per_s=highest.mean,
        highest_load_bytes_per_s_ci95=highest.interval,
        incoming_bytes_per_s=incoming.mean,
        incoming_bytes_per_s_ci95=incoming.interval,
        migrations=migrations.mean,
        migrations_ci95=migrations.interval,
        migrations_later=estimate([float(series.moves_later) for series in done]).mean,
        shuffles=estimate([float(series.shuffles) for series in done]).mean,
    )


def mean_cov(series: GatewaySeries, bench: Bench) -> float:
    return float(series.cov[bench.subscribed_s :].mean())


def mean_incoming(series: GatewaySeries, bench: Bench) -> float:
    return float(series.incoming[bench.subscribed_s :].sum(axis=1).mean())


def incoming_saved(runs: Runs, way: Way, other: Way) -> Estimate:
    """The share of the other way's incoming load that a way does without, seed by seed."""
    pairs: Sequence[tuple[GatewaySeries, GatewaySeries]] = list(zip(runs.done[way], runs.done[other], strict=True))
    bench = runs.bench
    return estimate([1 - mean_incoming(mine, bench) / mean_incoming(theirs, bench) for mine, theirs in pairs])


def described(measures: Measures, unit: Unit) -> str:
    """For people."""
    low, high = measures.cov_ci95
    text = f"cov {measures.cov:.3f} (95 %: {low:.3f} to {high:.3f}), "
    text += f"busiest broker {unit.text(measures.highest_load_bytes_per_s)}, "
    text += f"{measures.migrations:,.0f} moves"
    if measures.migrations:
        text += f" ({measures.migrations_later:,.0f} after the first plan)"
    return text + (f", {measures.shuffles:.0f} shuffle" if measures.shuffles else "")
