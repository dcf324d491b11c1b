"""Telemetry as a streaming query: agents' reports -> sums per window -> Parquet, committed batch by batch.

A report that arrives twice counts once: its sequence is remembered for `LATE_S`. A late one is added to its window,
whose sums are then in two files, and readers merge them. One later than `LATE_S` is dropped, and Spark counts it. If
the process is killed before a batch's transaction, Spark runs the batch again with the same records and overwrites the
same folders. If it is killed after it, the batch is known to be committed and is skipped.

Files are merged by levels: sixteen of one level become one of the next, so there are few of any age. The oldest are
deleted.

The transforms make sums per window and topic, and per window and broker, which add up in any order and grouping:

    records of the stream -- reports --> reports -- topic_counters --> rows by topic and second
                                            |                              |
                                       broker_sums                     topic_sums
                                            v                              v
                                    (window, broker)                (window, topic) -- topic_table --> percentiles

All sums are of whole numbers, so the order of records does not matter. `topic_sums` and `merged_broker_sums` also merge
stored sums. A latency histogram is a struct with one field per bucket: JSON keeps it sparse, Parquet as one column per
bucket, most of it empty. It is merged by one plain sum per bucket, in the code that Spark compiles for the whole stage.
Only Spark's built-in functions are used, so no row passes through Python.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.counters import BUCKETS, bucket_limit_s
from nearcast.core.model.names import REPORT_STREAM
from nearcast.errors import UsageError
from nearcast.pipeline import storage as io
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.datasets import (
    BROKERS,
    NOTHING_READ,
    TOPICS,
    Progress,
    SumFile,
    TelemetryCatalog,
    sums_path,
)
from nearcast.pipeline.sources.offsets import noted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.streaming import StreamingQuery


WINDOW_S = 10
SHARES = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99}

COUNT_MAX = 10**12  # of one counter in one report: the sum of a million such reports does not overflow

LAST_MS = 253_402_300_799_999  # the end of the year 9999, where Spark's timestamps end

SUMMED = ("published", "published_bytes", "received", "received_bytes", "publishers", "subscribers")
_FIGURES = ("seconds", "output_bytes_per_s", "input_bytes_per_s", "cpu_share")


def _struct(types: dict[str, str]) -> str:
    return "STRUCT<" + ", ".join(f"`{name}`: {kind}" for name, kind in types.items()) + ">"


# --- transforms


_BUCKETS = [str(bucket) for bucket in range(BUCKETS)]
_COUNTER_TYPES = dict.fromkeys(SUMMED, "BIGINT") | {"latencies": _struct(dict.fromkeys(_BUCKETS, "BIGINT"))}
_COUNTERS = ", ".join(f"{name} {kind}" for name, kind in _COUNTER_TYPES.items())
_REPORT = _struct(
    dict.fromkeys(_FIGURES, "DOUBLE")
    | dict.fromkeys(("connections", "memory_bytes"), "BIGINT")
    | {"topics": f"MAP<STRING, {_struct(_COUNTER_TYPES)}>"}
)

REPORTS = f"broker STRING, sequence STRING, at TIMESTAMP, report {_REPORT}"
# One topic in one report, or in one window. In a window, `publishers` and `subscribers` are sums over its seconds:
# divide by the length of the window for the means.
TOPIC_COUNTERS = f"at TIMESTAMP, topic STRING, {_COUNTERS}"
TOPIC_SUMS = f"window_s BIGINT, topic STRING, {_COUNTERS}"
TOPIC_TABLE = (
    f"window_s BIGINT, topic STRING, {', '.join(f'{name} BIGINT' for name in SUMMED)}, samples BIGINT, "
    + ", ".join(f"{name} DOUBLE" for name in SHARES)
)
BROKER_SUMMED = ("reports", "measured_ms", "output_bytes", "input_bytes", "cpu_us")
BROKER_MAXIMA = ("output_bytes_per_s_max", "memory_bytes_max", "connections_max")
BROKER_SUMS = "window_s BIGINT, broker STRING, " + ", ".join(f"{name} BIGINT" for name in BROKER_SUMMED + BROKER_MAXIMA)


def reports(records: DataFrame) -> DataFrame:
    """Records of the stream as reports; `readable` says which of them really are reports.

    A report's time is at most the time when the server received it: a clock that is ahead must not make the reports of
    others look late.
    """
    from pyspark.sql import functions as F

    def text(field: str) -> Column:
        return F.col("fields")[field].cast("string")

    told_ms = text("at").try_cast("bigint")
    at = F.timestamp_millis(F.when(told_ms.between(0, LAST_MS), told_ms))
    return records.select(
        text("broker").alias("broker"),
        F.coalesce(text("sequence"), F.col("id")).alias("sequence"),
        F.least(at, F.col("at")).alias("at"),  # if one is null, the other
        F.from_json(text("report"), _REPORT).alias("report"),
    ).select(*_columns(REPORTS))


def readable() -> Column:
    """Whether a report has everything that a report must have."""
    from pyspark.sql import functions as F

    return F.col("broker").isNotNull() & F.col("at").isNotNull() & F.coalesce(F.col("report.seconds") > 0, F.lit(False))


def topic_counters(found: DataFrame) -> DataFrame:
    """One row per topic of each report. Counts below 0 or above COUNT_MAX are left out: sums must not overflow."""
    from pyspark.sql import functions as F

    def sane(path: str) -> Column:
        value = F.col(path)
        return F.when(value.between(0, COUNT_MAX), value)

    latencies = F.struct(*(sane(f"counted.latencies.`{bucket}`").alias(str(bucket)) for bucket in range(BUCKETS)))
    rows = found.select("at", F.explode("report.topics").alias("topic", "counted"))
    counted = (sane(f"counted.{name}").alias(name) for name in SUMMED)
    return rows.select("at", "topic", *counted, latencies.alias("latencies")).select(*_columns(TOPIC_COUNTERS))


def topic_sums(rows: DataFrame) -> DataFrame:
    """Sums per window and topic, of counters or of sums."""
    from pyspark.sql import functions as F

    window = F.col("window_s") if "window_s" in rows.columns else window_of(F.col("at"))
    buckets = [F.sum(F.col(f"latencies.`{bucket}`")).alias(f"bucket_{bucket}") for bucket in range(BUCKETS)]
    sums = rows.groupBy(window.alias("window_s"), "topic").agg(*(F.sum(name).alias(name) for name in SUMMED), *buckets)
    latencies = F.struct(*(F.col(f"bucket_{bucket}").alias(str(bucket)) for bucket in range(BUCKETS)))
    return sums.withColumn("latencies", latencies).select(*_columns(TOPIC_SUMS))


def topic_table(sums: DataFrame) -> DataFrame:
    """Percentiles from merged sums: the upper limit of the bucket in which that share of the samples is reached.

    One pass over the buckets counts, for each share, the buckets before it is reached.
    """
    from pyspark.sql import functions as F

    counts = F.array(*(F.coalesce(F.col(f"latencies.`{bucket}`"), F.lit(0)) for bucket in range(BUCKETS)))
    with_samples = sums.select("window_s", "topic", *SUMMED, counts.alias("counts")).withColumn(
        "samples", F.aggregate("counts", F.lit(0).cast("bigint"), lambda seen, count: seen + count)
    )
    nothing = F.struct(F.lit(0).cast("bigint").alias("seen"), *(F.lit(0).alias(name) for name in SHARES))

    def step(walk: Column, count: Column) -> Column:
        seen = walk["seen"] + count
        passed = {name: (seen < F.lit(share) * F.col("samples")).cast("int") for name, share in SHARES.items()}
        return F.struct(seen.alias("seen"), *((walk[name] + passed[name]).alias(name) for name in SHARES))

    limits = F.array(*(F.lit(bucket_limit_s(bucket)) for bucket in range(BUCKETS)))
    walked = with_samples.withColumn("walk", F.aggregate("counts", nothing, step))
    percentiles = (F.when(F.col("samples") > 0, limits[F.col(f"walk.{name}")]).alias(name) for name in SHARES)
    return walked.select("window_s", "topic", *SUMMED, "samples", *percentiles).select(*_columns(TOPIC_TABLE))


def broker_sums(found: DataFrame) -> DataFrame:
    """Sums and maxima of reports, per window and broker."""
    from pyspark.sql import functions as F

    def over_time(per_s: str, factor: int) -> Column:
        return _whole(F.col(f"report.{per_s}") * F.col("report.seconds") * factor)

    measured = found.select(
        window_of(F.col("at")).alias("window_s"),
        "broker",
        F.lit(1).cast("bigint").alias("reports"),
        _whole(F.col("report.seconds") * 1000).alias("measured_ms"),
        over_time("output_bytes_per_s", 1).alias("output_bytes"),
        over_time("input_bytes_per_s", 1).alias("input_bytes"),
        over_time("cpu_share", 1_000_000).alias("cpu_us"),
        _whole(F.col("report.output_bytes_per_s")).alias("output_bytes_per_s_max"),
        F.col("report.memory_bytes").alias("memory_bytes_max"),
        F.col("report.connections").alias("connections_max"),
    )
    return merged_broker_sums(measured.select(*_columns(BROKER_SUMS)))


def merged_broker_sums(sums: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    summed = (F.sum(name).alias(name) for name in BROKER_SUMMED)
    highest = (F.max(name).alias(name) for name in BROKER_MAXIMA)
    return sums.groupBy("window_s", "broker").agg(*summed, *highest).select(*_columns(BROKER_SUMS))


def window_of(at: Column) -> Column:
    """The start of the window that a time is in, in seconds since 1970."""
    from pyspark.sql import functions as F

    seconds = F.unix_seconds(at)
    return seconds - F.pmod(seconds, F.lit(WINDOW_S))


def _whole(value: Column) -> Column:
    """Rounded to a whole number; null if it is not a number or out of bounds."""
    from pyspark.sql import functions as F

    return F.when(value.between(0, COUNT_MAX), F.round(value)).cast("bigint")


def _columns(ddl: str) -> list[Column]:
    """The columns of a schema, each cast to its type."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return [F.col(field.name).cast(field.dataType).alias(field.name) for field in schema.fields]


# --- the query


LATE_S = 600  # behind the newest report seen
FILES_MERGED = 16  # of one level into one of the next
FORGOTTEN_AT_ONCE = 4  # files of a table after each batch; a batch adds one
LEVELS = 3  # above the batches: with a batch every ten seconds, a file of the highest level covers 11 hours
CHECKPOINT = "nc-telemetry"  # no feed can have this name

Transform = Callable[["DataFrame"], "DataFrame"]
MERGES: dict[str, tuple[str, Transform]] = {
    TOPICS: (TOPIC_SUMS, topic_sums),
    BROKERS: (BROKER_SUMS, merged_broker_sums),
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
    """The streaming query that sums up reports, beside other queries of the session. One per warehouse."""

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
        """Start the query and return it, also after it failed. `once`: it ends when it has read what is there now."""
        self._remove_rubbish()
        checkpoint = self._warehouse.checkpoint(CHECKPOINT)
        reader = self._spark.readStream.format("valkey_streams").options(
            url=self._url,
            brokers="true",
            streams=REPORT_STREAM.decode(),
            maxRecordsPerBatch=str(self._settings.batch_records),
            failOnDataLoss="false",  # the streams are short, and newer reports are worth more than older ones
        )
        if not (checkpoint / "metadata").exists():
            # No checkpoint, or it was lost: the catalogue knows how far we are.
            progress = msgspec.structs.replace(self._catalog.progress(), spark_batch=-1)
            self._catalog.note(progress)
            if progress.read_to != NOTHING_READ:
                reader = reader.option("startingOffsets", progress.read_to)
        found = reports(reader.load()).withWatermark("at", f"{LATE_S} seconds")
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
            # We were killed after the commit, before Spark recorded it. Spark's state must still get its reports.
            frame.write.format("noop").mode("overwrite").save()
            return
        self._commit(frame, batch, before)
        for name in MERGES:
            self._merge(name)
        self._forget_oldest()

    def _commit(self, frame: DataFrame, batch: int, before: Progress) -> None:
        number = before.commits + 1
        kept = frame.persist()  # a stream with state must run only once
        try:
            good, counted = _counted(kept)
            files = [
                self._written(BROKERS, 0, number, broker_sums(good)),
                self._written(TOPICS, 0, number, topic_sums(topic_counters(good))),
            ]
        finally:
            kept.unpersist()
        offsets = noted(self._warehouse.checkpoint(CHECKPOINT), batch)
        progress = Progress(
            spark_batch=batch,
            read_to=json.dumps({stream: offset.id for stream, offset in sorted(offsets.items())}),
            commits=number,
            reports=before.reports + counted.get["good"],
            malformed=before.malformed + counted.get["all"] - counted.get["good"],
            lost=sum(offset.lost for offset in offsets.values()),
        )
        self._catalog.commit(progress, [file for file in files if file is not None])

    def _written(self, name: str, level: int, number: int, frame: DataFrame) -> SumFile | None:
        """The written file; None if there were no rows."""
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
        """Delete a few old files. Age counts from the newest window, because our clock may have been set forward."""
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
        """Delete folders that a killed run wrote but did not commit, or merged but did not delete."""
        for name in MERGES:
            files = self._catalog.files(name)
            for level in range(LEVELS + 1):
                folder = sums_path(self._warehouse, name, level, 0).parent
                self._warehouse.remove_others(folder, [self._path_of(file) for file in files])

    def _path_of(self, file: SumFile) -> Path:
        return sums_path(self._warehouse, file.name, file.level, file.number)


def _own_session(spark: SparkSession) -> SparkSession:
    """A session with its own settings: a few thousand reports at a time need one task and one state store."""
    from pyspark.sql import SparkSession

    # A new session would not know our source of streams; a clone does.
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    session.conf.set("spark.sql.shuffle.partitions", "1")
    # Without new reports there is nothing to do: the state can be cleaned up with the next ones.
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    return session


def _counted(found: DataFrame) -> tuple[DataFrame, Observation]:
    """The readable reports, and an observation of how many are readable, which is available once they were used."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    counted = Observation()
    noted = found.observe(counted, F.count("*").alias("all"), F.count_if(readable()).alias("good"))
    return noted.where(readable()), counted


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
