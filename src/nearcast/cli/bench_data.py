"""The commands of `nearcast bench` that measure the data pipeline, and how all of them show rates and ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.shared import Output, OutputOption, errors_as_exit_codes, run, say, show

if TYPE_CHECKING:
    from nearcast.bench.channels import ChannelsBench
    from nearcast.bench.ingest import IngestBench
    from nearcast.bench.telemetry import TelemetryBench, Times


def _seconds(value: float | None) -> str:
    return "not installed" if value is None else f"{value:,.2f} s"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f} x"


def rate(per_s: float) -> str:
    return f"{per_s:,.0f} /s"


# --- bench channels


CHANNELS_COLUMNS = ("", "measured", "goal")


@errors_as_exit_codes()
def channels(
    records: Annotated[int, typer.Option("--records", min=1000, help="New records per execution.")] = 10_000_000,
    subscriptions: Annotated[
        int, typer.Option("--subscriptions", min=20, help="Subscriptions, with 1,000 parameter sets.")
    ] = 100_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How many rounds; the best counts.")] = 3,
    sample: Annotated[
        int, typer.Option("--sample", min=1, help="Single queries to run; the time of all is estimated from them.")
    ] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time an execution of a channel, compared with DuckDB.

    There is an equality channel and a distance channel. They are also compared with one query per subscription.

    Example: nearcast bench channels --records 10000000 --subscriptions 100000 --json
    """
    from nearcast.bench.channels import measure_channels

    found = measure_channels(records, subscriptions, rounds=rounds, sample=sample, progress=say)
    show(Output.JSON if as_json else output, found, CHANNELS_COLUMNS, _channels_rows(found))


def _channels_rows(found: ChannelsBench) -> list[tuple[str, str, str]]:
    share = "" if found.pairs_matching_share is None else f", {found.pairs_matching_share:.1%} of the pairs in a cell"
    return [
        ("equality", _seconds(found.equality_s), ""),
        ("  rows, bytes written", f"{found.equality_output.rows:,}, {found.equality_output.bytes:,}", ""),
        ("  DuckDB", _seconds(found.duckdb_equality_s), ""),
        ("  relative to DuckDB", ratio(found.ratio_equality), "<= 5 x"),
        ("  one query per subscription, estimated", _seconds(found.naive_equality_s_estimated), ""),
        ("  one query per subscription, relative to ours", ratio(found.ratio_naive), ">= 50 x"),
        ("  one query per parameter set, relative to ours", ratio(found.ratio_naive_sets), ""),
        (f"distance, {found.radius_m:g} m{share}", _seconds(found.distance_s), ""),
        ("  rows, bytes written", f"{found.distance_output.rows:,}, {found.distance_output.bytes:,}", ""),
        ("  DuckDB", _seconds(found.duckdb_distance_s), ""),
        ("  relative to DuckDB", ratio(found.ratio_distance), ""),
        ("same results", "yes" if found.identical else "NO", "yes"),
        ("execution without new records", _seconds(found.overhead_s), "<= 0.5 s"),
    ]


# --- bench ingest


INGEST_COLUMNS = ("", "measured", "goal")


def ingest(
    records: Annotated[int, typer.Option("--records", min=2000, help="Records per round, of about 300 B.")] = 1_000_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How many rounds; medians are shown.")] = 3,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="How long each lag is measured.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time feeds: messages in logs become committed Parquet.

    It is compared with a loop of redis-py, json and pyarrow, in turn, and takes about five minutes. The first batch of
    a round is not timed. The lag is from a message's acknowledgement to the commit of its batch, at 1,000 records/s.

    Example: nearcast bench ingest --json
    """
    from nearcast.bench.ingest import measure_ingest

    found = run(lambda: measure_ingest(records, rounds=rounds, seconds=seconds, progress=say))
    show(Output.JSON if as_json else output, found, INGEST_COLUMNS, _ingest_rows(found))


def _ingest_rows(found: IngestBench) -> list[tuple[str, str, str]]:
    size = f"{found.records:,} records of {found.record_bytes:,.0f} B"
    return [
        (f"feeds, {size}, batches of {found.batch_records:,}", rate(found.records_per_s), ">= 100,000 /s"),
        *((f"  from {grown.brokers} brokers", rate(grown.records_per_s), "") for grown in found.growth),
        ("  the first batch, cold", _seconds(found.cold_batch_s), ""),
        ("redis-py, json and pyarrow", rate(found.redis_py_records_per_s), ""),
        ("  feeds, relative to it", ratio(found.ratio), ">= 1.2 x"),
        ("lag at 1,000 records/s, p99", _seconds(found.lag_s), "<= 2 s"),
        ("  p50", _seconds(found.lag_p50_s), "<= 1 s"),
        ("  processors", f"{found.lag_cores:.2f}", ""),
        ("with ten feeds, p99", _seconds(found.ten_feeds_lag_s), "<= 2 s"),
        ("  p50", _seconds(found.ten_feeds_lag_p50_s), "<= 1 s"),
        ("  processors", f"{found.ten_feeds_cores:.2f}", "<= 0.5"),
    ]


# --- bench telemetry


TELEMETRY_COLUMNS = ("", "1 thread", "2 threads")

TelemetryRow = tuple[str, str, str]


@errors_as_exit_codes()
def telemetry(
    rows: Annotated[int, typer.Option("--rows", min=20_000, help="Rows, one per topic, broker and second.")] = (
        5_000_000
    ),
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How many rounds; medians are shown.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time the aggregation of agents' reports, compared with DuckDB.

    Rows of reports become percentiles per window and topic, with Spark and with DuckDB, and both are checked.

    A row is one topic in one second's report of one broker: counters and a latency histogram of 40 buckets. Parquet
    in, Parquet out. `identical`: every number equals that of a NumPy reference.

    Example: nearcast bench telemetry --rows 5000000 --json
    """
    from nearcast.bench.telemetry import measure_telemetry

    found = measure_telemetry(rows, rounds=rounds, progress=say)
    show(Output.JSON if as_json else output, found, TELEMETRY_COLUMNS, _telemetry_rows(found))


def _telemetry_rows(found: TelemetryBench) -> list[TelemetryRow]:
    rows: list[TelemetryRow] = []
    for size in found.growth:
        rows.append((f"{size.rows:,} rows, {size.lines:,} lines", "", ""))
        rows.append(_telemetry_row("  Spark", size.rows, size.spark))
        rows.append(_telemetry_row("  DuckDB", size.rows, size.duckdb))
    rows.append(("Spark's time / DuckDB's", f"{found.ratio_1:.2f} x", f"{found.ratio_2:.2f} x"))
    rows.append(("identical to NumPy", "yes" if found.identical else "NO", ""))
    return rows


def _telemetry_row(name: str, rows: int, times: Times) -> TelemetryRow:
    one, two = (
        f"{taken:.2f} s, CPU {worked:.2f} s, {rows / taken:,.0f} rows/s"
        for taken, worked in zip(times.seconds, times.cpu_seconds, strict=True)
    )
    return name, one, two
