"""Telemetry: agents' reports become sums per window, topic and broker, which add up in any order and any grouping.

    records of the stream -- reports --> reports -- topic_counters --> rows by topic and second
                                            |                              |
                                       broker_sums                     topic_sums
                                            v                              v
                                    (window, broker)                (window, topic) -- topic_table --> percentiles

All sums are of whole numbers, so the order in which records come changes nothing. Sums of sums are sums: `topic_sums`
and `merged_broker_sums` also merge what was stored. A latency histogram is a struct with one field per bucket (JSON
keeps it sparse, Parquet as a column per bucket, most of it nothing): one plain sum per bucket merges it, in the code
that Spark compiles for the whole stage. Spark's built-in functions alone: no Python sees a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.core.counters import BUCKETS, bucket_limit_s

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WINDOW_S = 10
SHARES = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99}

COUNT_MAX = 10**12  # of one counter in one report: a million such reports can be summed without an overflow

LAST_MS = 253_402_300_799_999  # the end of the year 9999, where Spark's timestamps end

SUMMED = ("published", "published_bytes", "received", "received_bytes", "publishers", "subscribers")
_FIGURES = ("seconds", "output_bytes_per_s", "input_bytes_per_s", "cpu_share")


def _struct(types: dict[str, str]) -> str:
    return "STRUCT<" + ", ".join(f"`{name}`: {kind}" for name, kind in types.items()) + ">"


_BUCKETS = [str(bucket) for bucket in range(BUCKETS)]
_COUNTER_TYPES = dict.fromkeys(SUMMED, "BIGINT") | {"latencies": _struct(dict.fromkeys(_BUCKETS, "BIGINT"))}
_COUNTERS = ", ".join(f"{name} {kind}" for name, kind in _COUNTER_TYPES.items())
_REPORT = _struct(
    dict.fromkeys(_FIGURES, "DOUBLE")
    | dict.fromkeys(("connections", "memory_bytes"), "BIGINT")
    | {"topics": f"MAP<STRING, {_struct(_COUNTER_TYPES)}>"}
)

REPORTS = f"broker STRING, sequence STRING, at TIMESTAMP, report {_REPORT}"
# One topic in one report, or in one window. In a window `publishers` and `subscribers` are those of each second added
# up: divided by the length of the window they are means.
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
    """Records of the stream as reports; `readable` finds those that are some.

    A report cannot be younger than the moment the server took it: a clock that is ahead must not make the reports of
    all others look late.
    """
    from pyspark.sql import functions as F

    def text(field: str) -> Column:
        return F.col("fields")[field].cast("string")

    told_ms = text("at").try_cast("bigint")
    at = F.timestamp_millis(F.when(told_ms.between(0, LAST_MS), told_ms))
    return records.select(
        text("broker").alias("broker"),
        F.coalesce(text("sequence"), F.col("id")).alias("sequence"),
        F.least(at, F.col("at")).alias("at"),  # the other one if one is null
        F.from_json(text("report"), _REPORT).alias("report"),
    ).select(*_columns(REPORTS))


def readable() -> Column:
    """Whether a report says what every report must."""
    from pyspark.sql import functions as F

    return F.col("broker").isNotNull() & F.col("at").isNotNull() & F.coalesce(F.col("report.seconds") > 0, F.lit(False))


def topic_counters(found: DataFrame) -> DataFrame:
    """One row per topic of each report. What no client can have counted in a second is left out: sums must not end."""
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

    One walk over the buckets counts, for each share, those in which it is not reached yet.
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
    """Sums and maxima per window and broker, of reports."""
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
    """The beginning of a time's window, in seconds since 1970."""
    from pyspark.sql import functions as F

    seconds = F.unix_seconds(at)
    return seconds - F.pmod(seconds, F.lit(WINDOW_S))


def _whole(value: Column) -> Column:
    """To the nearest whole number; none where it is no number, or one out of all bounds."""
    from pyspark.sql import functions as F

    return F.when(value.between(0, COUNT_MAX), F.round(value)).cast("bigint")


def _columns(ddl: str) -> list[Column]:
    """The columns of a schema, each in its type."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return [F.col(field.name).cast(field.dataType).alias(field.name) for field in schema.fields]
