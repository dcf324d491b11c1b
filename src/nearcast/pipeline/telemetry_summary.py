"""A summary of telemetry over some time: one line per topic and per broker, and the whole cluster by window."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from nearcast.pipeline.telemetry_tables import Counts, TelemetryTables, column, histograms, percentiles_s
from nearcast.pipeline.transforms.telemetry import WINDOW_S

if TYPE_CHECKING:
    import pyarrow


class Latency(msgspec.Struct, frozen=True):
    """Of messages, sampled by subscribers; upper limits of histogram buckets. None without samples."""

    samples: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None


class TopicLine(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    published_per_s: float
    published_bytes_per_s: float
    delivered_per_s: float
    delivered_bytes_per_s: float
    publishers: float  # means over the windows in which the topic was reported
    subscribers: float
    latency: Latency


class BrokerLine(msgspec.Struct, frozen=True, kw_only=True):
    broker: str
    output_bytes_per_s: float
    output_bytes_per_s_max: float  # in one report
    input_bytes_per_s: float
    cpu_share: float
    memory_bytes_max: int
    connections_max: int
    windows_s: list[int]  # those in which it reported, and its output in each
    window_output_bytes_per_s: list[float]


class WindowLine(msgspec.Struct, frozen=True, kw_only=True):
    """All topics that were asked for."""

    window_s: int
    published_per_s: float
    delivered_per_s: float
    latency: Latency


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    since_s: float
    until_s: float
    window_length_s: int
    covered_s: float  # from the first window to the last: rates are per second of this
    topics: list[TopicLine]  # most delivered bytes first
    brokers: list[BrokerLine]
    windows: list[WindowLine]


def summarise(tables: TelemetryTables, since_s: float, until_s: float, topic: str = "*", broker: str = "*") -> Summary:
    """Windows that begin from `since_s` on; `topic` and `broker` are patterns."""
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
    """The names in a column, and for each row which of them it has."""
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
