"""The transforms of telemetry on the bench's rows: NumPy's numbers, Spark's own functions, one shuffle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from nearcast.bench.telemetry import ReferenceTable, duckdb_table, made_rows, reference_table, same_table
from nearcast.pipeline.jobs.telemetry import TOPIC_COUNTERS, topic_sums, topic_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 50_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return made_rows(ROWS, tmp_path_factory.mktemp("telemetry") / "rows")


@pytest.fixture(scope="module")
def reference(files: list[Path]) -> ReferenceTable:
    return reference_table(files)


def table(spark: SparkSession, files: list[Path]) -> DataFrame:
    return topic_table(topic_sums(spark.read.schema(TOPIC_COUNTERS).parquet(*map(str, files))))


def test_sums_and_percentiles_are_those_of_numpy(
    spark: SparkSession, files: list[Path], reference: ReferenceTable, tmp_path: Path
) -> None:
    table(spark, files).write.parquet(str(tmp_path / "spark"))
    assert reference.rows == ROWS
    assert len(reference.window_s) == 3000
    assert same_table(reference, tmp_path / "spark")


@pytest.mark.usefixtures("compiled")
def test_the_plan_is_compiled_shuffles_once_and_has_no_python(spark: SparkSession, files: list[Path]) -> None:
    plan = table(spark, files)._jdf.queryExecution().executedPlan().toString()
    operators = re.findall(r"^[ +:-]*(?:\*\(\d+\) )?(\w+)", plan, re.MULTILINE)
    assert operators.count("Exchange") == 1
    assert operators.count("HashAggregate") == 2
    assert "Python" not in plan
    assert "SortAggregate" not in plan


def test_duckdb_gives_the_same(files: list[Path], reference: ReferenceTable, tmp_path: Path) -> None:
    duckdb_table(files, tmp_path / "duckdb", threads=1)
    assert same_table(reference, tmp_path / "duckdb")


def test_a_wrong_number_is_found(files: list[Path], reference: ReferenceTable, tmp_path: Path) -> None:
    duckdb_table(files, tmp_path / "duckdb", threads=1)
    for name in ("sums", "percentiles_s"):
        values = np.copy(getattr(reference, name))
        values[7, -1] *= 2
        assert not same_table(msgspec.structs.replace(reference, **{name: values}), tmp_path / "duckdb")
    assert not same_table(reference_table(files[:-1]), tmp_path / "duckdb")
