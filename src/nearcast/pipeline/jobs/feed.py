"""One feed as a streaming query: records of its stream -> parsed -> Parquet, committed batch by batch.

Each batch is written to numbered folders. Then one transaction names them, the dataset's new position, and how far the
feed was read. If the process is killed before that transaction, Spark runs the batch again with the same records and
overwrites the same folders. If it is killed after it, the batch is known to be committed and is skipped. Then the
stream is trimmed up to where the batch began: Spark too has committed everything before that, so no restart reads it.

Parsing turns entries of the stream into rows of columns with a `reason`: why a row cannot become a record, or null.
Payloads in msgpack become JSON text first, so that both formats take the same path. One pass of `from_json` is enough
for a good record. Only if that fails is the text read a second time, as strings, to find the wrong field. Parsed rows
become records of the dataset or dead letters, and both are counted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow

from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline import storage as io
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.datasets import Dataset, Feed, FeedCatalog, FeedProgress
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.jobs.datasets import newest_per_key
from nearcast.pipeline.sources.offsets import BEGINNING, Offset, noted, ranges
from nearcast.pipeline.sources.server import RespConnection
from nearcast.pipeline.storage import DEAD_LETTERS, nullable_ddl
from nearcast.pipeline.storage import Column as Wanted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import DataType


# --- records and dead letters


PAYLOAD_KEPT_BYTES = 4096  # of a dead letter


def good_records(parsed: DataFrame, dataset: Dataset) -> DataFrame:
    """The dataset's columns and those that a feed adds; of a keyed dataset, the newest record of each key."""
    from pyspark.sql import functions as F

    names = [column.name for column in dataset.columns]
    good = parsed.where(F.col("reason").isNull()).select(
        *(F.col("record")[name].alias(name) for name in names),
        F.col("topic").alias("_topic"),
        F.col("published_at").alias("_published_at"),
        F.col("ingested_at").alias("_ingested_at"),
        F.struct("ms", "seq").alias("_place"),
    )
    names += ["_topic", "_published_at", "_ingested_at"]
    if dataset.key:
        return newest_per_key(good, dataset.key, F.col("_place"), names)
    return good.select(*names)


def dead_letters(parsed: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    dead = parsed.where(F.col("reason").isNotNull())
    cut = dead.withColumn("payload", F.substring("payload", 1, PAYLOAD_KEPT_BYTES))
    return cut.select(*(column.name for column in DEAD_LETTERS))


def tally(parsed: DataFrame) -> dict[str, int]:
    """How many rows are `good`, `dead` (records that cannot be read) and `gaps`."""
    from pyspark.sql import functions as F

    bad, is_gap = F.col("reason").isNotNull(), F.col("kind") != "record"
    row = parsed.agg(
        F.count_if(~bad).alias("good"),
        F.count_if(bad & ~is_gap).alias("dead"),
        F.count_if(is_gap).alias("gaps"),
    ).first()
    assert row is not None
    return row.asDict()


# --- msgpack


def json_of_msgpack(payload: Column) -> Column:
    """The same value as JSON; null where the payload is not msgpack, or has no JSON form."""
    from pyspark.sql import functions as F

    return F.arrow_udf(_converted, "string")(payload)  # type: ignore[call-overload]


def _converted(payloads: pyarrow.Array) -> pyarrow.Array:
    return pyarrow.array([_json(payload) for payload in payloads.to_pylist()], pyarrow.string())


def _json(payload: bytes | None) -> str | None:
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(payload)).decode() if payload is not None else None
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError, OverflowError, RecursionError):
        return None


# --- parsing


_CORRUPT = "_corrupt"
_STRICT = {"columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_BLANKS = " \t\r\n"
_CALENDAR = ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999")
_SHOWN_CHARACTERS = 40  # of a wrong value in a reason

ENVELOPE = ("kind", "topic", "publisher", "sequence", "published_at", "ingested_at", "payload", "ms", "seq")


def parse(frame: DataFrame, wanted: Sequence[Wanted], key: str, format: str) -> DataFrame:
    """Rows of the source become rows of the envelope, `record` (a struct with the wanted columns), and `reason`."""
    from pyspark.sql import functions as F

    payload = F.col("payload")
    text = payload.cast("string") if format == "json" else json_of_msgpack(payload)
    typed = F.from_json("text", f"{nullable_ddl(wanted)}, `{_CORRUPT}` STRING", _STRICT)
    opened = _opened(frame).withColumn("text", text).withColumn("record", typed)
    return opened.select(*ENVELOPE, "record", _reason(wanted, key, format).alias("reason"))


def _opened(frame: DataFrame) -> DataFrame:
    """The fields that collectors write, and the record's place in its stream."""
    from pyspark.sql import functions as F

    def text(name: str) -> Column:
        return F.col("fields")[name].cast("string")

    place = F.split("id", "-")
    return frame.select(
        F.coalesce(text("kind"), F.lit("record")).alias("kind"),
        text("text").alias("note"),
        *(text(name).alias(name) for name in ("topic", "publisher", "sequence")),
        F.timestamp_micros((text("published_at").try_cast("double") * 1e6).cast("bigint")).alias("published_at"),
        F.col("at").alias("ingested_at"),
        F.col("fields")["payload"].alias("payload"),
        place[0].cast("bigint").alias("ms"),
        place[1].cast("bigint").alias("seq"),
    )


def _reason(wanted: Sequence[Wanted], key: str, format: str) -> Column:
    from pyspark.sql import functions as F

    text, record = F.col("text"), F.col("record")
    bare = F.btrim(text, F.lit(_BLANKS))
    not_read = (
        F.when(F.try_parse_json(text).isNull(), f"the payload is not {format}")
        .when(~bare.startswith("{"), "the payload is not an object with fields")
        .when(~bare.endswith("}"), "the payload has something after the object")
        .otherwise(F.coalesce(*_wrong(wanted), F.lit("a value inside a field is of the wrong type")))
    )
    return (
        F.when(F.col("kind") != "record", F.col("note"))
        .when(F.col("payload").isNull(), "there is no payload")
        .when(text.isNull(), f"the payload is not {format}, or has no JSON form")
        .when(~F.is_valid_utf8(text), "the payload is not UTF-8")
        .when(record.isNull() | record[_CORRUPT].isNotNull() | ~bare.endswith("}"), not_read)
        .otherwise(F.coalesce(*_missing(wanted, key), *_far(wanted), F.lit(None)))
    )


def _wrong(wanted: Sequence[Wanted]) -> Iterator[Column]:
    from pyspark.sql import functions as F

    record = F.col("record")
    texts = F.from_json("text", ", ".join(f"`{column.name}` STRING" for column in wanted))
    for column in wanted:
        value = texts[column.name]
        reason = F.concat(F.lit(f"field {column.name} is not {column.type}: "), F.left(value, F.lit(_SHOWN_CHARACTERS)))
        yield F.when(record[column.name].isNull() & value.isNotNull(), reason)


def _missing(wanted: Sequence[Wanted], key: str) -> Iterator[Column]:
    from pyspark.sql import functions as F

    record = F.col("record")
    for column in wanted:
        if column.name == key:
            yield F.when(record[column.name].isNull(), f"field {column.name}, the key, is missing")
        elif column.required:
            yield F.when(record[column.name].isNull(), f"field {column.name} is required, but missing")


def _far(wanted: Sequence[Wanted]) -> Iterator[Column]:
    """Times outside SQL's calendar: Spark reads a date in the year 1,000,000, but fails to make a timestamp of it."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DataType

    for column in wanted:
        far = _is_far(F.col("record")[column.name], DataType.fromDDL(column.type))
        if far is not None:
            yield F.when(far, f"field {column.name} is not {column.type}: a time outside the years 1 to 9999")


def _is_far(value: Column, kind: DataType) -> Column | None:
    """Whether it contains such a time at any depth; None if its type has no times."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DateType, MapType, StructType, TimestampNTZType, TimestampType

    if isinstance(kind, DateType | TimestampType | TimestampNTZType):
        return ~value.between(*(F.lit(end).cast(kind) for end in _CALENDAR))
    if isinstance(kind, StructType):
        parts = [_is_far(value[field.name], field.dataType) for field in kind.fields]
        found = [_surely(part) for part in parts if part is not None]
        return reduce(or_, found) if found else None
    if isinstance(kind, MapType):
        return _is_far(F.map_values(value), ArrayType(kind.valueType))
    if isinstance(kind, ArrayType) and _is_far(F.lit(None), kind.elementType) is not None:
        return F.exists(value, lambda one: _surely(_is_far(one, kind.elementType)))
    return None


def _surely(far: Column | None) -> Column:
    """The same, with null as false."""
    from pyspark.sql import functions as F

    return F.lit(False) if far is None else F.coalesce(far, F.lit(False))


# --- the query


log = logging.getLogger(__name__)


class FeedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often a feed looks for records, and how many it takes at once."""

    period_s: float = 1.0
    batch_records: int = 50_000

    def __post_init__(self) -> None:
        if self.period_s <= 0 or self.batch_records < 1:
            raise UsageError("a feed needs period_s above 0 and batch_records of at least 1")


DEFAULT_SETTINGS = FeedSettings()


class FeedJob:
    """The streaming query of one feed, and what it does with each batch."""

    def __init__(
        self,
        name: str,
        database: Database,
        datasets: Datasets,
        url: str,
        committed: Callable[[str, int], None] = lambda dataset, number: None,
    ) -> None:
        self.name = name
        self._database = database
        self._datasets = datasets
        self._feeds = FeedCatalog(database)
        self._url = url
        self._committed = committed

    @property
    def checkpoint(self) -> Path:
        return self._datasets.warehouse.checkpoint(self.name)

    def start(self, spark: SparkSession, settings: FeedSettings, *, once: bool = False) -> StreamingQuery:
        """Start the query and return it. `once`: it ends when it has read what is there now."""
        feed = self._feeds.get(self.name)
        reader = spark.readStream.format("valkey_streams").options(
            url=self._url,
            streams=feed.stream,
            maxRecordsPerBatch=str(settings.batch_records),
            failOnDataLoss="false",  # a loss is reported as a dead letter, and the feed continues
        )
        if feed.progress.read_to != BEGINNING:  # Spark follows its checkpoint if it has one, otherwise this
            reader = reader.option("startingOffsets", json.dumps({feed.stream: feed.progress.read_to}))
        if not any((self.checkpoint / "offsets").glob("[0-9]*")):  # no checkpoint, or it was lost: Spark counts from 0
            progress = msgspec.structs.replace(feed.progress, spark_batch=-1)
            self._feeds.advance(feed.name, progress, dead_letters=False)
        writer = reader.load().writeStream.foreachBatch(self._run).queryName(f"feed-{feed.name}")
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(settings.period_s * 1000)} milliseconds").start()

    def _run(self, frame: DataFrame, batch: int) -> None:
        feed = self._feeds.get(self.name)
        start, end = self._offsets(feed, batch)
        if batch > feed.progress.spark_batch:  # otherwise we were killed after the commit, before Spark recorded it
            self._commit(frame, batch, feed, start, end)
        self._trim(feed, start, end)

    def _commit(self, frame: DataFrame, batch: int, feed: Feed, start: Offset, end: Offset) -> None:
        dataset = self._datasets.describe(feed.name)
        parsed = parse(frame, dataset.columns, dataset.key, feed.format).persist()
        try:
            counts = tally(parsed)
            lost = _lost(feed, start, end, sum(counts.values()))
            segment = None
            if counts["good"]:
                segment = self._datasets.write(dataset, good_records(parsed, dataset), counts["good"])
            dead, losses = dead_letters(parsed), _losses(feed, lost, start.restarts != end.restarts)
            has_dead = bool(counts["dead"] or counts["gaps"] or losses)
            if losses:
                dead = dead.unionByName(frame.sparkSession.createDataFrame(losses, nullable_ddl(DEAD_LETTERS)))
            if has_dead:
                io.write(dead, self._datasets.warehouse.dead_letters(feed.name, feed.progress.commits + 1), files=1)
        finally:
            parsed.unpersist()
        with self._database.transaction():
            if segment is not None:
                self._datasets.commit(feed.name, segment)
            remade = end.restarts - start.restarts
            self._feeds.advance(feed.name, _progress(feed, batch, end, counts, lost, remade), dead_letters=has_dead)
        if segment is not None:
            self._committed(feed.name, segment.last)

    def _offsets(self, feed: Feed, batch: int) -> tuple[Offset, Offset]:
        """The stream's offsets at the start and end of the batch. Spark wrote them down before it ran the batch."""
        end = noted(self.checkpoint, batch).get(feed.stream, Offset())
        before = noted(self.checkpoint, batch - 1).get(feed.stream) if batch else None
        return before or Offset(id=end.began, position=end.skipped), end

    def _trim(self, feed: Feed, start: Offset, end: Offset) -> None:
        if start.id == BEGINNING or start.restarts != end.restarts:
            return
        try:
            with RespConnection(self._url) as connection:
                connection.ask("XTRIM", feed.stream, "MINID", start.id)
        except ClusterError as error:
            log.warning("feed %s: its stream was not trimmed: %s", feed.name, error)


def _lost(feed: Feed, start: Offset, end: Offset, rows: int) -> int:
    """How many records were dropped from the stream before the batch was planned, or after that before it was read."""
    planned = sum(found.records for found in ranges({feed.stream: start}, {feed.stream: end}))
    return end.lost - start.lost + max(0, planned - rows)


def _losses(feed: Feed, lost: int, made_anew: bool) -> list[tuple[str | None, ...]]:
    """Dead letters for what was dropped from the stream before it was read."""
    losses = []
    if lost:
        losses.append(f"{lost} records were dropped from the stream before they were read: it was full")
    if made_anew:
        losses.append("the stream was deleted and created again: records that were not read are gone")
    for text in losses:
        log.warning("feed %s: %s", feed.name, text)
    return [("loss", text, feed.topic, *[None] * (len(DEAD_LETTERS) - 3)) for text in losses]


def _progress(feed: Feed, batch: int, end: Offset, counts: dict[str, int], lost: int, remade: int) -> FeedProgress:
    before = feed.progress
    return FeedProgress(
        spark_batch=batch,
        read_to=end.id,
        records=before.records + counts["good"],
        dead=before.dead + counts["dead"],
        gaps=before.gaps + counts["gaps"],
        lost=before.lost + lost,
        remade=before.remade + remade,
        commits=before.commits + 1,
    )
