"""The newest record of each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def newest_per_key(frame: DataFrame, key: str, order: Column, columns: Sequence[str]) -> DataFrame:
    """For each value of `key` the row with the greatest `order`, which no two rows of a key share."""
    from pyspark.sql import functions as F

    newest = F.max_by(F.struct(*columns), order).alias("_newest")
    return frame.groupBy(key).agg(newest).select(*(F.col("_newest")[name].alias(name) for name in columns))
