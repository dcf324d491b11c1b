"""What becomes of parsed records: those of the dataset, the dead letters, and how many there are of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.pipeline.catalog.datasets import Dataset
from nearcast.pipeline.schemas import DEAD_LETTERS
from nearcast.pipeline.transforms.newest import newest_per_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAYLOAD_KEPT_BYTES = 4096  # of a dead letter


def good_records(parsed: DataFrame, dataset: Dataset) -> DataFrame:
    """The dataset's columns and those that a feed adds; of a keyed dataset the newest record of each key."""
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

    bad, told = F.col("reason").isNotNull(), F.col("kind") != "record"
    row = parsed.agg(
        F.count_if(~bad).alias("good"),
        F.count_if(bad & ~told).alias("dead"),
        F.count_if(told).alias("gaps"),
    ).first()
    assert row is not None
    return row.asDict()
