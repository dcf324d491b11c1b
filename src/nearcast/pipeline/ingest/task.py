"""What one task of the feeds' query does: ranges of logs in, Parquet files out, and a manifest of both.

It runs in a Python worker of Spark. Messages go from the server's answer to Arrow columns and to a file without passing
through Java. Java gets the manifest, one row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from nearcast.core.model.names import LOGS
from nearcast.core.wire.batches import decode_batch
from nearcast.core.wire.frames import HEADER
from nearcast.pipeline.ingest.orders import Manifest, Order, ReadRange
from nearcast.pipeline.ingest.sink import Run, Sink
from nearcast.pipeline.sources.parts import Entry, entries
from nearcast.pipeline.sources.positions import PartRange
from nearcast.pipeline.sources.server import RespConnection

MANIFEST = "manifest BINARY"

_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9@._-]")
_decode_manifest = msgspec.msgpack.Decoder(Manifest).decode


def run_task(order: Order, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow` over the rows of the source. A task without rows tells nothing."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    if rows:
        manifest = ingested(order, [(PartRange(row["stream"], row["after"], row["upto"]), row["url"]) for row in rows])
        yield pa.RecordBatch.from_pydict({"manifest": [msgspec.msgpack.encode(manifest)]})


def read_manifest(row: bytes) -> Manifest:
    return _decode_manifest(row)


def ingested(order: Order, wanted: Sequence[tuple[PartRange, str]]) -> Manifest:
    """Read the ranges, each from its server, and write what the feeds want of them."""
    name = _file_name([each for each, _ in wanted])
    sinks = [Sink(feed, name) for feed in order.feeds]
    found = []
    for each, url in wanted:
        reading = RangeReading(each, sinks)
        if url and each.messages:  # otherwise nobody has it any more
            with RespConnection(url, order.credentials) as server:
                for page in entries(server, each.stream, each.after, each.upto):
                    reading.take(page)
        found.append(reading.told())
    return Manifest(found, [sink.close() for sink in sinks])


def _file_name(wanted: Sequence[PartRange]) -> str:
    """Of the files of one task: named by its first range, which no other task of the batch has."""
    first = wanted[0]
    stream = _NAME_CHARACTERS.sub("_", first.stream.removeprefix(LOGS.decode()))
    others = f"-and-{len(wanted) - 1}-more" if len(wanted) > 1 else ""
    return f"{stream}-{first.after}-{first.upto}{others}"


class RangeReading:
    """Hands the messages of one range to the feeds that want them."""

    def __init__(self, wanted: PartRange, sinks: Sequence[Sink]) -> None:
        self.read = 0  # messages that were there
        self._wanted = wanted
        self._whole: Entry | None = None  # the last one that is in the range up to its end
        self._sinks = [sink for sink in sinks if sink.reads(wanted.stream)]
        self._by_topic: dict[bytes, list[Sink]] = {}

    def told(self) -> ReadRange:
        wanted, lost = self._wanted, self._wanted.messages - self.read
        if self._whole is None:
            return ReadRange(wanted.stream, wanted.after, wanted.upto, lost)
        return ReadRange(
            wanted.stream, wanted.after, wanted.upto, lost, self._whole.name.decode(), self._whole.position
        )

    def take(self, page: Sequence[Entry]) -> None:
        for entry in page:
            position = entry.position - sum(_count(batch) for batch in entry.batches[1::2])
            for topic, batch in zip(entry.batches[::2], entry.batches[1::2], strict=True):
                self._take_batch(topic, batch, position, entry.at_us)
                position += _count(batch)
            if entry.position <= self._wanted.upto:
                self._whole = entry

    def _take_batch(self, topic: bytes, batch: bytes, position: int, at_us: int) -> None:
        """The messages of one batch that are in the range; `position` is that before its first."""
        _, _, publisher, first, count = HEADER.unpack_from(batch)
        begin, end = max(0, self._wanted.after - position), min(count, self._wanted.upto - position)
        if begin >= end:
            return
        self.read += end - begin
        for sink in self._wanting(topic):
            skipped = max(begin, sink.since(self._wanted.stream) - position)
            if skipped < end:
                items = decode_batch(batch) or []  # what is not a batch of ours has nothing to read
                sink.add(Run(topic, publisher, first + skipped, at_us), items[skipped:end])

    def _wanting(self, topic: bytes) -> list[Sink]:
        found = self._by_topic.get(topic)
        if found is None:
            found = self._by_topic[topic] = [sink for sink in self._sinks if sink.wants(topic)]
        return found


def _count(batch: bytes) -> int:
    return int(HEADER.unpack_from(batch)[4])
