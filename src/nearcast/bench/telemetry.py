"""How fast report rows become tables of percentiles: our Spark transforms, and DuckDB on the same Parquet files.

A row is one topic in one second's report of one broker, with its counters and its histogram, as `topic_counters` makes
it from reports. Times are from Parquet to Parquet: the input is rows, the output is one line per window and topic with
p50, p90 and p99. Each result is compared with NumPy's, number by number (`reference_table`).

DuckDB computes the same sums and comparisons, in SQL. The rows are generated: a thousand topics, each on one to three
brokers, reported every second.
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
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.core.model.counters import BUCKETS, bucket_limit_s
from nearcast.errors import UsageError
from nearcast.pipeline.jobs.telemetry import SHARES, SUMMED, TOPIC_COUNTERS, WINDOW_S, topic_sums, topic_table
from nearcast.pipeline.spark import SessionSettings, open_session

# --- DuckDB


def duckdb_table(files: list[Path], into: Path, threads: int) -> None:
    """Read Parquet files and write the table to a folder, as Parquet."""
    import duckdb

    into.mkdir(parents=True)
    with duckdb.connect(config={"threads": threads}) as connection:
        connection.execute(f"COPY ({_query(files)}) TO '{into / 'table.parquet'}' (FORMAT parquet)")


def _query(files: list[Path]) -> str:
    buckets = range(BUCKETS)
    last = BUCKETS - 1
    summed = ", ".join(f"sum({name})::BIGINT AS {name}" for name in SUMMED)
    counts = ", ".join(f'coalesce(sum(latencies."{bucket}"), 0)::BIGINT AS count_{bucket}' for bucket in buckets)
    running = ["count_0 AS seen_0"]
    running += [f"seen_{bucket - 1} + count_{bucket} AS seen_{bucket}" for bucket in buckets[1:]]
    limits = ", ".join(f"{bucket_limit_s(bucket)!r}::DOUBLE" for bucket in buckets)

    def percentile(name: str, share: float) -> str:
        below = " + ".join(f"(seen_{bucket} < {share}::DOUBLE * seen_{last})::INT" for bucket in buckets[:-1])
        return f"CASE WHEN seen_{last} > 0 THEN [{limits}][1 + {below}] END AS {name}"

    return f"""
        WITH sums AS (
            SELECT epoch_us("at") // {WINDOW_S * 1_000_000} * {WINDOW_S} AS window_s, topic, {summed}, {counts}
            FROM read_parquet([{", ".join(f"'{file}'" for file in files)}]) GROUP BY ALL
        ), cumulated AS (SELECT window_s, topic, {", ".join(SUMMED)}, {", ".join(running)} FROM sums)
        SELECT window_s, topic, {", ".join(SUMMED)}, seen_{last} AS samples,
            {", ".join(percentile(name, share) for name, share in SHARES.items())}
        FROM cumulated
    """


# --- the reference


class ReferenceTable(msgspec.Struct, frozen=True):
    """The expected table, sorted by window and then by topic."""

    rows: int  # that it was made from
    window_s: np.ndarray
    topic: np.ndarray
    sums: np.ndarray  # one column for each of SUMMED, then the samples
    percentiles_s: np.ndarray  # one column for each of SHARES; NaN without samples


def reference_table(files: list[Path]) -> ReferenceTable:
    topics: list[str] = []
    keys, values, rows = [], [], 0
    for file in files:
        table = pq.read_table(file)
        rows += len(table)
        key, value = _grouped(*_keyed(table, topics))
        keys.append(key)
        values.append(value)
    key, value = _grouped(np.concatenate(keys), np.concatenate(values))
    windows, names = key[:, 0], np.array(topics, dtype=object)[key[:, 1]]
    order = np.lexsort((names.astype(str), windows))
    counts = value[:, len(SUMMED) :]
    sums = np.column_stack([value[:, : len(SUMMED)], counts.sum(axis=1)])
    return ReferenceTable(rows, windows[order], names[order], sums[order], _percentiles(counts)[order])


def same_table(reference: ReferenceTable, folder: Path) -> bool:
    """Whether the Parquet files in a folder have exactly these lines and numbers."""
    found = pa.concat_tables([pq.read_table(file) for file in sorted(folder.glob("*.parquet"))])
    found = found.sort_by([("window_s", "ascending"), ("topic", "ascending")])
    columns = [found[name].to_numpy() for name in (*SUMMED, "samples")]
    percentiles = [found[name].to_numpy() for name in SHARES]
    return (
        np.array_equal(found["window_s"].to_numpy(), reference.window_s)
        and found["topic"].to_pylist() == reference.topic.tolist()
        and np.array_equal(np.column_stack(columns), reference.sums)
        and np.array_equal(np.column_stack(percentiles), reference.percentiles_s, equal_nan=True)
    )


def _keyed(table: pa.Table, topics: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """For each row, (window, number of the topic) and all counts. New topics get the next numbers."""
    encoded = table["topic"].combine_chunks().dictionary_encode()
    for name in encoded.dictionary.to_pylist():
        if name not in topics:
            topics.append(name)
    numbers = np.array([topics.index(name) for name in encoded.dictionary.to_pylist()])
    seconds = table["at"].cast(pa.int64()).to_numpy() // 1_000_000
    keys = np.column_stack([seconds // WINDOW_S * WINDOW_S, numbers[encoded.indices.to_numpy()]])
    latencies = table["latencies"].combine_chunks()
    buckets = [latencies.field(bucket).fill_null(0).to_numpy() for bucket in range(BUCKETS)]
    return keys, np.column_stack([*(table[name].to_numpy() for name in SUMMED), *buckets])


def _grouped(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    keys = keys[order]
    begins = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)])
    return keys[begins], np.add.reduceat(values[order], begins, axis=0)


def _percentiles(counts: np.ndarray) -> np.ndarray:
    """The limit of the first bucket at which each share of the samples is reached."""
    limits = np.array([bucket_limit_s(bucket) for bucket in range(BUCKETS)])
    seen = counts.cumsum(axis=1)
    total = seen[:, -1].astype(np.float64)
    found = [
        np.where(total > 0, limits[(seen >= (share * total)[:, None]).argmax(axis=1)], np.nan)
        for share in SHARES.values()
    ]
    return np.column_stack(found)


# --- generated rows


TOPICS = 1000
ROWS_PER_S = TOPICS * 2  # a topic is on one, two or three brokers: two on average
FILES = 20  # in order of time, as batches are written
BEGAN_S = 1_700_000_000
SAMPLES_MAX = 12  # latencies in one row, spread over a few neighbouring buckets
SPREAD = 1.5  # buckets


def made_rows(rows: int, folder: Path) -> list[Path]:
    """Generate files of rows, oldest first; the same for the same number of rows."""
    folder.mkdir(parents=True)
    edges = np.linspace(0, rows, FILES + 1).astype(np.int64)
    files = []
    for number in range(FILES):
        files.append(folder / f"{number:02}.parquet")
        pq.write_table(_rows(np.arange(edges[number], edges[number + 1]), number), files[-1])
    return files


def _rows(numbers: np.ndarray, seed: int) -> pa.Table:
    dice = np.random.default_rng(seed)
    count = len(numbers)
    topics = _topics_of_a_second()[numbers % ROWS_PER_S]
    at_us = (BEGAN_S + numbers // ROWS_PER_S) * 1_000_000 + dice.integers(0, 1_000_000, count)
    names = pa.array([f"game.tile.{topic}" for topic in range(TOPICS)])
    published = dice.integers(0, 40, count)
    received = published * dice.integers(1, 20, count)
    columns = {
        "at": pa.array(at_us, pa.timestamp("us", "UTC")),
        "topic": pa.DictionaryArray.from_arrays(pa.array(topics), names).cast(pa.string()),
        "published": published,
        "published_bytes": published * 200,
        "received": received,
        "received_bytes": received * 200,
        "publishers": np.minimum(published, 3),
        "subscribers": dice.integers(1, 20, count),
        "latencies": _histograms(dice, topics),
    }
    return pa.table(columns)


def _topics_of_a_second() -> np.ndarray:
    topics = np.arange(TOPICS, dtype=np.int32)
    repeated = np.repeat(topics, 1 + topics % 3)
    return np.resize(repeated, ROWS_PER_S)


def _histograms(dice: np.random.Generator, topics: np.ndarray) -> pa.StructArray:
    """Sparse histograms: a bucket without samples is null, as in a report."""
    count = len(topics)
    centres = 8 + topics % 11
    buckets = np.clip(centres[:, None] + dice.normal(0, SPREAD, (count, SAMPLES_MAX)), 0, BUCKETS - 1).astype(np.int64)
    taken = np.arange(SAMPLES_MAX) < dice.integers(0, SAMPLES_MAX + 1, (count, 1))
    cells = (buckets + np.arange(count)[:, None] * BUCKETS)[taken]
    counts = np.bincount(cells, minlength=count * BUCKETS).reshape(count, BUCKETS)
    columns = [pa.array(counts[:, bucket], mask=counts[:, bucket] == 0) for bucket in range(BUCKETS)]
    return pa.StructArray.from_arrays(columns, [str(bucket) for bucket in range(BUCKETS)])


# --- the measurement


ROWS_MIN = 20_000
GROWTH = (0.1, 0.3, 1.0)  # shares of the requested rows
THREADS = (1, 2)
ROUNDS = 3  # the median counts
WARM_ROUNDS = 3  # Java compiles what runs often

Progress = Callable[[str], None]
Step = Callable[[list[Path], Path], None]
Clock = Callable[[], float]


class Times(msgspec.Struct, frozen=True):
    """Seconds on one thread and on two."""

    seconds: list[float]
    cpu_seconds: list[float]  # of all its threads: hardly affected by other work on the machine


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one size."""

    rows: int
    lines: int  # of the result: windows times topics
    spark: Times
    duckdb: Times
    identical: bool


class TelemetryBench(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run."""

    rows: int
    topics: int
    local1_rows_per_s: float
    local2_rows_per_s: float
    duckdb1_rows_per_s: float
    duckdb2_rows_per_s: float
    ratio_1: float  # Spark's time / DuckDB's, one thread each
    ratio_2: float
    identical: bool  # all of Spark's and DuckDB's lines equal NumPy's
    growth: list[Size]


def measure_telemetry(rows: int, *, rounds: int = ROUNDS, progress: Progress = lambda _: None) -> TelemetryBench:
    if rows < ROWS_MIN:
        raise UsageError(f"give at least {ROWS_MIN} rows")
    folder = Path(tempfile.mkdtemp(prefix="nearcast-telemetry-"))
    try:
        progress(f"generating {rows:,} rows")
        files = made_rows(rows, folder / "rows")
        parts = [files[: max(1, round(share * FILES))] for share in GROWTH]
        return _found(rows, _measured(parts, folder / "result", rounds, progress))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _found(rows: int, growth: list[Size]) -> TelemetryBench:
    requested = growth[-1]
    return TelemetryBench(
        rows=rows,
        topics=TOPICS,
        local1_rows_per_s=requested.rows / requested.spark.seconds[0],
        local2_rows_per_s=requested.rows / requested.spark.seconds[1],
        duckdb1_rows_per_s=requested.rows / requested.duckdb.seconds[0],
        duckdb2_rows_per_s=requested.rows / requested.duckdb.seconds[1],
        ratio_1=requested.spark.seconds[0] / requested.duckdb.seconds[0],
        ratio_2=requested.spark.seconds[1] / requested.duckdb.seconds[1],
        identical=all(size.identical for size in growth),
        growth=growth,
    )


def _measured(parts: list[list[Path]], result: Path, rounds: int, progress: Progress) -> list[Size]:
    progress("the reference: NumPy")
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
    """The CPU time of Spark's Java process, as Linux reports it."""
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
