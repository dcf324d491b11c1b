"""A write is not believed: what the driver finds is compared with what executors say they wrote.

An executor on another machine, without shared storage, writes where the driver does not see it. Here Java and Python
have different working folders, so that one relative path leads them to two places.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearcast.errors import ClusterError
from nearcast.pipeline import storage
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.storage import Warehouse, require_shared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path that means one folder to Java and to executors, and another to this process."""
    java_folder = spark.sparkContext._jvm.java.lang.System.getProperty("user.dir")  # type: ignore[union-attr]
    ours = tmp_path.joinpath(*"abcdefghijkl")
    ours.mkdir(parents=True)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    monkeypatch.chdir(ours)
    path = Path(os.path.relpath(theirs, java_folder))
    assert path.resolve() != theirs
    path.mkdir(parents=True)
    return path


def test_the_rows_of_a_write_are_those_in_the_footers(spark: SparkSession, tmp_path: Path) -> None:
    for rows in (0, 1, 1000):
        written = storage.write(spark.range(rows), tmp_path / str(rows), files=3)
        assert written.rows == rows
        assert bool(written.bytes)
    empty = spark.createDataFrame([], "a INT").limit(0)
    assert storage.write(empty, tmp_path / "empty").rows == 0
    assert storage.write(spark.createDataFrame([(1,)], "a INT").join(empty, on="a"), tmp_path / "joined").rows == 0


def test_files_that_the_driver_does_not_see_fail_the_write(spark: SparkSession, elsewhere: Path) -> None:
    with pytest.raises(ClusterError, match=r"wrote 7 rows .* 0 are there"):
        storage.write(spark.range(7), elsewhere / "batch")


def test_a_batch_with_fewer_rows_than_were_counted_is_not_committed(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    datasets = Datasets(Database(warehouse.catalog), warehouse)
    for name, key in (("plain", ""), ("keyed", "k")):
        datasets.create(name, "k STRING", key)
    frame = spark.createDataFrame(
        [("a", None, None, None)], "k STRING, _topic STRING, _published_at TIMESTAMP, _ingested_at TIMESTAMP"
    )
    with pytest.raises(ClusterError, match="2 rows were counted"):
        datasets.write(datasets.describe("plain"), frame, 2)
    assert datasets.write(datasets.describe("keyed"), frame, 2).rows == 1, "the newest of each key"
    with pytest.raises(ClusterError, match="0 rows were counted"):
        datasets.write(datasets.describe("keyed"), frame, 0)


def test_a_folder_that_executors_do_not_see_is_refused(spark: SparkSession, elsewhere: Path, tmp_path: Path) -> None:
    require_shared(spark, tmp_path)
    assert list(tmp_path.glob(".nearcast*")) == []
    with pytest.raises(ClusterError, match="cannot see"):
        require_shared(spark, elsewhere)
    assert list(elsewhere.iterdir()) == []
