"""Where everything of the data cluster lies on disk, and how Parquet is written there and read back.

Nothing here is committed: a folder counts from the moment the catalogue names it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nearcast.errors import ClusterError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_AT_MOST = 4  # of one write: each costs a reader an open and a footer


class Warehouse(msgspec.Struct, frozen=True):
    """The folders under one root. Numbers are padded so that names sort as they do."""

    root: Path

    @property
    def catalog(self) -> Path:
        return self.root / "catalog.sqlite"

    def dataset(self, dataset: str) -> Path:
        return self.root / "datasets" / dataset

    def datasets(self) -> list[Path]:
        """The folders of all datasets, also of those that the catalogue does not know."""
        return sorted((self.root / "datasets").glob("*"))

    def batch(self, dataset: str, number: int) -> Path:
        return self.dataset(dataset) / f"batch-{number:012}"

    def compacted(self, dataset: str, first: int, last: int) -> Path:
        return self.dataset(dataset) / f"compacted-{first:012}-{last:012}"

    def dead_letters(self, feed: str, number: int) -> Path:
        return self.root / "dead-letters" / feed / f"batch-{number:012}"

    def checkpoint(self, feed: str) -> Path:
        return self.root / "checkpoints" / feed

    def results(self, channel: str, execution: int) -> Path:
        return self.root / "results" / channel / f"execution-{execution:012}"

    def telemetry(self, table: str, number: int) -> Path:
        return self.root / "telemetry" / table / f"batch-{number:012}"

    def remove_others(self, folder: Path, kept: Collection[Path]) -> int:
        """Delete all in a folder that is not kept; how many. What a crash left behind is found so."""
        found = [path for path in folder.iterdir() if path not in kept] if folder.is_dir() else []
        for path in found:
            remove(path)
        return len(found)


class Written(msgspec.Struct, frozen=True):
    """What a write has put into its folder, as found there."""

    rows: int
    bytes: int


def write(frame: DataFrame, path: Path, files: int = FILES_AT_MOST) -> Written:
    """Write a frame as a folder of few Parquet files, in place of what is there.

    Returns when the files are on the disk: the catalogue that names them survives a power cut, so must they. Raises
    ClusterError if there are other rows here than the executors say they wrote.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    sent = Observation()
    counted = frame.observe(sent, F.count(F.lit(1)).alias("rows"))
    counted.coalesce(files).write.mode("overwrite").parquet(str(path))
    written = _found(path)
    if written.rows != sent.get["rows"]:
        raise ClusterError(
            f"Spark wrote {sent.get['rows']} rows to {path}, and {written.rows} are there: the folder must be on "
            "storage that all executors and this process share"
        )
    return written


def read(spark: SparkSession, ddl_schema: str, paths: Sequence[Path]) -> DataFrame:
    """The rows of these folders in one schema. A column that a file lacks is null; no folders, no rows."""
    if not paths:
        # With the limit Spark knows before it starts anything that there are no rows.
        return spark.createDataFrame([], ddl_schema).limit(0)
    return spark.read.schema(ddl_schema).parquet(*map(str, paths))


def remove(path: Path) -> None:
    """Delete a folder or a file, there or not."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _found(folder: Path) -> Written:
    """By the footers of the files."""
    import pyarrow.parquet as pq

    found = sorted(folder.glob("*.parquet"))
    return Written(sum(pq.read_metadata(file).num_rows for file in found), sum(_synced(file) for file in found))


def _synced(file: Path) -> int:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        return os.fstat(opened.fileno()).st_size
