"""Curves of runs of gateways: panels for charts, and the same as columns for the JSON file. Every tenth second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nearcast.experiments.bad.benches import Unit
from nearcast.experiments.chart import Colour, Limit, Line, Panel
from nearcast.flow.demand import FloatArray, IntArray
from nearcast.flow.gateway_series import GatewaySeries

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
    """The load of each broker, a panel for each run, all with the same scale. The first one names the brokers."""
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
    """What is kept of a run."""
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
