"""Telemetry as a streaming query: agents' reports -> sums per window -> Parquet, committed batch by batch.

A report that comes twice counts once: its sequence is remembered for `LATE_S`. One that comes late is added to its
window, whose sums are then in two files and are merged by whoever reads them; one later than `LATE_S` is dropped, and
Spark counts it. Killed before a batch's transaction, Spark runs it again with the same records and overwrites the same
folders; killed after it, the batch is known here and skipped.

Files are merged by levels: sixteen of a level become one of the next, so there are few at any age. The oldest go.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.store_names import REPORT_STREAM
from nearcast.errors import UsageError
from nearcast.pipeline import io
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.telemetry import BROKERS, TOPICS, Progress, SumFile, TelemetryCatalog, sums_path
from nearcast.pipeline.sources.offsets import BEGINNING, Offset, noted
from nearcast.pipeline.transforms import telemetry as transforms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.streaming import StreamingQuery

LATE_S = 600  # behind the newest report that was seen
FILES_MERGED = 16  # of one level into one of the next
FORGOTTEN_AT_ONCE = 4  # files of a table after a batch, which adds one
LEVELS = 3  # above the batches: with one every ten seconds, a file of the highest level has 11 hours
CHECKPOINT = "nc-telemetry"  # no feed can have this name

Transform = Callable[["DataFrame"], "DataFrame"]
MERGES: dict[str, tuple[str, Transform]] = {
    TOPICS: (transforms.TOPIC_SUMS, transforms.topic_sums),
    BROKERS: (transforms.BROKER_SUMS, transforms.merged_broker_sums),
}


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often the job looks for reports, how many it takes at once, and how long sums are kept."""

    period_s: float = 10.0
    batch_records: int = 10_000
    keep_s: float = 7 * 86400.0

    def __post_init__(self) -> None:
        if self.period_s <= 0 or self.batch_records < 1 or self.keep_s <= LATE_S:
            raise UsageError(f"telemetry: give period_s above 0, batch_records from 1 and keep_s above {LATE_S}")


class TelemetryJob:
    """`start` runs the query beside others of the session; `stop` ends it. One per warehouse."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        warehouse: io.Warehouse,
        database: Database,
        settings: TelemetrySettings | None = None,
    ) -> None:
        self._spark = _own_session(spark)
        self._url = url
        self._warehouse = warehouse
        self._catalog = TelemetryCatalog(database)
        self._settings = settings or TelemetrySettings()
        self._query: StreamingQuery | None = None

    def start(self, *, once: bool = False) -> StreamingQuery:
        """The query, running; again if it ended with an error. `once`: it ends when it has read what is there now."""
        self._remove_rubbish()
        checkpoint = self._warehouse.checkpoint(CHECKPOINT)
        reader = self._spark.readStream.format("valkey_streams").options(
            url=self._url,
            streams=REPORT_STREAM.decode(),
            maxRecordsPerBatch=str(self._settings.batch_records),
            failOnDataLoss="false",  # the stream is short, and newer reports are worth more than older ones
        )
        if not (checkpoint / "metadata").exists():
            # New, or somebody lost the checkpoint: the catalogue knows how far we are.
            progress = msgspec.structs.replace(self._catalog.progress(), spark_batch=-1)
            self._catalog.note(progress)
            if progress.read_to != BEGINNING:
                reader = reader.option("startingOffsets", json.dumps({REPORT_STREAM.decode(): progress.read_to}))
        found = transforms.reports(reader.load()).withWatermark("at", f"{LATE_S} seconds")
        writer = found.dropDuplicatesWithinWatermark(["broker", "sequence"]).writeStream.foreachBatch(self._run)
        writer = writer.option("checkpointLocation", str(checkpoint)).queryName(CHECKPOINT)
        period = {"availableNow": True} if once else {"processingTime": f"{self._settings.period_s:g} seconds"}
        self._query = writer.trigger(**period).start()
        return self._query

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def _run(self, frame: DataFrame, batch: int) -> None:
        before = self._catalog.progress()
        if batch <= before.spark_batch:
            # Killed after the commit, before Spark noted it. What is remembered of its reports must be written again.
            frame.write.format("noop").mode("overwrite").save()
            return
        self._commit(frame, batch, before)
        for name in MERGES:
            self._merge(name)
        self._forget_oldest()

    def _commit(self, frame: DataFrame, batch: int, before: Progress) -> None:
        number = before.commits + 1
        kept = frame.persist()  # of a stream with memory: it must run once
        try:
            good, counted = _counted(kept)
            files = [
                self._written(BROKERS, 0, number, transforms.broker_sums(good)),
                self._written(TOPICS, 0, number, transforms.topic_sums(transforms.topic_counters(good))),
            ]
        finally:
            kept.unpersist()
        offset = noted(self._warehouse.checkpoint(CHECKPOINT), batch).get(REPORT_STREAM.decode(), Offset())
        progress = Progress(
            spark_batch=batch,
            read_to=offset.id,
            commits=number,
            reports=before.reports + counted.get["good"],
            malformed=before.malformed + counted.get["all"] - counted.get["good"],
            lost=offset.lost,
        )
        self._catalog.commit(progress, [file for file in files if file is not None])

    def _written(self, name: str, level: int, number: int, frame: DataFrame) -> SumFile | None:
        """None: there were no rows."""
        path = sums_path(self._warehouse, name, level, number)
        size = io.write(frame, path, files=1).bytes
        windows = _windows(path)
        return SumFile(name, level, number, *windows, size) if windows else None

    def _merge(self, name: str) -> None:
        schema, merge = MERGES[name]
        for level in range(LEVELS):
            old = [file for file in self._catalog.files(name) if file.level == level]
            if len(old) < FILES_MERGED:
                return
            found = io.read(self._spark, schema, [self._path_of(file) for file in old])
            merged = self._written(name, level + 1, old[-1].number, merge(found))
            self._replace(old, [] if merged is None else [merged])

    def _forget_oldest(self) -> None:
        """By the newest window that there is: our clock may have been set forward. A few at once, the oldest first."""
        for name in MERGES:
            files = sorted(self._catalog.files(name), key=lambda file: file.upto_s)
            oldest_s = min(time.time(), files[-1].upto_s) - self._settings.keep_s if files else 0.0
            old = [file for file in files if file.upto_s < oldest_s]
            if old:
                self._replace(old[:FORGOTTEN_AT_ONCE], [])

    def _replace(self, old: list[SumFile], new: list[SumFile]) -> None:
        self._catalog.replace(old, new)
        for file in old:
            io.remove(self._path_of(file))

    def _remove_rubbish(self) -> None:
        """Folders of a run that was killed: written but not committed, or merged and not deleted."""
        for name in MERGES:
            files = self._catalog.files(name)
            for level in range(LEVELS + 1):
                folder = sums_path(self._warehouse, name, level, 0).parent
                self._warehouse.remove_others(folder, [self._path_of(file) for file in files])

    def _path_of(self, file: SumFile) -> Path:
        return sums_path(self._warehouse, file.name, file.level, file.number)


def _own_session(spark: SparkSession) -> SparkSession:
    """A session with settings of its own: a few thousand reports at a time need one task, and one store of state."""
    from pyspark.sql import SparkSession

    # A new session would not know our source of streams; a clone does.
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    session.conf.set("spark.sql.shuffle.partitions", "1")
    # Without reports there is nothing to do: what is remembered can wait for the next ones to be forgotten.
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    return session


def _counted(found: DataFrame) -> tuple[DataFrame, Observation]:
    """The readable reports, and how many there are among all; known once they were used."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    counted = Observation()
    noted = found.observe(counted, F.count("*").alias("all"), F.count_if(transforms.readable()).alias("good"))
    return noted.where(transforms.readable()), counted


def _windows(folder: Path) -> tuple[int, int] | None:
    """The first and the last window in a folder, from the footers of its files."""
    import pyarrow.parquet as pq

    found: list[int] = []
    for file in folder.glob("*.parquet"):
        footer = pq.read_metadata(file)
        for group in range(footer.num_row_groups):
            statistics = footer.row_group(group).column(0).statistics  # window_s is the first column
            found += [statistics.min, statistics.max]
    return (min(found), max(found)) if found else None
