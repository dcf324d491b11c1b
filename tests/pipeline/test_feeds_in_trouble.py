"""A feed while topics move, a broker leaves and a server is killed: what is there, once, and what is missing, told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nearcast
from nearcast.core.model.placement import Mode
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.feeds import Feeds
from nearcast.pipeline.jobs.feed import FeedSettings
from nearcast.pipeline.storage import Warehouse
from nearcast.testing.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Brokers

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

TOPICS = [f"trouble.{number}" for number in range(6)]
MOVES = 20


class Reading:
    """A feed of all topics, with its query running."""

    def __init__(self, folder: Path, spark: SparkSession, store_url: str) -> None:
        warehouse = Warehouse(folder)
        self._spark = spark
        self._datasets = Datasets(Database(warehouse.catalog), warehouse)
        self.feeds = Feeds(self._datasets._database, self._datasets, store_url, settings=FeedSettings(period_s=0.1))
        self.feeds.create("reports", "trouble.*", "id INT")
        self.feeds.open(spark)

    @property
    def records(self) -> int:
        return self.feeds.get("reports").progress.records

    def ids(self) -> list[int]:
        whole = self._datasets.whole(self._spark, "reports", self._datasets.position("reports"))
        return sorted(row.id for row in whole.collect())

    def losses(self) -> list[str]:
        letters = self.feeds.dead_letters(self._spark, "reports").collect()
        return [row.reason for row in letters if row.kind == "loss"]


class Publishing:
    """Numbered messages, in turn on all topics, and which of them were acknowledged."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._ended = asyncio.Event()
        self.acknowledged: list[int] = []
        self.failed: list[int] = []

    async def run(self) -> None:
        async with await nearcast.connect(*self._brokers.cluster.urls.values()) as client:
            number = 0
            while not self._ended.is_set():
                await asyncio.gather(*(self._one(client, number + place) for place in range(len(TOPICS))))
                number += len(TOPICS)
                await asyncio.sleep(0.005)  # paces the load

    async def _one(self, client: nearcast.Client, number: int) -> None:
        try:
            await client.publish(TOPICS[number % len(TOPICS)], json.dumps({"id": number}))
            self.acknowledged.append(number)
        except nearcast.NearcastError:
            self.failed.append(number)

    def end(self) -> None:
        self._ended.set()


def test_moves_and_a_broker_that_leaves_lose_and_repeat_nothing(
    spark: SparkSession, own_brokers: Brokers, tmp_path: Path
) -> None:
    cluster, loop = own_brokers.cluster, own_brokers.loop
    reading = Reading(tmp_path, spark, cluster.store_url)

    async def scenario() -> list[int]:
        await cluster.add_broker("b3")
        console = await cluster.console()
        publishing = Publishing(own_brokers)
        task = asyncio.create_task(publishing.run())
        for number in range(MOVES):
            await console.move(TOPICS[number % len(TOPICS)], Mode.SINGLE, (f"b{number % 3 + 1}",))
        await asyncio.to_thread(wait_until, lambda: reading.records > 0, 60.0)
        await console.drain("b2", timeout_s=60.0)  # it waits until the feed has read what is there
        publishing.end()
        await task
        assert publishing.failed == []
        return publishing.acknowledged

    published = loop.run(scenario(), within_s=120.0)
    wait_until(lambda: reading.records >= len(published), within_s=60.0)
    reading.feeds.stop()
    assert reading.ids() == sorted(published)
    assert reading.losses() == []


def test_what_is_lost_with_a_server_is_told(spark: SparkSession, own_brokers: Brokers, tmp_path: Path) -> None:
    """With one copy of everything. What was read before stays, and what is published afterwards arrives."""
    cluster, loop = own_brokers.cluster, own_brokers.loop
    reading = Reading(tmp_path, spark, cluster.store_url)
    own_brokers.move(TOPICS[0], "b1")
    own_brokers.move(TOPICS[1], "b2")
    own_brokers.publish(TOPICS[0], *(json.dumps({"id": number}).encode() for number in range(20)))
    own_brokers.publish(TOPICS[1], *(json.dumps({"id": number}).encode() for number in range(20, 40)))
    wait_until(lambda: reading.records == 40, within_s=60.0)
    loop.run(cluster.kill_server("b2"))
    wait_until(lambda: reading.feeds.get("reports").progress.parts_lost == 1, within_s=60.0)
    own_brokers.publish(TOPICS[1], *(json.dumps({"id": number}).encode() for number in range(40, 50)))
    wait_until(lambda: reading.records == 50, within_s=60.0)
    reading.feeds.stop()
    assert reading.ids() == list(range(50))
    (told,) = reading.losses()
    assert "is lost with its server: 20 messages of it were read" in told
