"""Stored telemetry for readers, without Spark: tables of sums, and a summary of a period.

`TelemetryTables` merges the sums of all files. It computes the same sums as the transforms in `jobs/telemetry.py`, but
with Arrow and NumPy; a test compares the two.

`summarise` makes one line per topic, per broker, and per window of the whole cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from nearcast.core.model.counters import BUCKETS, bucket_limit_s
from nearcast.errors import UsageError
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.datasets import BROKERS, TOPICS, TelemetryCatalog, sums_path
from nearcast.pipeline.jobs.telemetry import BROKER_MAXIMA, BROKER_SUMMED, SHARES, SUMMED, WINDOW_S
from nearcast.pipeline.storage import Warehouse

if TYPE_CHECKING:
    import pyarrow


# --- tables


TRIES = 3  # files may be merged while we read; the catalogue then names others

Counts = NDArray[np.int64]
BUCKET_NAMES = [f"bucket_{bucket}" for bucket in range(BUCKETS)]
_LIMITS_S = np.array([bucket_limit_s(bucket) for bucket in range(BUCKETS)])


class TelemetryTables:
    """The telemetry in the folder of a data cluster, which may be running or not."""

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
            # Files written by one batch have non-null columns; files that Spark has read and merged do not.
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
    """The merged sums: whole numbers, none of them null, sorted by window and name."""
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
    """For each row, the upper limit of the bucket in which each share is reached; NaN without samples."""
    seen = counts.cumsum(axis=1)
    total = seen[:, -1:].astype(np.float64)
    found = np.empty((len(counts), len(shares)))
    for place, share in enumerate(shares):
        below = (seen[:, :-1] < share * total).sum(axis=1)
        found[:, place] = np.where(total[:, 0] > 0, _LIMITS_S[below], np.nan)
    return found


# --- the summary


class Latency(msgspec.Struct, frozen=True):
    """Latency of messages, sampled by subscribers: upper limits of histogram buckets. None without samples."""

    samples: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None


class TopicLine(msgspec.Struct, frozen=True, kw_only=True):
    """One topic in the period."""

    topic: str
    published_per_s: float
    published_bytes_per_s: float
    delivered_per_s: float
    delivered_bytes_per_s: float
    publishers: float  # means over the windows in which the topic was reported
    subscribers: float
    latency: Latency


class BrokerLine(msgspec.Struct, frozen=True, kw_only=True):
    """One broker in the period."""

    broker: str
    output_bytes_per_s: float
    output_bytes_per_s_max: float  # in any one report
    input_bytes_per_s: float
    cpu_share: float
    memory_bytes_max: int
    connections_max: int
    windows_s: list[int]  # those in which it reported; its output in each follows
    window_output_bytes_per_s: list[float]


class WindowLine(msgspec.Struct, frozen=True, kw_only=True):
    """All requested topics together, in one window."""

    window_s: int
    published_per_s: float
    delivered_per_s: float
    latency: Latency


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What `summarise` returns."""

    since_s: float
    until_s: float
    window_length_s: int
    covered_s: float  # from the first window to the last; rates are over this time
    topics: list[TopicLine]  # most delivered bytes first
    brokers: list[BrokerLine]
    windows: list[WindowLine]


def summarise(tables: TelemetryTables, since_s: float, until_s: float, topic: str = "*", broker: str = "*") -> Summary:
    """A summary of the windows that begin at or after `since_s`; `topic` and `broker` are patterns."""
    topics, brokers = tables.topics(since_s, topic), tables.brokers(since_s, broker)
    starts = np.concatenate([column(topics, "window_s"), column(brokers, "window_s")])
    covered_s = 0.0 if not len(starts) else max(1.0, min(until_s, float(starts.max()) + WINDOW_S) - float(starts.min()))
    lines = _topic_lines(topics, covered_s)
    return Summary(
        since_s=since_s,
        until_s=until_s,
        window_length_s=WINDOW_S,
        covered_s=covered_s,
        topics=sorted(lines, key=lambda line: (-line.delivered_bytes_per_s, line.topic)),
        brokers=_broker_lines(brokers),
        windows=_window_lines(topics),
    )


def _topic_lines(table: pyarrow.Table, covered_s: float) -> list[TopicLine]:
    names, place = _places(table, "topic")
    latencies = _latencies(_summed(place, len(names), histograms(table)))
    windows = np.bincount(place, minlength=len(names))

    def sums(name: str) -> Counts:
        return _summed(place, len(names), column(table, name))

    def mean(name: str) -> list[float]:
        return (sums(name) / (windows * WINDOW_S)).tolist()

    def rate(name: str) -> list[float]:
        return (sums(name) / covered_s).tolist() if len(names) else []

    rates = (rate("published"), rate("published_bytes"), rate("received"), rate("received_bytes"))
    found = zip(names, *rates, mean("publishers"), mean("subscribers"), latencies, strict=True)
    fields = TopicLine.__struct_fields__
    return [TopicLine(**dict(zip(fields, values, strict=True))) for values in found]


def _broker_lines(table: pyarrow.Table) -> list[BrokerLine]:
    names, place = _places(table, "broker")
    windows, output = column(table, "window_s"), column(table, "output_bytes")
    measured_s = column(table, "measured_ms") / 1000
    lines = []
    for number, name in sorted(enumerate(names), key=lambda found: found[1]):
        mine = place == number
        seconds = float(measured_s[mine].sum())

        def total(what: str, mine: np.ndarray = mine) -> float:
            return float(column(table, what)[mine].sum())

        def most(what: str, mine: np.ndarray = mine) -> int:
            return int(column(table, what)[mine].max())

        lines.append(
            BrokerLine(
                broker=name,
                output_bytes_per_s=total("output_bytes") / seconds,
                output_bytes_per_s_max=most("output_bytes_per_s_max"),
                input_bytes_per_s=total("input_bytes") / seconds,
                cpu_share=total("cpu_us") / 1e6 / seconds,
                memory_bytes_max=most("memory_bytes_max"),
                connections_max=most("connections_max"),
                windows_s=windows[mine].tolist(),
                window_output_bytes_per_s=(output[mine] / measured_s[mine]).tolist(),
            )
        )
    return lines


def _window_lines(table: pyarrow.Table) -> list[WindowLine]:
    starts, place = np.unique(column(table, "window_s"), return_inverse=True)
    latencies = _latencies(_summed(place, len(starts), histograms(table)))
    published = _summed(place, len(starts), column(table, "published")) / WINDOW_S
    delivered = _summed(place, len(starts), column(table, "received")) / WINDOW_S
    found = zip(starts.tolist(), published.tolist(), delivered.tolist(), latencies, strict=True)
    return [
        WindowLine(window_s=start, published_per_s=sent, delivered_per_s=got, latency=latency)
        for start, sent, got, latency in found
    ]


def _places(table: pyarrow.Table, key: str) -> tuple[list[str], Counts]:
    """The names in a column, and for each row the index of its name."""
    encoded = table[key].combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), np.asarray(encoded.indices.to_numpy(), dtype=np.int64)


def _summed(place: Counts, groups: int, values: Counts) -> Counts:
    """Sums of the rows of each group; no group is empty."""
    if not groups:
        return values[:0]
    order = np.argsort(place, kind="stable")
    begins = np.searchsorted(place[order], np.arange(groups))
    return np.add.reduceat(values[order], begins, axis=0)


def _latencies(counts: Counts) -> list[Latency]:
    found = percentiles_s(counts).tolist()
    return [
        Latency(samples, *(None if math.isnan(value) else value for value in row))
        for samples, row in zip(counts.sum(axis=1).tolist(), found, strict=True)
    ]
