"""Rows of reports to aggregate: a thousand topics, each on one to three brokers, reported every second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.core.counters import BUCKETS

TOPICS = 1000
ROWS_PER_S = TOPICS * 2  # a topic is on one, two or three brokers: two on average
FILES = 20  # in the order of time, as batches are written
BEGAN_S = 1_700_000_000
SAMPLES_MAX = 12  # latencies in one row, spread over a few neighbouring buckets
SPREAD = 1.5  # buckets


def made_rows(rows: int, folder: Path) -> list[Path]:
    """The files, oldest first; the same for the same number of rows."""
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
    """Sparse: a bucket without samples is null, as in a report."""
    count = len(topics)
    centres = 8 + topics % 11
    buckets = np.clip(centres[:, None] + dice.normal(0, SPREAD, (count, SAMPLES_MAX)), 0, BUCKETS - 1).astype(np.int64)
    taken = np.arange(SAMPLES_MAX) < dice.integers(0, SAMPLES_MAX + 1, (count, 1))
    cells = (buckets + np.arange(count)[:, None] * BUCKETS)[taken]
    counts = np.bincount(cells, minlength=count * BUCKETS).reshape(count, BUCKETS)
    columns = [pa.array(counts[:, bucket], mask=counts[:, bucket] == 0) for bucket in range(BUCKETS)]
    return pa.StructArray.from_arrays(columns, [str(bucket) for bucket in range(BUCKETS)])
