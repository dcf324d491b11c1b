"""The chart of `nearcast report`: load of brokers, messages and latencies over time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from nearcast.experiments.chart import Chart, Colour, Line, Panel

if TYPE_CHECKING:
    from nearcast.pipeline.telemetry_summary import Summary, WindowLine

BROKERS_SHOWN = len(Colour)  # one colour each; those with the highest load


def chart_of(found: Summary) -> Chart:
    """Over the whole time that was asked for; a window without reports leaves a hole."""
    busiest = sorted(found.brokers, key=lambda line: -line.output_bytes_per_s)[:BROKERS_SHOWN]
    brokers = {
        line.broker: dict(zip(line.windows_s, line.window_output_bytes_per_s, strict=True))
        for line in sorted(busiest, key=lambda line: line.broker)
    }
    starts = [line.window_s for line in found.windows] + [start for line in found.brokers for start in line.windows_s]
    first_s = int(found.since_s) // found.window_length_s * found.window_length_s
    grid = range(min([first_s, *starts]), int(found.until_s) + 1, found.window_length_s)

    def line(label: str, values: Mapping[int, float | None], colour: Colour, factor: float = 1.0) -> Line:
        y = [None if (value := values.get(start)) is None else value * factor for start in grid]
        return Line(label=label, x=list(grid), y=y, colour=colour, dotted_points=_has_lone_points(y))

    def of(value: Callable[[WindowLine], float | None]) -> dict[int, float | None]:
        return {window.window_s: value(window) for window in found.windows}

    load = tuple(line(name, load, colour, 1e-6) for (name, load), colour in zip(brokers.items(), Colour, strict=False))
    messages = (
        line("published", of(lambda window: window.published_per_s), Colour.BLUE),
        line("delivered", of(lambda window: window.delivered_per_s), Colour.ORANGE),
    )
    latencies = (
        line("p50", of(lambda window: window.latency.p50_s), Colour.GREEN, 1e3),
        line("p90", of(lambda window: window.latency.p90_s), Colour.BLUE, 1e3),
        line("p99", of(lambda window: window.latency.p99_s), Colour.ORANGE, 1e3),
    )
    end = dt.datetime.fromtimestamp(found.until_s, dt.UTC)
    return Chart(
        title=f"Telemetry up to {end:%Y-%m-%d %H:%M} UTC",
        x_label="time, UTC",
        x_is_time=True,
        panels=(
            Panel(y_label="load, MB/s", lines=load),
            Panel(y_label="messages/s", lines=messages),
            Panel(y_label="latency, ms", lines=latencies),
        ),
    )


def _has_lone_points(y: Sequence[float | None]) -> bool:
    """Whether a value stands between two holes, where no line shows it."""
    padded = [None, *y, None]
    threes = zip(padded, padded[1:], padded[2:], strict=False)
    return any(before is None and here is not None and after is None for before, here, after in threes)
