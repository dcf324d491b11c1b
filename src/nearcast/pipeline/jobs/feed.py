"""One feed as a streaming query: records of its stream -> parsed -> Parquet, committed batch by batch.

Each batch is written to folders by number, then one transaction names them, the dataset's new position and how far
the feed was read. Killed before it, the batch is run again by Spark with the same records and overwrites the same
folders; killed after it, the batch is known here and skipped. Then the stream is trimmed up to where the batch began:
what lies before it was committed by Spark too, and no restart reads it again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline import io
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.feeds import Feed, FeedCatalog, FeedProgress
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.schemas import DEAD_LETTERS, nullable_ddl
from nearcast.pipeline.sources.offsets import BEGINNING, Offset, noted, ranges
from nearcast.pipeline.sources.resp import RespConnection
from nearcast.pipeline.transforms.feed_records import dead_letters, good_records, tally
from nearcast.pipeline.transforms.parsing import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

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
    """What is done with each batch of one feed."""

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
        """The query, running. `once`: it ends when it has read what is there now."""
        feed = self._feeds.get(self.name)
        reader = spark.readStream.format("valkey_streams").options(
            url=self._url,
            streams=feed.stream,
            maxRecordsPerBatch=str(settings.batch_records),
            failOnDataLoss="false",  # it is told by a dead letter, and the feed goes on
        )
        if feed.progress.read_to != BEGINNING:  # Spark follows its checkpoint if it has one, else this
            reader = reader.option("startingOffsets", json.dumps({feed.stream: feed.progress.read_to}))
        if not any((self.checkpoint / "offsets").glob("[0-9]*")):  # new, or lost: Spark counts from 0
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
        if batch > feed.progress.spark_batch:  # else we were killed after the commit, before Spark noted it
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
        """Between which offsets of the stream the batch lies: Spark wrote it down before it ran the batch."""
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
    """Records dropped from the stream before the batch was planned, and between its plan and its read."""
    planned = sum(found.records for found in ranges({feed.stream: start}, {feed.stream: end}))
    return end.lost - start.lost + max(0, planned - rows)


def _losses(feed: Feed, lost: int, made_anew: bool) -> list[tuple[str | None, ...]]:
    """Dead letters of what left the stream before it was read."""
    told = []
    if lost:
        told.append(f"{lost} records were dropped from the stream before they were read: it was full")
    if made_anew:
        told.append("the stream was deleted and made anew: what it held and was not read is gone")
    for text in told:
        log.warning("feed %s: %s", feed.name, text)
    return [("loss", text, feed.topic, *[None] * (len(DEAD_LETTERS) - 3)) for text in told]


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
