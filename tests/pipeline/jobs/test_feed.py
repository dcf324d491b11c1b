"""The query of the feeds over real logs: every message once, whatever moment it is killed at."""

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
from nearcast.pipeline.catalog.feeds import FeedCatalog
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.feeds import Feeds
from nearcast.pipeline.jobs import feed as feed_module
from nearcast.pipeline.jobs.feed import CHECKPOINT, FeedSettings, FeedsJob
from nearcast.pipeline.sources.parts import life_in
from nearcast.pipeline.storage import Warehouse
from nearcast.testing.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Brokers

pytestmark = pytest.mark.live

SCHEMA = "id INT NOT NULL, kind STRING"
TOPICS = ("emergency.1", "emergency.2")  # at two brokers


class Bench:
    """A warehouse with one feed, what is published to it, and what is in it."""

    def __init__(self, folder: Path, brokers: Brokers) -> None:
        self.brokers = brokers
        self.warehouse = Warehouse(folder)
        self.database = Database(self.warehouse.catalog)
        self.datasets = Datasets(self.database, self.warehouse)
        self.feeds = Feeds(self.database, self.datasets, brokers.store_url)
        self.committed: list[int] = []

    def job(self) -> FeedsJob:
        return FeedsJob(self.database, self.datasets, self.brokers.store_url, self._note)

    def _note(self, dataset: str, number: int) -> None:
        self.committed.append(number)

    def fill(self, first: int, last: int) -> None:
        for place, topic in enumerate(TOPICS):
            numbers = range(first + place, last + 1, len(TOPICS))
            self.brokers.publish(topic, *(json.dumps({"id": n, "kind": "fire"}).encode() for n in numbers))

    def run(self, spark: SparkSession, messages: int = 1000) -> None:
        logs = sorted({feed.log for feed in self.feeds.all()})
        query = self.job().start(spark, logs, FeedSettings(batch_messages=messages), once=True)
        query.awaitTermination()

    def ids(self, spark: SparkSession) -> list[int]:
        whole = self.datasets.whole(spark, "reports", self.datasets.position("reports"))
        return sorted(row.id for row in whole.select("id").collect())

    def dead(self, spark: SparkSession) -> list[tuple[str, str]]:
        rows = self.feeds.dead_letters(spark, "reports").collect()
        return sorted((row.kind, row.reason) for row in rows)


@pytest.fixture
def bench(tmp_path: Path, brokers: Brokers) -> Bench:
    for topic, broker in zip(TOPICS, ("b1", "b2"), strict=True):
        brokers.move(topic, broker)
    made = Bench(tmp_path / "warehouse", brokers)
    made.feeds.create("reports", "emergency.*", SCHEMA)
    return made


def test_messages_of_all_brokers_arrive_with_where_and_when(spark: SparkSession, bench: Bench) -> None:
    began_s = time.time()
    bench.fill(1, 4)
    bench.run(spark)
    assert bench.committed == [1]
    found = bench.datasets.whole(spark, "reports", 1).orderBy("id").collect()
    assert [(row.id, row.kind, row._topic) for row in found] == [
        (number, "fire", TOPICS[(number - 1) % 2]) for number in range(1, 5)
    ]
    for row in found:
        assert abs(row._published_at.timestamp() - began_s) < 60
        assert abs(row._ingested_at.timestamp() - began_s) < 60
    assert len(FeedCatalog(bench.database).positions()) == 2


def test_bad_records_are_put_aside_and_counted(spark: SparkSession, bench: Bench) -> None:
    bench.fill(1, 2)
    bench.brokers.publish(TOPICS[0], b"x" * 9000)
    bench.run(spark)
    bench.brokers.publish(TOPICS[1], b'{"kind": "flood"}')
    bench.run(spark)
    assert bench.ids(spark) == [1, 2]
    assert bench.committed == [1]  # the second batch had nothing for the dataset
    assert bench.dead(spark) == [
        ("record", "field id is required, but missing"),
        ("record", "the payload is not json"),
    ]
    progress = bench.feeds.get("reports").progress
    assert (progress.records, progress.dead, progress.lost, progress.commits) == (2, 2, 0, 2)


def fails_before(*_: object, **__: object) -> None:
    raise RuntimeError("killed here")


def fails_after(real: Callable[..., object]) -> Callable[..., object]:
    def run(*arguments: object, **named: object) -> object:
        real(*arguments, **named)
        raise RuntimeError("killed here")

    return run


KILLS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the tasks": lambda patch: patch.setattr(FeedsJob, "_order", fails_before),
    "after the tasks": lambda patch: patch.setattr(FeedsJob, "_commit", fails_before),
    "after the files were checked": lambda patch: patch.setattr(feed_module, "_reached", fails_before),
    "within the transaction": lambda patch: patch.setattr(FeedCatalog, "advance", fails_after(FeedCatalog.advance)),
    "after the commit": lambda patch: patch.setattr(FeedsJob, "_commit", fails_after(FeedsJob._commit)),
}


# A streaming query takes seconds to start, three times in each: one of them runs always.
ALWAYS = ("within the transaction",)


@pytest.mark.parametrize(
    "kill", [pytest.param(kill, marks=[] if kill in ALWAYS else [pytest.mark.slow]) for kill in KILLS]
)
def test_a_batch_that_was_killed_is_there_once(
    spark: SparkSession, bench: Bench, monkeypatch: pytest.MonkeyPatch, kill: str
) -> None:
    bench.fill(1, 20)
    bench.run(spark)
    bench.fill(21, 40)
    bench.brokers.publish(TOPICS[0], b'["bad"]')
    with monkeypatch.context() as patch:
        KILLS[kill](patch)
        with pytest.raises(StreamingQueryException, match="killed here"):
            bench.run(spark)
    bench.fill(41, 60)
    bench.run(spark)
    assert bench.ids(spark) == list(range(1, 61))
    assert bench.dead(spark) == [("record", "the payload is not an object with fields")]
    assert bench.datasets.position("reports") == 3
    assert bench.feeds.get("reports").progress.records == 60
    assert bench.datasets.clean() == 0


def test_a_batch_whose_files_are_not_here_is_not_committed(
    spark: SparkSession, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.fill(1, 4)
    with monkeypatch.context() as patch:
        real = feed_module.read_manifest

        def misplaced(row: bytes) -> object:
            manifest = real(row)
            for outcome in manifest.outcomes:
                storage.remove(Path(outcome.file.path)) if outcome.file else None
            return manifest

        patch.setattr(feed_module, "read_manifest", misplaced)
        with pytest.raises(StreamingQueryException, match="storage that all executors and this process share"):
            bench.run(spark)
    assert bench.datasets.position("reports") == 0
    bench.run(spark)
    assert bench.ids(spark) == [1, 2, 3, 4]


def test_messages_that_left_the_log_unread_are_told(spark: SparkSession, bench: Bench) -> None:
    bench.fill(1, 4)
    bench.run(spark)
    bench.fill(5, 20)
    (stream,) = [stream for stream in FeedCatalog(bench.database).positions() if ":b1@" in stream]
    with bench.brokers.server("b1") as server:
        server.ask("XTRIM", stream, "MAXLEN", 3)
    bench.run(spark)
    assert bench.ids(spark) == [1, 2, 3, 4, *range(6, 15, 2), 15, 16, 17, 18, 19, 20]
    told = f"5 messages of log {bench.feeds.get('reports').log} were gone from {life_in(stream)} before they were read"
    assert bench.dead(spark) == [("loss", told)]
    assert bench.feeds.get("reports").progress.lost == 5


@pytest.mark.slow
def test_a_lost_checkpoint_costs_nothing(spark: SparkSession, bench: Bench) -> None:
    bench.fill(1, 5)
    bench.run(spark)
    storage.remove(bench.warehouse.checkpoint(CHECKPOINT))
    bench.fill(6, 9)
    bench.run(spark)
    bench.fill(10, 12)
    bench.run(spark)
    assert bench.ids(spark) == list(range(1, 13))
    assert bench.datasets.position("reports") == 3


@pytest.mark.cluster
def test_many_batches_have_every_message_once(spark: SparkSession, bench: Bench) -> None:
    bench.fill(1, 90)
    bench.run(spark, messages=25)
    assert bench.ids(spark) == list(range(1, 91))
    assert bench.committed == [1, 2, 3, 4]


# A data cluster in small: the feeds of a warehouse until it is killed.
PROGRAM = """
import sys, time
from pathlib import Path
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.feeds import Feeds
from nearcast.pipeline.sources.parts import life_in
from nearcast.pipeline.storage import Warehouse
from nearcast.pipeline.jobs.feed import FeedSettings
from nearcast.pipeline.spark import SessionSettings, open_session

folder, url = sys.argv[1:]
warehouse = Warehouse(Path(folder))
database = Database(warehouse.catalog)
settings = FeedSettings(period_s=0.05, batch_messages=100)
with open_session(SessionSettings(master="local[2]", shuffle_partitions=1)) as spark:
    Feeds(database, Datasets(database, warehouse), url, settings=settings).open(spark)
    time.sleep(600)
"""


@pytest.mark.timeout(500)
@pytest.mark.slow
def test_a_killed_process_loses_and_repeats_nothing(spark: SparkSession, bench: Bench) -> None:
    command = [sys.executable, "-c", PROGRAM, str(bench.warehouse.root), bench.brokers.store_url]
    process = subprocess.Popen(command, start_new_session=True)
    last = 0
    try:

        def three_commits_of_a_steady_flow() -> bool:
            nonlocal last
            assert process.poll() is None
            progress = bench.feeds.get("reports").progress
            if last < progress.records + 600:
                bench.fill(last + 1, last + 150)
                last += 150
            return progress.commits >= 3

        wait_until(three_commits_of_a_steady_flow, within_s=300.0)
        time.sleep(random.Random(os.getpid()).uniform(0.0, 0.5))  # killed at any moment of its work
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # Java too
        process.wait()
    bench.fill(last + 1, last + 150)
    last += 150
    bench.datasets.clean()
    bench.run(spark)
    assert bench.ids(spark) == list(range(1, last + 1))
    assert bench.dead(spark) == []
