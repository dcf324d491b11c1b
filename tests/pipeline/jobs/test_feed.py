"""A feed's query over a real server: every record once, whatever moment it is killed at."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from nearcast.pipeline import storage
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.datasets import FeedCatalog
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.feeds import Feeds
from nearcast.pipeline.jobs import feed as feed_module
from nearcast.pipeline.jobs.feed import FeedJob, FeedSettings
from nearcast.pipeline.sources.server import RespConnection
from nearcast.pipeline.storage import Warehouse
from nearcast.testing.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.live

STREAM = "nc:feed:reports"
SCHEMA = "id INT NOT NULL, kind STRING"


class Bench:
    """A warehouse with one feed, and what is in it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.warehouse = Warehouse(folder)
        self.database = Database(self.warehouse.catalog)
        self.datasets = Datasets(self.database, self.warehouse)
        self.feeds = Feeds(self.database, self.datasets, url)
        self.committed: list[int] = []
        self._url = url

    def job(self, committed: Callable[[str, int], None] | None = None) -> FeedJob:
        return FeedJob("reports", self.database, self.datasets, self._url, committed or self._note)

    def _note(self, dataset: str, number: int) -> None:
        self.committed.append(number)

    def run(self, spark: SparkSession, job: FeedJob | None = None, records: int = 1000) -> None:
        query = (job or self.job()).start(spark, FeedSettings(batch_records=records), once=True)
        query.awaitTermination()

    def ids(self, spark: SparkSession) -> list[int]:
        whole = self.datasets.whole(spark, "reports", self.datasets.position("reports"))
        return sorted(row.id for row in whole.select("id").collect())

    def dead(self, spark: SparkSession) -> list[tuple[str, str]]:
        rows = self.feeds.dead_letters(spark, "reports").collect()
        return sorted((row.kind, row.reason) for row in rows)


@pytest.fixture
def bench(tmp_path: Path, server_url: str, valkey: RespConnection) -> Bench:
    made = Bench(tmp_path / "warehouse", server_url)
    made.feeds.create("reports", "emergency.*", SCHEMA)
    return made


def fill(valkey: RespConnection, first: int, last: int, **fields: str) -> None:
    valkey.ask_all(
        [("XADD", STREAM, "*", *_fields({"id": i, "kind": "fire"}, **fields)) for i in range(first, last + 1)]
    )


def _fields(record: object, **more: str) -> list[str]:
    fields = {"topic": "emergency.1", "publisher": "7", "sequence": "1", "published_at": "12.5"}
    return [part for pair in (fields | {"payload": json.dumps(record)} | more).items() for part in pair]


def test_records_arrive_with_where_and_when(spark: SparkSession, bench: Bench, valkey: RespConnection) -> None:
    fill(valkey, 1, 3)
    bench.run(spark)
    assert bench.committed == [1]
    (row, *_) = (
        bench.datasets.whole(spark, "reports", 1)
        .orderBy("id")
        .selectExpr("*", "unix_millis(_published_at) ms")
        .collect()
    )
    assert (row.id, row.kind, row._topic, row.ms) == (1, "fire", "emergency.1", 12_500)
    assert row._ingested_at is not None


def test_bad_records_and_gaps_are_put_aside_and_counted(
    spark: SparkSession, bench: Bench, valkey: RespConnection
) -> None:
    fill(valkey, 1, 2)
    valkey.ask("XADD", STREAM, "*", *_fields(None, payload="x" * 9000))
    valkey.ask("XADD", STREAM, "*", "kind", "gap", "topic", "emergency.2", "text", "messages 3 to 5 are missing")
    bench.run(spark)
    valkey.ask("XADD", STREAM, "*", *_fields({"kind": "flood"}))
    bench.run(spark)
    assert bench.ids(spark) == [1, 2]
    assert bench.committed == [1]  # the second batch had nothing for the dataset
    assert bench.dead(spark) == [
        ("gap", "messages 3 to 5 are missing"),
        ("record", "field id is required, but missing"),
        ("record", "the payload is not json"),
    ]
    longest = max(len(row.payload or b"") for row in bench.feeds.dead_letters(spark, "reports").collect())
    assert longest == 4096
    progress = bench.feeds.get("reports").progress
    assert (progress.records, progress.dead, progress.gaps, progress.lost) == (2, 2, 1, 0)


def fails_before(*_: object, **__: object) -> None:
    raise RuntimeError("killed here")


def fails_after(real: Callable[..., object]) -> Callable[..., object]:
    def run(*arguments: object, **named: object) -> object:
        real(*arguments, **named)
        raise RuntimeError("killed here")

    return run


KILLS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the records are written": lambda patch: patch.setattr(Datasets, "write", fails_before),
    "after the records are written": lambda patch: patch.setattr(Datasets, "write", fails_after(Datasets.write)),
    "after the dead letters are written": lambda patch: patch.setattr(feed_module, "_progress", fails_before),
    "within the transaction": lambda patch: patch.setattr(FeedCatalog, "advance", fails_after(FeedCatalog.advance)),
    "after the commit": lambda patch: patch.setattr(FeedJob, "_trim", fails_before),
    "after the trim": lambda patch: patch.setattr(FeedJob, "_trim", fails_after(FeedJob._trim)),
}


# A streaming query takes seconds to start, three times in each: one of them runs always.
ALWAYS = ("within the transaction",)


@pytest.mark.parametrize(
    "kill", [pytest.param(kill, marks=[] if kill in ALWAYS else [pytest.mark.slow]) for kill in KILLS]
)
def test_a_batch_that_was_killed_is_there_once(
    spark: SparkSession, bench: Bench, valkey: RespConnection, monkeypatch: pytest.MonkeyPatch, kill: str
) -> None:
    fill(valkey, 1, 20)
    bench.run(spark)
    fill(valkey, 21, 40)
    valkey.ask("XADD", STREAM, "*", *_fields(["bad"]))
    with monkeypatch.context() as patch:
        KILLS[kill](patch)
        with pytest.raises(StreamingQueryException, match="killed here"):
            bench.run(spark)
    fill(valkey, 41, 60)
    bench.run(spark)
    assert bench.ids(spark) == list(range(1, 61))
    assert bench.dead(spark) == [("record", "the payload is not an object with fields")]
    assert bench.datasets.position("reports") == 3
    assert bench.feeds.get("reports").progress.records == 60
    assert bench.datasets.clean() == 0


def test_the_stream_is_trimmed_but_for_the_last_batch(
    spark: SparkSession, bench: Bench, valkey: RespConnection
) -> None:
    fill(valkey, 1, 30)
    bench.run(spark, records=10)
    length = valkey.ask("XLEN", STREAM)
    assert length == 11  # the batch that a restart may read again, and the record before it
    fill(valkey, 31, 35)
    bench.run(spark)
    assert bench.ids(spark) == list(range(1, 36))
    assert bench.feeds.get("reports").progress.lost == 0


def test_records_that_left_the_stream_unread_are_told(
    spark: SparkSession, bench: Bench, valkey: RespConnection
) -> None:
    fill(valkey, 1, 5)
    bench.run(spark)
    fill(valkey, 6, 20)
    valkey.ask("XTRIM", STREAM, "MAXLEN", 3)
    bench.run(spark)
    assert bench.ids(spark) == [1, 2, 3, 4, 5, 18, 19, 20]
    told = "12 records were dropped from the stream before they were read: it was full"
    assert bench.dead(spark) == [("loss", told)]
    assert bench.feeds.get("reports").progress.lost == 12


def test_a_stream_that_was_lost_is_told_and_not_counted_as_nothing(
    spark: SparkSession, bench: Bench, valkey: RespConnection
) -> None:
    fill(valkey, 1, 5)
    bench.run(spark)
    valkey.ask("DEL", STREAM)
    fill(valkey, 8, 9)
    bench.run(spark)
    assert bench.ids(spark) == [1, 2, 3, 4, 5, 8, 9]
    told = "the stream was deleted and created again: records that were not read are gone"
    assert bench.dead(spark) == [("loss", told)]
    progress = bench.feeds.get("reports").progress
    assert (progress.lost, progress.remade) == (0, 1)


@pytest.mark.slow
def test_a_lost_checkpoint_costs_nothing(spark: SparkSession, bench: Bench, valkey: RespConnection) -> None:
    fill(valkey, 1, 5)
    bench.run(spark)
    storage.remove(bench.warehouse.checkpoint("reports"))
    fill(valkey, 6, 9)
    bench.run(spark)
    fill(valkey, 10, 12)
    bench.run(spark)
    assert bench.ids(spark) == list(range(1, 13))
    assert bench.datasets.position("reports") == 3


# A data cluster in small: the feeds of a warehouse until it is killed.
PROGRAM = """
import sys, time
from pathlib import Path
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.feeds import Feeds
from nearcast.pipeline.storage import Warehouse
from nearcast.pipeline.jobs.feed import FeedSettings
from nearcast.pipeline.spark import SessionSettings, open_session

folder, url = sys.argv[1:]
warehouse = Warehouse(Path(folder))
database = Database(warehouse.catalog)
settings = FeedSettings(period_s=0.05, batch_records=100)
with open_session(SessionSettings(master="local[2]", shuffle_partitions=1)) as spark:
    Feeds(database, Datasets(database, warehouse), url, settings=settings).open(spark)
    time.sleep(600)
"""


@pytest.mark.timeout(500)
@pytest.mark.slow
def test_a_killed_process_loses_and_repeats_nothing(
    spark: SparkSession, bench: Bench, server_url: str, valkey: RespConnection
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(bench.warehouse.root), server_url]
    process = subprocess.Popen(command, start_new_session=True)
    last = 0
    try:

        def three_commits_of_a_steady_flow() -> bool:
            nonlocal last
            assert process.poll() is None
            progress = bench.feeds.get("reports").progress
            if last < progress.records + 600:
                fill(valkey, last + 1, last + 150)
                last += 150
            return progress.commits >= 3

        wait_until(three_commits_of_a_steady_flow, within_s=300.0)
        time.sleep(random.Random(os.getpid()).uniform(0.0, 0.5))  # killed at any moment of its work
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # Java too
        process.wait()
    fill(valkey, last + 1, last + 150)
    last += 150
    bench.datasets.clean()
    bench.run(spark)
    assert bench.ids(spark) == list(range(1, last + 1))
    assert bench.dead(spark) == []
