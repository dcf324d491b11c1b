"""The tables of telemetry as a reader sees them: sums of all files merged, without Spark, for a few MB at once.

The same sums as the transforms of `transforms/telemetry.py`, by Arrow and NumPy; a test holds both to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nearcast.core.counters import BUCKETS, bucket_limit_s
from nearcast.errors import UsageError
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.telemetry import BROKERS, TOPICS, TelemetryCatalog, sums_path
from nearcast.pipeline.io import Warehouse
from nearcast.pipeline.transforms.telemetry import BROKER_MAXIMA, BROKER_SUMMED, SHARES, SUMMED

if TYPE_CHECKING:
    import pyarrow

TRIES = 3  # files are merged while we read: then the catalogue names others

Counts = NDArray[np.int64]
BUCKET_NAMES = [f"bucket_{bucket}" for bucket in range(BUCKETS)]
_LIMITS_S = np.array([bucket_limit_s(bucket) for bucket in range(BUCKETS)])


class TelemetryTables:
    """What a data cluster has written into its folder; it may be running or not."""

    def __init__(self, folder: Path) -> None:
        self._warehouse = Warehouse(folder.absolute())
        if not self._warehouse.catalog.exists():
            raise UsageError(f"there is no data cluster in {folder}: give the --folder of `nearcast data`")
        self._database = Database(self._warehouse.catalog)
        self._catalog = TelemetryCatalog(self._database)

    def topics(self, since_s: float, names: str = "*") -> pyarrow.Table:
        """Sums per window and topic from `since_s` on; `names` is a pattern. The histogram is a column per bucket."""
        return self._read(TOPICS, since_s, names, _topic_sums)

    def brokers(self, since_s: float, names: str = "*") -> pyarrow.Table:
        return self._read(BROKERS, since_s, names, _broker_sums)

    def close(self) -> None:
        self._database.close()

    def _read(self, name: str, since_s: float, names: str, merge: Callable[[Any], Any]) -> pyarrow.Table:
        import pyarrow
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        for attempt in range(TRIES):
            files = self._catalog.files(name, since_s)
            folders = [sums_path(self._warehouse, name, file.level, file.number) for file in files]
            try:
                parts = [pq.read_table(file) for folder in folders for file in sorted(folder.glob("*.parquet"))]
            except FileNotFoundError:
                if attempt == TRIES - 1:
                    raise
                continue
            if not parts:
                break
            # What one batch wrote has columns that cannot be null, what Spark has read and merged has none such.
            found = pyarrow.concat_tables(parts, promote_options="default")
            wanted = [name for name in pc.unique(found.column(1)).to_pylist() if fnmatchcase(name, names)]
            right_name = pc.is_in(found.column(1), pyarrow.array(wanted, pyarrow.string()))
            return merge(found.filter(pc.and_(right_name, pc.greater_equal(found["window_s"], int(since_s)))))
        return merge(None)


def _topic_sums(found: pyarrow.Table | None) -> pyarrow.Table:
    import pyarrow.compute as pc

    if found is not None:
        flat = found.drop_columns("latencies")
        for bucket, name in enumerate(BUCKET_NAMES):
            flat = flat.append_column(name, pc.struct_field(found["latencies"], str(bucket)))
        found = flat
    return _merged(found, "topic", dict.fromkeys((*SUMMED, *BUCKET_NAMES), "sum"))


def _broker_sums(found: pyarrow.Table | None) -> pyarrow.Table:
    return _merged(found, "broker", dict.fromkeys(BROKER_SUMMED, "sum") | dict.fromkeys(BROKER_MAXIMA, "max"))


def _merged(found: pyarrow.Table | None, key: str, how: dict[str, str]) -> pyarrow.Table:
    """Whole numbers, none of them null, in the order of windows and names."""
    import pyarrow
    import pyarrow.compute as pc

    if found is None:
        types = {"window_s": pyarrow.int64(), key: pyarrow.string()} | dict.fromkeys(how, pyarrow.int64())
        return pyarrow.schema(list(types.items())).empty_table()
    grouped = found.group_by(["window_s", key]).aggregate(list(how.items()))
    values = [pc.fill_null(grouped[f"{name}_{kind}"], 0) for name, kind in how.items()]
    merged = pyarrow.table([grouped["window_s"], grouped[key], *values], names=["window_s", key, *how])
    return merged.sort_by([("window_s", "ascending"), (key, "ascending")])


def column(table: pyarrow.Table, name: str) -> Counts:
    return np.asarray(table[name].to_numpy(), dtype=np.int64)


def histograms(table: pyarrow.Table) -> Counts:
    """One row per row of a table of topics, one column per bucket."""
    return np.stack([column(table, name) for name in BUCKET_NAMES], axis=1)


def percentiles_s(counts: Counts, shares: Sequence[float] = tuple(SHARES.values())) -> NDArray[np.float64]:
    """Per row of histograms: the upper limit of the bucket in which each share is reached; NaN without samples."""
    seen = counts.cumsum(axis=1)
    total = seen[:, -1:].astype(np.float64)
    found = np.empty((len(counts), len(shares)))
    for place, share in enumerate(shares):
        below = (seen[:, :-1] < share * total).sum(axis=1)
        found[:, place] = np.where(total[:, 0] > 0, _LIMITS_S[below], np.nan)
    return found
