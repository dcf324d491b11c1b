"""Datasets by numbered batches: readers as of a batch, newest per key, compaction, static files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline.catalog.database import EXPIRED_LEAST, Database
from nearcast.pipeline.catalog.datasets import Segment
from nearcast.pipeline.datasets import GRACE_S, Datasets
from nearcast.pipeline.jobs.datasets import LEAST_SEGMENTS
from nearcast.pipeline.storage import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def datasets(tmp_path: Path, clock: Clock) -> Datasets:
    warehouse = Warehouse(tmp_path)
    return Datasets(Database(warehouse.catalog), warehouse, clock)


def append(spark: SparkSession, datasets: Datasets, name: str, rows: list[tuple[object, ...]]) -> int:
    dataset = datasets.describe(name)
    columns = ", ".join(f"{column} {kind}" for column, kind in datasets.schema(name).items())
    width = len(datasets.schema(name))
    frame = spark.createDataFrame([(*row, *[None] * (width - len(row))) for row in rows], columns)
    segment = datasets.write(dataset, frame, len(rows))
    assert datasets.position(name) == dataset.position  # not there yet
    datasets.commit(name, segment)
    return segment.last


def pairs(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row)[:2] for row in frame.collect())


def folders(datasets: Datasets, name: str) -> int:
    return len(list(datasets.warehouse.dataset(name).iterdir()))


def test_a_plain_dataset_is_read_by_batch_numbers(spark: SparkSession, datasets: Datasets) -> None:
    datasets.create("d", "k STRING, n INT")
    datasets.create("d", "k STRING, n INT")
    assert datasets.names() == ["d"]
    assert datasets.schema("d") == {
        "k": "STRING",
        "n": "INT",
        "_topic": "STRING",
        "_published_at": "TIMESTAMP",
        "_ingested_at": "TIMESTAMP",
    }
    assert datasets.position("d") == 0
    assert datasets.whole(spark, "d", 0).collect() == []
    assert [append(spark, datasets, "d", [("a", n)]) for n in (1, 2, 3)] == [1, 2, 3]
    assert pairs(datasets.new(spark, "d", 1, 3)) == [("a", 2), ("a", 3)]
    assert pairs(datasets.new(spark, "d", 1, 2)) == [("a", 2)]
    assert pairs(datasets.whole(spark, "d", 2)) == [("a", 1), ("a", 2)]
    assert datasets.whole(spark, "d", 3).columns == list(datasets.schema("d"))
    assert datasets.size("d")[0] == 3


def test_a_keyed_dataset_has_the_newest_of_each_key(spark: SparkSession, datasets: Datasets) -> None:
    datasets.create("d", "k STRING, n INT", key="k")
    append(spark, datasets, "d", [("a", 1), ("b", 1)])
    append(spark, datasets, "d", [("b", 2), ("c", 2)])
    append(spark, datasets, "d", [("a", None)])
    assert pairs(datasets.whole(spark, "d", 2)) == [("a", 1), ("b", 2), ("c", 2)]
    assert pairs(datasets.whole(spark, "d", 3)) == [("a", None), ("b", 2), ("c", 2)]
    assert pairs(datasets.new(spark, "d", 0, 2)) == [("a", 1), ("b", 2), ("c", 2)]
    assert pairs(datasets.new(spark, "d", 1, 3)) == [("a", None), ("b", 2), ("c", 2)]


def test_an_added_column_is_null_in_older_records(spark: SparkSession, datasets: Datasets) -> None:
    datasets.create("d", "k STRING")
    append(spark, datasets, "d", [("a",)])
    datasets.alter("d", "severity INT")
    append(spark, datasets, "d", [("b", 3)])
    assert list(datasets.schema("d"))[:2] == ["k", "severity"]
    assert [tuple(row)[:2] for row in datasets.whole(spark, "d", 2).orderBy("k").collect()] == [("a", None), ("b", 3)]
    datasets.create("d", "k STRING")  # as it was first made: nothing changes
    with pytest.raises(UsageError, match="cannot become k INT"):
        datasets.alter("d", "k INT")
    with pytest.raises(UsageError, match="a different dataset d exists"):
        datasets.create("d", "k INT")


@pytest.mark.parametrize("key", ["", "k"])
def test_compaction_changes_files_and_no_answer(
    spark: SparkSession, datasets: Datasets, clock: Clock, key: str
) -> None:
    datasets.create("d", "k STRING, n INT", key=key)
    last = LEAST_SEGMENTS + 2
    for n in range(1, last + 1):
        append(spark, datasets, "d", [(f"k{n % 3}", n)])
    upto = last - 2
    before = {after: pairs(datasets.new(spark, "d", after, last)) for after in (0, upto, last)}
    begun = datasets.whole(spark, "d", upto)  # planned over files that become obsolete
    datasets.compact(spark, "d", upto)
    assert {after: pairs(datasets.new(spark, "d", after, last)) for after in (0, upto, last)} == before
    assert datasets.size("d")[0] == (3 + 2 if key else last)
    assert len(begun.collect()) == (3 if key else upto)
    assert folders(datasets, "d") == last + 1
    with pytest.raises(ClusterError, match=f"as of batch {upto - 1} is gone: compacted up to {upto}"):
        datasets.whole(spark, "d", upto - 1)
    clock.now_s += GRACE_S + 1
    datasets.compact(spark, "d", upto)
    assert folders(datasets, "d") == 3
    assert pairs(datasets.new(spark, "d", 0, last)) == before[0]


def test_a_merge_keeps_the_numbers_of_batches(spark: SparkSession, datasets: Datasets) -> None:
    datasets.create("d", "k STRING, n INT", key="k")
    for n in range(1, LEAST_SEGMENTS + 1):
        append(spark, datasets, "d", [("even" if n % 2 == 0 else f"odd{n}", n)])
    datasets.compact(spark, "d", LEAST_SEGMENTS)
    assert pairs(datasets.new(spark, "d", LEAST_SEGMENTS - 2, LEAST_SEGMENTS)) == [
        ("even", LEAST_SEGMENTS),
        (f"odd{LEAST_SEGMENTS - 1}", LEAST_SEGMENTS - 1),
    ]


def test_old_records_of_a_plain_dataset_can_go(spark: SparkSession, datasets: Datasets, clock: Clock) -> None:
    datasets.create("d", "k STRING, n INT")
    append(spark, datasets, "d", [("a", 1)])
    clock.now_s += 100
    append(spark, datasets, "d", [("a", 2)])
    assert datasets.keep("d", age_s=50, upto=2) == 1
    assert pairs(datasets.whole(spark, "d", 2)) == [("a", 2)]


@pytest.mark.parametrize(
    ("segments", "rounds"),
    [
        (EXPIRED_LEAST + 3, [EXPIRED_LEAST, 3, 0]),  # so few may go at once
        (200, [20, 18, 16]),  # else a tenth of what is left
    ],
)
def test_old_records_go_in_small_shares(datasets: Datasets, clock: Clock, segments: int, rounds: list[int]) -> None:
    datasets.create("d", "k STRING")
    for number in range(1, segments + 1):
        datasets.commit("d", Segment(first=number, last=number, rows=1, bytes=1, made_s=clock.now_s))
    clock.now_s += 100
    assert [datasets.keep("d", age_s=50, upto=segments) for _ in rounds] == rounds
    assert datasets.size("d")[0] == segments - sum(rounds)


def test_what_a_crash_left_is_deleted_at_the_start(spark: SparkSession, datasets: Datasets) -> None:
    datasets.create("d", "k STRING, n INT")
    append(spark, datasets, "d", [("a", 1)])
    datasets.warehouse.batch("d", 2).mkdir()
    datasets.warehouse.compacted("d", 1, 2).mkdir()
    datasets.warehouse.batch("unknown", 1).mkdir(parents=True)
    assert datasets.clean() == 3
    assert pairs(datasets.whole(spark, "d", 1)) == [("a", 1)]


def test_a_dropped_name_goes_on_with_higher_numbers(spark: SparkSession, datasets: Datasets) -> None:
    datasets.create("d", "k STRING, n INT")
    append(spark, datasets, "d", [("a", 1)])
    datasets.drop("d")
    with pytest.raises(UsageError, match="unknown dataset 'd': the datasets are none"):
        datasets.schema("d")
    datasets.create("d", "n INT, k STRING", key="k")
    assert append(spark, datasets, "d", [(5, "x")]) == 2
    assert pairs(datasets.whole(spark, "d", 2)) == [(5, "x")]


CSV = "id,name,lat\n1,north,1.5\n2,south,2.5\n"


def test_a_static_dataset_is_replaced_at_once(spark: SparkSession, datasets: Datasets, tmp_path: Path) -> None:
    file = tmp_path / "shelters.csv"
    file.write_text(CSV)
    loaded = datasets.load(spark, "shelters", file, "csv", key="id")
    assert (loaded.position, loaded.key, datasets.schema("shelters")) == (
        1,
        "id",
        {"id": "INT", "name": "STRING", "lat": "DOUBLE"},
    )
    first = datasets.whole(spark, "shelters", 1)
    file.write_text("id,name,lat\n3,west,3\n")
    assert datasets.load(spark, "shelters", file, "csv").position == 2
    assert pairs(datasets.whole(spark, "shelters", 2)) == [(3, "west")]
    assert pairs(datasets.new(spark, "shelters", 1, 2)) == [(3, "west")]
    assert pairs(datasets.whole(spark, "shelters", 1)) == pairs(first) == [(1, "north"), (2, "south")]
    datasets.compact(spark, "shelters", 2)
    assert datasets.whole(spark, "shelters", 1).count() == 0
    assert pairs(first) == [(1, "north"), (2, "south")]  # its files stay for a while


def test_json_and_parquet_are_loaded_and_columns_added(spark: SparkSession, datasets: Datasets, tmp_path: Path) -> None:
    lines, array, parquet = tmp_path / "lines", tmp_path / "array", tmp_path / "parquet"
    lines.write_text('{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n')
    array.write_text('[\n{"id": 1, "name": "c", "beds": 3}\n]')
    spark.range(5, 7).selectExpr("id", "'p' AS name", "CAST(1 AS INT) AS beds").coalesce(1).write.parquet(str(parquet))
    datasets.load(spark, "s", lines, "json", schema="id BIGINT NOT NULL, name STRING")
    datasets.load(spark, "s", array, "json", schema="id BIGINT, name STRING, beds INT")
    assert [tuple(row) for row in datasets.whole(spark, "s", 2).collect()] == [(1, "c", 3)]
    datasets.load(spark, "s", parquet, "parquet")
    assert pairs(datasets.whole(spark, "s", 3)) == [(5, "p"), (6, "p")]
    with pytest.raises(UsageError, match="cannot become name INT"):
        datasets.load(spark, "s", array, "json", schema="id BIGINT, name INT")


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("id,name\n1,a\n1,b\n", {"key": "id"}, "1 rows repeat a value of the key id"),
        ("id,name\n1,a\n,b\n", {"schema": "id INT NOT NULL, name STRING"}, "1 rows have no id, which is required"),
        ("id,name\nx,a\n", {"schema": "id INT, name STRING"}, "cannot be read"),
        ("id,name\n1,a\n", {"key": "user"}, "key 'user' is not a column"),
        ("id,the name\n1,a\n", {}, "bad column name 'the name': use"),
        ("id,name\n1,a\n", {"format": "xml"}, "unknown format 'xml': use one of csv, json, parquet"),
    ],
)
def test_a_wrong_file_is_refused_and_nothing_is_loaded(
    spark: SparkSession, datasets: Datasets, tmp_path: Path, text: str, options: dict[str, str], said: str
) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    with pytest.raises(UsageError, match=said):
        datasets.load(spark, "s", file, **({"format": "csv"} | options))
    assert datasets.names() == []
