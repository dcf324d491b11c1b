"""The table of `bench telemetry` by DuckDB: the same sums and comparisons, written in SQL."""

from __future__ import annotations

from pathlib import Path

from nearcast.core.counters import BUCKETS, bucket_limit_s
from nearcast.pipeline.transforms.telemetry import SHARES, SUMMED, WINDOW_S


def duckdb_table(files: list[Path], into: Path, threads: int) -> None:
    """Write the table into a folder, from Parquet to Parquet."""
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
