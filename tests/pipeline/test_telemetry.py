"""The tables that readers see: the numbers of Spark and of plain Python, and what `nearcast report` makes of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from nearcast.cli.app import app
from nearcast.cli.report import chart_of
from nearcast.core.model.counters import BUCKETS, TopicCounters, histogram, percentile_s
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.datasets import BROKERS, TOPICS, Progress, SumFile, TelemetryCatalog, sums_path
from nearcast.pipeline.jobs import telemetry
from nearcast.pipeline.jobs.telemetry import BROKER_MAXIMA, BROKER_SUMMED, SHARES, SUMMED, TOPIC_SUMS
from nearcast.pipeline.storage import Warehouse, read
from nearcast.pipeline.telemetry import TelemetryTables, histograms, percentiles_s, summarise

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_S = int(time.time()) // 10 * 10
Sums = dict[tuple[int, str], TopicCounters]


class Folder:
    """A data cluster's folder, with files of sums as the job writes them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warehouse = Warehouse(root)
        self.database = Database(self.warehouse.catalog)
        self.catalog = TelemetryCatalog(self.database)

    def add(self, name: str, number: int, table: pa.Table) -> None:
        path = sums_path(self.warehouse, name, 0, number)
        path.mkdir(parents=True)
        pq.write_table(table, path / "part.parquet")
        windows = table["window_s"].to_pylist()
        self.catalog.commit(Progress(commits=number), [SumFile(name, 0, number, min(windows), max(windows), 1)])

    def paths(self, name: str) -> list[Path]:
        return [sums_path(self.warehouse, name, file.level, file.number) for file in self.catalog.files(name)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.database.close()


def table_of(sums: Sums) -> pa.Table:
    counted = list(sums.values())
    buckets = [pa.array([one.latencies.get(bucket) for one in counted], pa.int64()) for bucket in range(BUCKETS)]
    columns: dict[str, Any] = {"window_s": [key[0] for key in sums], "topic": [key[1] for key in sums]}
    columns |= {name: [getattr(one, name) for one in counted] for name in SUMMED}
    columns["latencies"] = pa.StructArray.from_arrays(buckets, [str(bucket) for bucket in range(BUCKETS)])
    return pa.table(columns)


def some_sums(dice: Random) -> Sums:
    """Of some topics in some windows; one has no latencies."""
    found = {}
    for topic in dice.sample(["t.1", "t.2", "größe", "idle"], 3):
        latencies = [] if topic == "idle" else [dice.lognormvariate(-6, 2) for _ in range(dice.randrange(1, 60))]
        counts = [dice.randrange(1000) for _ in SUMMED]
        found[NOW_S - 10 * dice.randrange(1, 4), topic] = TopicCounters(*counts, histogram(latencies))
    return found


def test_merged_files_give_what_spark_and_plain_python_give(spark: SparkSession, folder: Folder) -> None:
    dice = Random(5)
    expected: Sums = {}
    for number in range(1, 7):
        sums = some_sums(dice)
        folder.add(TOPICS, number, table_of(sums))
        for key, counters in sums.items():
            expected[key] = expected[key].merged(counters) if key in expected else counters
    tables = TelemetryTables(folder.root)
    found = tables.topics(0)
    tables.close()
    percentiles = np.where(np.isnan(percentiles_s(histograms(found))), None, percentiles_s(histograms(found)))  # type: ignore[call-overload]
    ours = {
        (row["window_s"], row["topic"]): (*(row[name] for name in SUMMED), *latency)
        for row, latency in zip(found.to_pylist(), percentiles.tolist(), strict=True)
    }
    merged = telemetry.topic_table(telemetry.topic_sums(read(spark, TOPIC_SUMS, folder.paths(TOPICS))))
    theirs = {(row.window_s, row.topic): tuple(row[name] for name in (*SUMMED, *SHARES)) for row in merged.collect()}
    plain = {
        key: (
            *(getattr(one, name) for name in SUMMED),
            *(percentile_s(one.latencies, share) for share in SHARES.values()),
        )
        for key, one in expected.items()
    }
    assert ours == theirs == plain
    assert len(plain) >= 8
    assert any(latency is None for *_, latency in plain.values())


# --- nearcast report


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture
def busy(folder: Folder) -> Folder:
    counters = TopicCounters(100, 20_000, 500, 100_000, 30, 50, {10: 90, 12: 9, 20: 1})
    window_s = NOW_S - 60
    folder.add(TOPICS, 1, table_of({(window_s, "game.a"): counters, (window_s, "chat"): TopicCounters(received=1)}))
    folder.add(TOPICS, 2, table_of({(window_s, "game.a"): counters, (NOW_S - 7200, "game.a"): counters}))
    values = [10, 10_000, 50_000_000, 10_000_000, 2_500_000, 9_000_000, 30_000_000, 12]
    named = dict(zip((*BROKER_SUMMED, *BROKER_MAXIMA), values, strict=True))
    rows = [{"window_s": window_s, "broker": broker} | named for broker in ("b1", "b2")]
    folder.add(BROKERS, 3, pa.Table.from_pylist(rows))
    return folder


def test_a_report_has_rates_means_and_percentiles(busy: Folder) -> None:
    found = json.loads(run("--folder", busy.root, "--since", "1h", "-o", "json").stdout)
    assert found["covered_s"] == 10
    game, chat = found["topics"]
    assert (game["topic"], game["published_per_s"], game["delivered_bytes_per_s"]) == ("game.a", 20, 20_000)
    assert (game["publishers"], game["subscribers"], game["latency"]["samples"]) == (6, 10, 200)
    latencies = [game["latency"][name] for name in SHARES]
    assert latencies == [percentile_s({10: 90, 12: 9, 20: 1}, share) for share in SHARES.values()]
    assert (chat["topic"], chat["latency"]["p50_s"]) == ("chat", None)
    b1, b2 = found["brokers"]
    assert (b1["broker"], b2["broker"], b1["output_bytes_per_s"], b1["cpu_share"]) == ("b1", "b2", 5e6, 0.25)
    assert (b1["output_bytes_per_s_max"], b1["memory_bytes_max"], b1["connections_max"]) == (9e6, 30_000_000, 12)


def strict(kind: pa.DataType) -> pa.DataType:
    return pa.struct([strict_field(field) for field in kind]) if pa.types.is_struct(kind) else kind


def strict_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, strict(field.type), nullable=False)


def test_a_report_reads_files_that_were_merged_beside_others(folder: Folder) -> None:
    """Spark writes NOT NULL columns from a batch, and nullable ones when it has read the files and merged them."""
    latencies = dict.fromkeys(range(BUCKETS), 1)
    for number, published in ((1, 10), (2, 30)):
        table = table_of({(NOW_S - 60, "t"): TopicCounters(published, 1, 1, 1, 1, 1, latencies)})
        nulls_allowed = number == 1
        schema = table.schema if nulls_allowed else pa.schema([strict_field(field) for field in table.schema])
        folder.add(TOPICS, number, pa.Table.from_pylist(table.to_pylist(), schema=schema))
    result = run("--folder", folder.root, "--since", "1h", "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["topics"][0]["published_per_s"] == 4.0


def test_a_report_can_be_of_some_topics_and_brokers_and_goes_back_as_far_as_told(busy: Folder) -> None:
    result = run("--folder", busy.root, "--since", "3h", "--topic", "game.*", "--broker", "b2")
    assert result.exit_code == 0
    assert "game.a" in result.stdout
    assert "chat" not in result.stdout
    assert "b1" not in result.stdout
    found = json.loads(run("--folder", busy.root, "--since", "3h", "--topic", "game.*", "-o", "json").stdout)
    assert [window["published_per_s"] for window in found["windows"]] == [10, 20]


def test_the_chart_has_times_of_the_whole_time_asked_for(busy: Folder) -> None:
    tables = TelemetryTables(busy.root)
    chart = chart_of(summarise(tables, NOW_S - 900, NOW_S))
    tables.close()
    assert chart.x_is_time
    published = chart.panels[1].lines[0]
    assert (published.x[0], published.x[-1]) == (NOW_S - 900, NOW_S)
    assert [(x, y) for x, y in zip(published.x, published.y, strict=True) if y] == [(NOW_S - 60, 20.0)]
    assert published.dotted_points, "one window alone makes no line"


def test_a_report_is_drawn(busy: Folder, tmp_path: Path) -> None:
    picture = tmp_path / "r.png"
    assert run("--folder", busy.root, "--plot", picture).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_nothing_in_this_time_is_said(folder: Folder) -> None:
    result = run("--folder", folder.root, "--plot", folder.root / "empty.png")
    assert result.exit_code == 0
    assert "no reports in this period" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--since", "1x"), "write a number and a unit"), (("--plot", "r.pdf"), "ends in .png")],
)
def test_a_wrong_option_is_a_usage_error(folder: Folder, arguments: tuple[str, ...], said: str) -> None:
    result = run("--folder", folder.root, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_folder_without_a_data_cluster_is_a_usage_error(tmp_path: Path) -> None:
    result = run("--folder", tmp_path / "none")
    assert result.exit_code == 2
    assert "nearcast data" in result.stderr
