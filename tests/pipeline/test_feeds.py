"""Feeds made, changed, dropped and kept running."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from nearcast.errors import InvalidTopic, UsageError
from nearcast.pipeline import feeds as feeds_module
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.feeds import Feeds
from nearcast.pipeline.jobs.feed import FeedSettings
from nearcast.pipeline.sources.server import RespConnection
from nearcast.pipeline.storage import Warehouse
from nearcast.testing.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.live

QUICK = FeedSettings(period_s=0.1)


@pytest.fixture
def datasets(tmp_path: Path) -> Datasets:
    warehouse = Warehouse(tmp_path)
    return Datasets(Database(warehouse.catalog), warehouse)


@pytest.fixture
def feeds(datasets: Datasets, server_url: str, valkey: RespConnection) -> Iterator[Feeds]:
    made = Feeds(datasets._database, datasets, server_url, settings=QUICK)
    yield made
    made.stop()


def send(valkey: RespConnection, feed: str, *records: object, packed: bool = False) -> None:
    for record in records:
        payload = msgspec.msgpack.encode(record) if packed else json.dumps(record)
        valkey.ask("XADD", f"nc:feed:{feed}", "*", "topic", "t", "payload", payload)


def listed(valkey: RespConnection) -> dict[str, object]:
    return {name.decode(): json.loads(value) for name, value in valkey.ask("HGETALL", "nc:feeds").items()}


def test_collectors_are_told_what_there_is(feeds: Feeds, datasets: Datasets, valkey: RespConnection) -> None:
    feeds.create("reports", "emergency.*", "id INT")
    feeds.create("users", "user.*", "user_id STRING, lat DOUBLE", format="msgpack", key="user_id")
    feeds.create("users", "user.*", "user_id STRING, lat DOUBLE", format="msgpack", key="user_id")
    assert listed(valkey)["reports"] == {"topic": "emergency.*", "stream": "nc:feed:reports"}
    valkey.ask("HSET", "nc:feeds", "unknown", "{}")
    valkey.ask("XADD", "nc:feed:reports", "*", "a", "b")
    feeds.drop("reports")
    assert list(listed(valkey)) == ["users"]
    assert valkey.ask("EXISTS", "nc:feed:reports") == 0
    assert datasets.names() == ["reports", "users"]  # the records stay
    assert [feed.name for feed in feeds.all()] == ["users"]
    assert feeds.until_collected("users", 0.2) is False


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("Reports", "t", "a INT"), UsageError, "lower-case letters"),
        (("reports", "nc:x", "a INT"), InvalidTopic, "reserved"),
        (("reports", "t", "a INT", "xml"), UsageError, "unknown format 'xml': use one of json, msgpack"),
        (("reports", "t", "a INT", "json", "b"), UsageError, "key 'b' is not a column"),
        (("reports", "t", "a ARRAY<MAP<INT, INT>>"), UsageError, "use MAP<STRING"),
        (("users", "other", "a INT"), UsageError, "feed users reads u as json: drop it first"),
        (("users", "u", "a STRING"), UsageError, "a different dataset users exists"),
    ],
)
def test_a_wrong_feed_is_refused(feeds: Feeds, arguments: tuple[str, ...], error: type[Exception], said: str) -> None:
    feeds.create("users", "u", "a INT")
    with pytest.raises(error, match=said):
        feeds.create(*arguments)
    assert [feed.name for feed in feeds.all()] == ["users"]


@pytest.mark.timeout(240)
def test_feeds_run_change_and_are_revived(
    spark: SparkSession, feeds: Feeds, datasets: Datasets, valkey: RespConnection
) -> None:
    feeds.create("users", "user.*", "user_id STRING, n INT", format="msgpack", key="user_id")
    feeds.open(spark)
    send(valkey, "users", {"user_id": "a", "n": 1}, {"user_id": "b", "n": 1}, {"user_id": "a", "n": 2}, packed=True)
    wait_until(lambda: feeds.get("users").progress.records == 3)
    whole = datasets.whole(spark, "users", datasets.position("users"))
    assert sorted((row.user_id, row.n) for row in whole.collect()) == [("a", 2), ("b", 1)]

    feeds.alter("users", "speed DOUBLE")
    send(valkey, "users", {"user_id": "b", "n": 5, "speed": 1.5}, packed=True)
    wait_until(lambda: feeds.get("users").progress.records == 4)
    whole = datasets.whole(spark, "users", datasets.position("users"))
    assert sorted((row.user_id, row.n, row.speed) for row in whole.collect()) == [("a", 2, None), ("b", 5, 1.5)]

    for query in spark.streams.active:
        query.stop()
    send(valkey, "users", {"user_id": "c", "n": 1}, packed=True)
    wait_until(lambda: feeds.get("users").progress.records == 5)
    feeds.stop()
    assert not spark.streams.active


def test_a_feed_that_nobody_collects_is_told_once_and_no_longer_when_somebody_does(
    feeds: Feeds, valkey: RespConnection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feeds_module, "UNCOLLECTED_S", 0.0)
    feeds.create("f", "t", "n INT")
    for _ in range(2):
        feeds._look_for_collectors()
    assert feeds.uncollected == {"f"}
    assert caplog.text.count("no agent collects it") == 1
    monkeypatch.setattr(feeds_module, "UNCOLLECTED_S", 60.0)
    valkey.ask("SET", "nc:feed:f:lease", "b1:00")
    feeds._look_for_collectors()
    assert (feeds.uncollected, feeds.collectors()) == (set(), {"f": "b1"})
