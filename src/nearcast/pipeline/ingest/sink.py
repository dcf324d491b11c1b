"""The records and dead letters of one feed in one task, on their way to files."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from nearcast.core.model.globs import matcher
from nearcast.core.wire.batches import Item
from nearcast.core.wire.frames import OF_USERS, SKIPS, split_user
from nearcast.pipeline.ingest.files import FileWriter
from nearcast.pipeline.ingest.orders import FeedOrder, FeedOutcome
from nearcast.pipeline.ingest.records import RecordReader, Values
from nearcast.pipeline.ingest.types import arrow_schema
from nearcast.pipeline.sources.parts import log_of
from nearcast.pipeline.storage import BATCH, DEAD_LETTERS, METADATA, Column

ROWS_AT_ONCE = 32_768  # a row group of the file
PAYLOAD_KEPT_BYTES = 4096  # of a dead letter

_PLAIN_VALUES = (bytes, dt.datetime, dt.date, decimal.Decimal)  # that Arrow takes as they are


class Run(NamedTuple):
    """What consecutive messages of one publisher have in common."""

    topic: bytes
    publisher: int
    first: int  # the number of the first
    at_us: int  # when the server kept them


class Pending:
    """Messages that are not in a file yet: lists side by side, because columns are made of them."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.published_us: list[int] = []
        self._runs: list[tuple[Run, int]] = []  # and how many messages

    def add(self, run: Run, items: list[Item]) -> None:
        before = len(self.payloads)
        for number, (word, time_ns, payload) in enumerate(items):
            if word in SKIPS:  # a number that was given up: the run ends here, and another begins after it
                self._note(run, len(self.payloads) - before)
                self.add(run._replace(first=run.first + number + 1), items[number + 1 :])
                return
            self.payloads.append(split_user(payload)[1] if word in OF_USERS else payload)
            self.published_us.append(time_ns // 1000)
        self._note(run, len(self.payloads) - before)

    def _note(self, run: Run, messages: int) -> None:
        if messages:
            self._runs.append((run, messages))

    @property
    def topics(self) -> list[str]:
        return [topic for run, count in self._runs for topic in [run.topic.decode("utf-8", "replace")] * count]

    @property
    def ingested_us(self) -> list[int]:
        return [at_us for run, count in self._runs for at_us in [run.at_us] * count]

    @property
    def origins(self) -> list[tuple[int, int]]:
        """The publisher and the number of each message."""
        return [(run.publisher, run.first + offset) for run, count in self._runs for offset in range(count)]


class Sink:
    """Takes the messages that one feed wants of a task's ranges."""

    def __init__(self, feed: FeedOrder, name: str) -> None:
        self._feed = feed
        self._matches = matcher(feed.topic.encode())
        self._reader = _reader(feed.columns, feed.key, feed.format)
        self._schema = _schema(feed.columns)
        self._file = FileWriter(Path(feed.records), name, self._schema)
        self._dead_file = FileWriter(Path(feed.dead_letters), name, _DEAD_SCHEMA)
        self._pending = Pending()
        self._records = self._dead = 0

    def reads(self, stream: str) -> bool:
        return log_of(stream) == self._feed.log

    def wants(self, topic: bytes) -> bool:
        return bool(self._matches(topic))

    def since(self, stream: str) -> int:
        """The position in the stream after which messages are for this feed."""
        return self._feed.since.get(stream, 0)

    def add(self, run: Run, items: list[Item]) -> None:
        self._pending.add(run, items)
        if len(self._pending.payloads) >= ROWS_AT_ONCE:
            self._write()

    def close(self) -> FeedOutcome:
        self._write()
        return FeedOutcome(
            feed=self._feed.name,
            records=self._records,
            dead=self._dead,
            file=self._file.close(),
            dead_letters=self._dead_file.close(),
        )

    def _write(self) -> None:
        taken, self._pending = self._pending, Pending()
        rows, reasons = self._reader.rows(taken.payloads)
        self._records += len(rows)
        self._dead += len(reasons)
        if reasons:
            self._dead_file.write(_dead_letters(taken, reasons))
        if rows:
            self._file.write(self._batch(rows, taken, reasons))

    def _batch(self, rows: list[Values], taken: Pending, reasons: dict[int, str]) -> pa.RecordBatch:
        """The rows as columns, with those that a feed adds; of a keyed dataset, the newest of each key."""
        added: list[Sequence[Any]] = [taken.topics, taken.published_us, taken.ingested_us]
        if reasons:
            readable = [index not in reasons for index in range(len(taken.payloads))]
            added = [list(compress(values, readable)) for values in added]
        columns = [*zip(*rows, strict=True), *added, [self._feed.number] * len(rows)]
        batch = pa.RecordBatch.from_arrays(
            [_array(values, field.type) for values, field in zip(columns, self._schema, strict=True)],
            schema=self._schema,
        )
        if not self._feed.key:
            return batch
        place = self._schema.get_field_index(self._feed.key)
        return batch.take(_newest(columns[place], zip(added[2], added[1], strict=True)))


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_map(kind) or pa.types.is_nested(kind):
        values = [msgspec.to_builtins(value, builtin_types=_PLAIN_VALUES) for value in values]
    return pa.array(values, kind)


def _newest(keys: Sequence[Any], order: Iterable[tuple[int, int]]) -> list[int]:
    """For each key, the index of the row with the greatest order; of equal ones, the last."""
    newest: dict[Any, tuple[tuple[int, int], int]] = {}
    for index, (key, age) in enumerate(zip(keys, order, strict=True)):
        known = newest.get(key)
        if known is None or age >= known[0]:
            newest[key] = (age, index)
    return sorted(index for _, index in newest.values())


def _dead_letters(taken: Pending, reasons: dict[int, str]) -> pa.RecordBatch:
    topics, ingested_us, origins = taken.topics, taken.ingested_us, taken.origins
    rows = [
        {
            "kind": "record",
            "reason": reason,
            "topic": topics[index],
            "payload": taken.payloads[index][:PAYLOAD_KEPT_BYTES],
            "publisher": f"{origins[index][0]:016x}",
            "sequence": str(origins[index][1]),
            "published_at": taken.published_us[index],
            "ingested_at": ingested_us[index],
        }
        for index, reason in reasons.items()
    ]
    return pa.RecordBatch.from_pylist(rows, _DEAD_SCHEMA)


_DEAD_SCHEMA = arrow_schema(DEAD_LETTERS)


@lru_cache(maxsize=256)
def _reader(columns: tuple[Column, ...], key: str, format: str) -> RecordReader:
    """Kept between batches: making the types takes longer than reading a small batch."""
    return RecordReader(columns, key, format)


@lru_cache(maxsize=256)
def _schema(columns: tuple[Column, ...]) -> pa.Schema:
    return arrow_schema((*columns, *METADATA, Column(BATCH, "BIGINT")))
