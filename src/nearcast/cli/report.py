"""`nearcast report`: what topics and brokers did, from the tables that the data cluster keeps of agents' reports."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import print_json, print_table
from nearcast.cli.rates import megabytes_per_s
from nearcast.cli.running import errors_as_exit_codes, say
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.pipeline.telemetry_summary import BrokerLine, Latency, Summary, TopicLine

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
        typer.Option("--folder", metavar="DIR", help="Of the data cluster: the --folder of `nearcast data`."),
    ],
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="How far back: 90s, 15m, 1h, 2d.")] = "1h",
    topic: Annotated[str, typer.Option("--topic", metavar="PATTERN", help="Only these topics: game.*")] = "*",
    broker: Annotated[str, typer.Option("--broker", metavar="PATTERN", help="Only these brokers.")] = "*",
    top: Annotated[int, typer.Option("--top", min=1, help="Topics in the table, most delivered bytes first.")] = 20,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Also draw them into a PNG.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Rates, bytes, subscribers and latencies of topics, load, CPU and memory of brokers, from stored telemetry.

    The data cluster keeps it, so that has to run, or to have run. Spark is not needed here. Latencies are upper
    limits of histogram buckets, 41 % apart.

    Example: nearcast report --folder /var/lib/nearcast --since 1h --topic 'game.*' --plot last_hour.png
    """
    from nearcast.pipeline.telemetry_summary import summarise
    from nearcast.pipeline.telemetry_tables import TelemetryTables

    if plot is not None and plot.suffix != ".png":
        raise UsageError(f"--plot {plot}: give a file that ends in .png")
    now_s = time.time()
    tables = TelemetryTables(folder)
    try:
        found = summarise(tables, now_s - seconds_of(since), now_s, topic, broker)
    finally:
        tables.close()
    if plot is not None:
        from nearcast.cli.report_chart import chart_of
        from nearcast.experiments.plot import draw

        draw(chart_of(found), plot)
        say(f"drawn: {plot}")
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
        say("no reports in this time: is `nearcast data` running, and since when?")
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
