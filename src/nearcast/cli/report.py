"""`nearcast report`: what topics and brokers did, from the data cluster's tables of agents' reports.

`chart_of` charts it: load of brokers, messages and latencies over time.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.shared import (
    Output,
    OutputOption,
    errors_as_exit_codes,
    megabytes_per_s,
    print_json,
    print_table,
    say,
)
from nearcast.errors import UsageError
from nearcast.experiments.chart import Chart, Colour, Line, Panel

if TYPE_CHECKING:
    from nearcast.pipeline.telemetry import BrokerLine, Latency, Summary, TopicLine, WindowLine


# --- the command


TOPIC_COLUMNS = (
    *("topic", "published /s", "in kB/s", "delivered /s", "out kB/s", "publishers", "subscribers"),
    *("p50 ms", "p90 ms", "p99 ms"),
)
BROKER_COLUMNS = ("broker", "load MB/s", "peak MB/s", "input MB/s", "CPU", "memory MB", "connections")

_SINCE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@errors_as_exit_codes()
def report(
    folder: Annotated[
        Path,
        typer.Option("--folder", metavar="DIR", help="The data cluster's folder: the --folder of `nearcast data`."),
    ],
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="How far back: 90s, 15m, 1h, 2d.")] = "1h",
    topic: Annotated[str, typer.Option("--topic", metavar="PATTERN", help="Only these topics: game.*")] = "*",
    broker: Annotated[str, typer.Option("--broker", metavar="PATTERN", help="Only these brokers.")] = "*",
    top: Annotated[int, typer.Option("--top", min=1, help="Topics to show, most delivered bytes first.")] = 20,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Also draw a chart, as PNG.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what topics and brokers did in a past period.

    It shows rates, bytes, subscribers and latencies of topics, and load, CPU and memory of brokers.

    The data cluster stores these figures, so it must be running, or have run. Spark is not needed here. Latencies are
    upper limits of histogram buckets, which are 41 % apart.

    Example: nearcast report --folder /var/lib/nearcast --since 1h --topic 'game.*' --plot last_hour.png
    """
    from nearcast.pipeline.telemetry import TelemetryTables, summarise

    if plot is not None and plot.suffix != ".png":
        raise UsageError(f"--plot {plot}: give a file that ends in .png")
    now_s = time.time()
    tables = TelemetryTables(folder)
    try:
        found = summarise(tables, now_s - seconds_of(since), now_s, topic, broker)
    finally:
        tables.close()
    if plot is not None:
        from nearcast.experiments.plot import draw

        draw(chart_of(found), plot)
        say(f"chart: {plot}")
    if output is Output.JSON:
        print_json(found)
    else:
        _print(found, top)


def seconds_of(text: str) -> float:
    found = _SINCE.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(f"--since {text}: write a number and a unit: 90s, 15m, 1h, 2d")
    return float(found[1]) * _UNITS_S[found[2]]


def _print(found: Summary, top: int) -> None:
    if not found.covered_s:
        say("no reports in this period: is `nearcast data` running, and since when?")
        return
    shown = found.topics[:top]
    more = f", {len(shown)} of {len(found.topics)} shown" if len(shown) < len(found.topics) else ""
    print_table(TOPIC_COLUMNS, [_topic_row(line) for line in shown], f"topics over {found.covered_s:,.0f} s{more}")
    print_table(BROKER_COLUMNS, [_broker_row(line) for line in found.brokers], "brokers")


def _topic_row(line: TopicLine) -> tuple[str, ...]:
    return (
        line.topic,
        f"{line.published_per_s:,.1f}",
        f"{line.published_bytes_per_s / 1e3:,.1f}",
        f"{line.delivered_per_s:,.1f}",
        f"{line.delivered_bytes_per_s / 1e3:,.1f}",
        f"{line.publishers:,.1f}",
        f"{line.subscribers:,.1f}",
        *_milliseconds(line.latency),
    )


def _milliseconds(latency: Latency) -> list[str]:
    values = (latency.p50_s, latency.p90_s, latency.p99_s)
    return ["-" if value is None else f"{value * 1000:.3g}" for value in values]


def _broker_row(line: BrokerLine) -> tuple[str, ...]:
    return (
        line.broker,
        megabytes_per_s(line.output_bytes_per_s),
        megabytes_per_s(line.output_bytes_per_s_max),
        megabytes_per_s(line.input_bytes_per_s),
        f"{line.cpu_share:.0%}",
        f"{line.memory_bytes_max / 1e6:,.1f}",
        f"{line.connections_max:,}",
    )


# --- the chart


BROKERS_SHOWN = len(Colour)  # one colour each; those with the highest load


def chart_of(found: Summary) -> Chart:
    """Covers the whole requested period; a window without reports leaves a hole."""
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
