"""Independent jobs on Spark: the same function as on local cores, so the same answers.

Jobs and outcomes travel as pickles in a column of bytes. The executors must be able to import the function.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")

Progress = Callable[[int, int, str], None]

_SCHEMA = "number long, content binary"


def run_on_spark(
    spark: SparkSession, function: Callable[[Job], Outcome], jobs: Sequence[Job], progress: Progress
) -> list[Outcome]:
    """The outcomes, in the order of the jobs. Every job is a task of its own, so that cores stay busy to the end."""
    progress(0, len(jobs), "on Spark")
    rows = [(number, bytearray(pickle.dumps(job))) for number, job in enumerate(jobs)]
    frame = spark.createDataFrame(rows, _SCHEMA).repartitionByRange(max(1, len(rows)), "number")
    done = frame.mapInArrow(partial(_work, function), _SCHEMA).collect()
    progress(len(jobs), len(jobs), "done")
    return [pickle.loads(row["content"]) for row in sorted(done, key=lambda row: row["number"])]


def _work(function: Callable[[Any], Any], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        numbers, contents = (batch.column(column).to_pylist() for column in range(2))
        made = [pickle.dumps(function(pickle.loads(content))) for content in contents]
        yield pa.RecordBatch.from_arrays(
            [pa.array(numbers, pa.int64()), pa.array(made, pa.binary())], batch.schema.names
        )
