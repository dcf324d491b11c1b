"""`nearcast bench telemetry`: the speed of aggregating agents' reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import show
from nearcast.cli.running import errors_as_exit_codes, say

if TYPE_CHECKING:
    from nearcast.bench.telemetry import TelemetryBench, Times

COLUMNS = ("", "1 thread", "2 threads")

Row = tuple[str, str, str]


@errors_as_exit_codes()
def telemetry(
    rows: Annotated[int, typer.Option("--rows", min=20_000, help="Rows: topics of reports, second by second.")] = (
        5_000_000
    ),
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often; the medians count.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Aggregate report rows to percentiles per window and topic, with Spark and with DuckDB, and check both.

    A row is one topic in one second's report of one broker: counters and a latency histogram of 40 buckets. Parquet
    in, Parquet out. `identical`: every number is that of a NumPy reference.

    Example: nearcast bench telemetry --rows 5000000 --json
    """
    from nearcast.bench.telemetry import measure_telemetry

    found = measure_telemetry(rows, rounds=rounds, progress=say)
    show(Output.JSON if as_json else output, found, COLUMNS, _rows(found))


def _rows(found: TelemetryBench) -> list[Row]:
    rows: list[Row] = []
    for size in found.growth:
        rows.append((f"{size.rows:,} rows, {size.lines:,} lines", "", ""))
        rows.append(_row("  Spark", size.rows, size.spark))
        rows.append(_row("  DuckDB", size.rows, size.duckdb))
    rows.append(("Spark's time by DuckDB's", f"{found.ratio_1:.2f} x", f"{found.ratio_2:.2f} x"))
    rows.append(("identical to NumPy", "yes" if found.identical else "NO", ""))
    return rows


def _row(name: str, rows: int, times: Times) -> Row:
    one, two = (
        f"{taken:.2f} s, CPU {worked:.2f} s, {rows / taken:,.0f} rows/s"
        for taken, worked in zip(times.seconds, times.cpu_seconds, strict=True)
    )
    return name, one, two
