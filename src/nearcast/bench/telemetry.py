"""How fast report rows become tables of percentiles: our Spark transforms, and DuckDB on the same Parquet files.

A row is one topic in one second's report of one broker, its counters and its histogram beside each other, as
`topic_counters` makes it of reports. Time is from Parquet to Parquet: rows in, one line per window and topic with
p50, p90 and p99 out. Each result is compared with NumPy's, number by number (`telemetry_reference.py`).
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from nearcast.bench.telemetry_duckdb import duckdb_table
from nearcast.bench.telemetry_reference import reference_table, same_table
from nearcast.bench.telemetry_rows import FILES, TOPICS, made_rows
from nearcast.errors import UsageError
from nearcast.pipeline.session import SessionSettings, open_session
from nearcast.pipeline.transforms.telemetry import TOPIC_COUNTERS, topic_sums, topic_table

ROWS_MIN = 20_000
GROWTH = (0.1, 0.3, 1.0)  # of the rows that were asked for
THREADS = (1, 2)
ROUNDS = 3  # the median counts
WARM_ROUNDS = 3  # Java compiles what runs often

Progress = Callable[[str], None]
Step = Callable[[list[Path], Path], None]
Clock = Callable[[], float]


class Times(msgspec.Struct, frozen=True):
    """Seconds on one thread and on two."""

    seconds: list[float]
    cpu_seconds: list[float]  # of all its threads: nearly the same on a machine that does other things too


class Size(msgspec.Struct, frozen=True, kw_only=True):
    rows: int
    lines: int  # of the result: windows times topics
    spark: Times
    duckdb: Times
    identical: bool


class TelemetryBench(msgspec.Struct, frozen=True, kw_only=True):
    rows: int
    topics: int
    local1_rows_per_s: float
    local2_rows_per_s: float
    duckdb1_rows_per_s: float
    duckdb2_rows_per_s: float
    ratio_1: float  # Spark's time by DuckDB's, one thread each
    ratio_2: float
    identical: bool  # all of Spark's and DuckDB's lines are NumPy's
    growth: list[Size]


def measure_telemetry(rows: int, *, rounds: int = ROUNDS, progress: Progress = lambda _: None) -> TelemetryBench:
    if rows < ROWS_MIN:
        raise UsageError(f"give at least {ROWS_MIN} rows")
    folder = Path(tempfile.mkdtemp(prefix="nearcast-telemetry-"))
    try:
        progress(f"making {rows:,} rows")
        files = made_rows(rows, folder / "rows")
        parts = [files[: max(1, round(share * FILES))] for share in GROWTH]
        return _found(rows, _measured(parts, folder / "result", rounds, progress))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _found(rows: int, growth: list[Size]) -> TelemetryBench:
    asked = growth[-1]
    return TelemetryBench(
        rows=rows,
        topics=TOPICS,
        local1_rows_per_s=asked.rows / asked.spark.seconds[0],
        local2_rows_per_s=asked.rows / asked.spark.seconds[1],
        duckdb1_rows_per_s=asked.rows / asked.duckdb.seconds[0],
        duckdb2_rows_per_s=asked.rows / asked.duckdb.seconds[1],
        ratio_1=asked.spark.seconds[0] / asked.duckdb.seconds[0],
        ratio_2=asked.spark.seconds[1] / asked.duckdb.seconds[1],
        identical=all(size.identical for size in growth),
        growth=growth,
    )


def _measured(parts: list[list[Path]], result: Path, rounds: int, progress: Progress) -> list[Size]:
    progress("the reference, NumPy")
    references = [reference_table(files) for files in parts]
    right = [True] * len(parts)
    spark_times = [Times([], []) for _ in parts]
    duckdb_times = [Times([], []) for _ in parts]

    def time_all(step: Step, cpu: Clock, times: list[Times]) -> None:
        for place, files in enumerate(parts):
            progress(f"  {references[place].rows:,} rows")
            seconds, cpu_seconds = _timed(step, cpu, files, result, rounds)
            times[place].seconds.append(seconds)
            times[place].cpu_seconds.append(cpu_seconds)
            right[place] &= same_table(references[place], result)

    for threads in THREADS:
        progress(f"Spark, local[{threads}]")
        settings = SessionSettings(
            master=f"local[{threads}]", app_name="nearcast-bench-telemetry", shuffle_partitions=threads
        )
        with open_session(settings) as spark:
            step = _spark_step(spark)
            for _ in range(WARM_ROUNDS):
                step(parts[0], result)
            time_all(step, _java_clock(spark), spark_times)
        progress(f"DuckDB, {threads} thread{'s' * (threads > 1)}")
        time_all(partial(duckdb_table, threads=threads), time.process_time, duckdb_times)
    return [
        Size(rows=table.rows, lines=len(table.window_s), spark=spark_time, duckdb=duckdb_time, identical=same)
        for table, spark_time, duckdb_time, same in zip(references, spark_times, duckdb_times, right, strict=True)
    ]


def _spark_step(spark: Any) -> Step:
    def step(files: list[Path], into: Path) -> None:
        rows = spark.read.schema(TOPIC_COUNTERS).parquet(*map(str, files))
        topic_table(topic_sums(rows)).write.mode("overwrite").parquet(str(into))

    return step


def _java_clock(spark: Any) -> Clock:
    """The CPU time of Spark's Java process, as Linux tells it."""
    stat = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/stat")
    ticks_per_s = os.sysconf("SC_CLK_TCK")

    def clock() -> float:
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / ticks_per_s

    return clock


def _timed(step: Step, cpu: Clock, files: list[Path], into: Path, rounds: int) -> tuple[float, float]:
    taken, worked = [], []
    for _ in range(rounds):
        shutil.rmtree(into, ignore_errors=True)
        began_s, began_cpu_s = time.perf_counter(), cpu()
        step(files, into)
        taken.append(time.perf_counter() - began_s)
        worked.append(cpu() - began_cpu_s)
    return statistics.median(taken), statistics.median(worked)
