"""All feeds as one streaming query: what is new in their logs -> Parquet files -> one transaction per batch.

The source (`sources/logs.py`) gives ranges of messages. Tasks read them and write files, in numbered folders of the
datasets (`ingest/task.py`), and what reaches this process is a manifest of each task. Then one transaction names the
folders, the datasets' new positions, and how far the logs were read. If the process is killed before that transaction,
Spark runs the batch again with the same ranges, and the folders are written anew. If it is killed after it, the batch
is known to be committed and is skipped.

There is one query for all feeds, because a batch costs Spark about the same for one feed or for a hundred.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow

from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline import storage as io
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.datasets import Dataset, Segment
from nearcast.pipeline.catalog.feeds import Feed, FeedCatalog, FeedProgress, ReadEntry
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.ingest.files import FileWriter, WrittenFile
from nearcast.pipeline.ingest.orders import FeedOrder, FeedOutcome, Manifest, Order, ReadRange
from nearcast.pipeline.ingest.task import MANIFEST, read_manifest, run_task
from nearcast.pipeline.ingest.types import arrow_schema
from nearcast.pipeline.sources.parts import life_in, log_of
from nearcast.pipeline.sources.positions import LOST
from nearcast.pipeline.storage import DEAD_LETTERS
from nearcast.runtime.driver import parse_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

CHECKPOINT = "nc-feeds"  # no feed can have this name
POOL = "feeds"  # of Spark's scheduler

log = logging.getLogger(__name__)


class FeedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often feeds look for messages, and how many they take at once."""

    period_s: float = 0.5
    batch_messages: int = 500_000

    def __post_init__(self) -> None:
        if self.period_s <= 0 or self.batch_messages < 1:
            raise UsageError("feeds need period_s above 0 and batch_messages of at least 1")


DEFAULT_SETTINGS = FeedSettings()


class FeedsJob:
    """The streaming query of all feeds, and what it does with each batch. One per process."""

    def __init__(
        self,
        database: Database,
        datasets: Datasets,
        url: str,
        committed: Callable[[str, int], None] = lambda dataset, number: None,
    ) -> None:
        """`url`: of the store's server; all servers are asked with its name and password."""
        self._database = database
        self._datasets = datasets
        self._feeds = FeedCatalog(database)
        self._url = url
        self._committed = committed
        self._running = threading.Lock()  # a query that was stopped may still be in a batch when the next one begins

    @property
    def checkpoint(self) -> Path:
        return self._datasets.warehouse.checkpoint(CHECKPOINT)

    def start(
        self, spark: SparkSession, logs: Sequence[str], settings: FeedSettings, *, once: bool = False
    ) -> StreamingQuery:
        """Start the query over these logs and return it. `once`: it ends when it has read what is there now."""
        if not any((self.checkpoint / "offsets").glob("[0-9]*")):  # no checkpoint, or it was lost: Spark counts from 0
            self._feeds.reached(-1, {}, {})
        reader = spark.readStream.format("nearcast_logs").options(
            url=self._url,
            logs=",".join(logs),
            startingPositions=msgspec.json.encode(self._feeds.positions(), order="sorted").decode(),
            maxMessagesPerBatch=str(settings.batch_messages),
            tasks=str(spark.sparkContext.defaultParallelism),
        )
        writer = reader.load().writeStream.foreachBatch(self._run).queryName(CHECKPOINT)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)  # the query's thread inherits it
        try:
            if once:
                return writer.trigger(availableNow=True).start()
            return writer.trigger(processingTime=f"{int(settings.period_s * 1000)} milliseconds").start()
        finally:
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]

    def _run(self, frame: DataFrame, batch: int) -> None:
        with self._running:
            if batch > self._feeds.spark_batch():  # otherwise we were killed after the commit, before Spark recorded it
                self._ingest(frame, batch)

    def _ingest(self, frame: DataFrame, batch: int) -> None:
        work = [Work(feed, self._datasets.describe(feed.name)) for feed in self._feeds.all()]
        order = Order(tuple(self._order(each) for each in work), parse_url(self._url)[1])
        for feed in order.feeds:  # of an attempt that was killed
            io.remove(Path(feed.records))
            io.remove(Path(feed.dead_letters))
        rows = frame.mapInArrow(partial(run_task, order), MANIFEST).collect()
        manifests = [read_manifest(bytes(row.manifest)) for row in rows]
        self._commit(batch, work, manifests)

    def _order(self, work: Work) -> FeedOrder:
        warehouse, feed, number = self._datasets.warehouse, work.feed, work.dataset.position + 1
        return FeedOrder(
            name=feed.name,
            log=feed.log,
            topic=feed.topic,
            format=feed.format,
            columns=work.dataset.columns,
            key=work.dataset.key,
            since=dict(feed.since),
            number=number,
            records=str(warehouse.batch(feed.name, number)),
            dead_letters=str(warehouse.dead_letters(feed.name, feed.progress.commits + 1)),
        )

    def _commit(self, batch: int, work: Sequence[Work], manifests: Sequence[Manifest]) -> None:
        ranges = [each for manifest in manifests for each in manifest.ranges]
        done = [
            Done(each, _outcomes(manifests, each.feed), _lost(each.feed, ranges), _lost_parts(each.feed, ranges))
            for each in work
        ]
        for each in done:
            each.check()
            if each.losses:
                self._write_losses(each)
        segments = {each.feed.name: self._segment(each) for each in done if each.rows}
        with self._database.transaction():
            for each in done:
                if each.feed.name in segments:
                    self._datasets.commit(each.feed.name, segments[each.feed.name])
                if each.touched:
                    self._feeds.advance(each.feed.name, each.progress, dead_letters=each.has_dead_letters)
            self._feeds.reached(batch, _reached(ranges), _read_whole(ranges))
        for name, segment in segments.items():
            self._committed(name, segment.last)

    def _segment(self, done: Done) -> Segment:
        return self._datasets.segment(done.work.dataset, done.rows, sum(file.bytes for file in done.files))

    def _write_losses(self, done: Done) -> None:
        feed = done.feed
        for text in done.losses:
            log.warning("feed %s: %s", feed.name, text)
        folder = self._datasets.warehouse.dead_letters(feed.name, feed.progress.commits + 1)
        rows = [{"kind": "loss", "reason": text, "topic": feed.topic} for text in done.losses]
        writer = FileWriter(folder, "losses", _LETTERS)
        writer.write(pyarrow.RecordBatch.from_pylist(rows, _LETTERS))
        writer.close()


_LETTERS = arrow_schema(DEAD_LETTERS)


class Work(msgspec.Struct, frozen=True):
    """A feed at the beginning of a batch."""

    feed: Feed
    dataset: Dataset


class Done(msgspec.Struct, frozen=True):
    """A feed at the end of a batch, before the commit."""

    work: Work
    outcomes: list[FeedOutcome]
    lost: dict[str, int]  # stream -> messages that were gone before they were read
    lost_parts: dict[str, int]  # stream -> how many messages had been read before the part was lost

    @property
    def feed(self) -> Feed:
        return self.work.feed

    @property
    def files(self) -> list[WrittenFile]:
        return [outcome.file for outcome in self.outcomes if outcome.file is not None]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def losses(self) -> list[str]:
        gone = [
            f"{count} messages of log {log_of(stream)} were gone from {life_in(stream)} before they were read"
            for stream, count in self.lost.items()
        ]
        ended = [
            f"what {life_in(stream)} kept of log {log_of(stream)} is lost with its server: {count} messages of it were "
            "read, and how many more there were is not known"
            for stream, count in self.lost_parts.items()
        ]
        return gone + ended

    @property
    def has_dead_letters(self) -> bool:
        return bool(self.lost or self.lost_parts) or any(outcome.dead for outcome in self.outcomes)

    @property
    def touched(self) -> bool:
        """Whether there was anything for this feed."""
        return self.has_dead_letters or any(outcome.records for outcome in self.outcomes)

    @property
    def progress(self) -> FeedProgress:
        before = self.feed.progress
        return FeedProgress(
            records=before.records + sum(outcome.records for outcome in self.outcomes),
            dead=before.dead + sum(outcome.dead for outcome in self.outcomes),
            lost=before.lost + sum(self.lost.values()),
            parts_lost=before.parts_lost + len(self.lost_parts),
            commits=before.commits + 1,
        )

    def check(self) -> None:
        """Raise ClusterError unless the files that the tasks told of are here, whole, and no others."""
        for folder in {Path(file.path).parent for file in self.files}:
            told = {file.path: file.bytes for file in self.files}
            found = {str(path): path.stat().st_size for path in folder.glob("*.parquet")}
            if found != told:
                raise ClusterError(
                    f"tasks wrote {len(told)} files to {folder}, but {len(found)} are there, or of another size: the "
                    "folder must be on storage that all executors and this process share"
                )


def _outcomes(manifests: Sequence[Manifest], feed: Feed) -> list[FeedOutcome]:
    return [outcome for manifest in manifests for outcome in manifest.outcomes if outcome.feed == feed.name]


def _lost(feed: Feed, ranges: Sequence[ReadRange]) -> dict[str, int]:
    """How many messages of the feed's log were gone, by stream: of a range the first ones, as retention has it."""
    lost: dict[str, int] = {}
    for each in ranges:
        begin = max(each.after, feed.since.get(each.stream, 0))
        if log_of(each.stream) == feed.log and (count := each.after + each.lost - begin) > 0:
            lost[each.stream] = lost.get(each.stream, 0) + count
    return lost


def _lost_parts(feed: Feed, ranges: Sequence[ReadRange]) -> dict[str, int]:
    """The parts of the feed's log that were lost since it was created, each with how much of it had been read."""
    return {
        each.stream: each.after
        for each in ranges
        if each.upto == LOST and log_of(each.stream) == feed.log and feed.since.get(each.stream) != LOST
    }


def _reached(ranges: Sequence[ReadRange]) -> dict[str, int]:
    """The position of each part at the end of the batch: several ranges may be of one part."""
    return {each.stream: each.upto for each in sorted(ranges, key=lambda each: each.upto)}


def _read_whole(ranges: Sequence[ReadRange]) -> dict[str, ReadEntry]:
    ordered = sorted((each for each in ranges if each.entry), key=lambda each: each.entry_position)
    return {each.stream: ReadEntry(each.entry, each.entry_position) for each in ordered}
