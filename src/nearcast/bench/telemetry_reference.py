"""The reference of `bench telemetry`: the same table by NumPy, and the comparison with what others wrote."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.core.counters import BUCKETS, bucket_limit_s
from nearcast.pipeline.transforms.telemetry import SHARES, SUMMED, WINDOW_S


class ReferenceTable(msgspec.Struct, frozen=True):
    """Sorted by window, then topic."""

    rows: int  # that it was made of
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
    """Whether the Parquet in a folder has these lines, and every number of them."""
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
    """(window, number of the topic) and all counts of each row; unknown topics are numbered."""
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
    """The limit of the first bucket with which a share of the samples is reached."""
    limits = np.array([bucket_limit_s(bucket) for bucket in range(BUCKETS)])
    seen = counts.cumsum(axis=1)
    total = seen[:, -1].astype(np.float64)
    found = [
        np.where(total > 0, limits[(seen >= (share * total)[:, None]).argmax(axis=1)], np.nan)
        for share in SHARES.values()
    ]
    return np.column_stack(found)
