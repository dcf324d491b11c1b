"""Feeds made, changed, dropped and kept running."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from nearcast.errors import ClusterError, InvalidTopic, UsageError
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.feeds import Feeds
from nearcast.pipeline.jobs.feed import FeedSettings
from nearcast.pipeline.logs import ClusterLogs
from nearcast.pipeline.storage import Warehouse
from nearcast.testing.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Brokers

pytestmark = pytest.mark.live

QUICK = FeedSettings(period_s=0.1)


@pytest.fixture
def datasets(tmp_path: Path) -> Datasets:
    warehouse = Warehouse(tmp_path)
    return Datasets(Database(warehouse.catalog), warehouse)


@pytest.fixture
def feeds(datasets: Datasets, brokers: Brokers) -> Iterator[Feeds]:
    made = Feeds(datasets._database, datasets, brokers.store_url, settings=QUICK)
    yield made
    made.stop()
    for feed in made.all():
        made.drop(feed.name)


def packed(*records: object) -> list[bytes]:
    return [msgspec.msgpack.encode(record) for record in records]


def logs_of(brokers: Brokers) -> dict[str, tuple[str, ...]]:
    return {log.name: log.topics for log in ClusterLogs(brokers.store_url).all()}


def test_a_feed_has_a_log_which_is_its_own_if_no_other_covers_it(
    feeds: Feeds, datasets: Datasets, brokers: Brokers
) -> None:
    own = feeds.create("own", "own.*", "id INT")
    assert logs_of(brokers)["feed-own"] == ("own.*",)
    assert feeds.create("own", "own.*", "id INT") == own
    within = feeds.create("within", "own.part.?", "user_id STRING", format="msgpack", key="user_id")
    assert within.log == own.log
    brokers.create_log("wide", "wide.*")
    wide = feeds.create("wide", "wide.a", "id INT")
    assert wide.log.startswith("wide@")
    feeds.drop("wide")
    feeds.drop("own")
    assert "feed-own" in logs_of(brokers), "another feed reads it"
    feeds.drop("within")
    assert "feed-own" not in logs_of(brokers)
    assert "wide" in logs_of(brokers), "it was not made for the feed"
    assert datasets.names() == ["own", "wide", "within"]  # the records stay
    assert feeds.all() == []


def test_without_a_cluster_nothing_is_made(datasets: Datasets, server_url: str) -> None:
    lonely = Feeds(datasets._database, datasets, server_url)
    with pytest.raises(ClusterError, match="the store has no cluster yet"):
        lonely.create("f", "t", "id INT")
    assert (lonely.all(), datasets.names()) == ([], [])


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
    spark: SparkSession, feeds: Feeds, datasets: Datasets, brokers: Brokers
) -> None:
    feeds.create("users", "user.*", "user_id STRING, n INT", format="msgpack", key="user_id")
    feeds.open(spark)
    brokers.publish("user.1", *packed({"user_id": "a", "n": 1}, {"user_id": "b", "n": 1}, {"user_id": "a", "n": 2}))
    wait_until(lambda: feeds.get("users").progress.records == 3)
    whole = datasets.whole(spark, "users", datasets.position("users"))
    assert sorted((row.user_id, row.n) for row in whole.collect()) == [("a", 2), ("b", 1)]

    feeds.alter("users", "speed DOUBLE")
    brokers.publish("user.1", *packed({"user_id": "b", "n": 5, "speed": 1.5}))
    wait_until(lambda: feeds.get("users").progress.records == 4)
    whole = datasets.whole(spark, "users", datasets.position("users"))
    assert sorted((row.user_id, row.n, row.speed) for row in whole.collect()) == [("a", 2, None), ("b", 5, 1.5)]

    for query in spark.streams.active:
        query.stop()
    brokers.publish("user.1", *packed({"user_id": "c", "n": 1}))
    wait_until(lambda: feeds.get("users").progress.records == 5)
    feeds.stop()
    assert not spark.streams.active


@pytest.mark.timeout(240)
def test_nothing_published_after_a_feed_was_made_is_missed_and_nothing_before_it_is_read(
    spark: SparkSession, feeds: Feeds, datasets: Datasets, brokers: Brokers
) -> None:
    """With a log that was there, and with one made for the feed while the query runs."""

    def publish(topic: str, number: int) -> None:
        brokers.publish(topic, json.dumps({"id": number}).encode())

    def ids(name: str) -> list[int]:
        return sorted(row.id for row in datasets.whole(spark, name, datasets.position(name)).collect())

    brokers.create_log("there", "there.*")
    publish("there.a", 1)
    feeds.create("there", "there.*", "id INT")
    feeds.open(spark)
    publish("there.a", 2)
    wait_until(lambda: feeds.get("there").progress.records == 1)
    publish("new.a", 3)
    feeds.create("new", "new.*", "id INT")
    publish("new.a", 4)
    feeds.create("later", "there.a", "id INT")
    publish("there.a", 5)
    wait_until(lambda: [feeds.get(name).progress.records for name in ("there", "new", "later")] == [2, 1, 1])
    assert (ids("there"), ids("new"), ids("later")) == ([2, 5], [4], [5])
    assert feeds.problem == ""


@pytest.mark.timeout(240)
def test_a_record_that_is_read_late_does_not_replace_a_newer_one(
    spark: SparkSession, feeds: Feeds, datasets: Datasets, brokers: Brokers
) -> None:
    """A topic that moves leaves a part behind. Here that one is read after the next, because of a small limit."""
    feeds.create("late", "late.*", "k STRING, n INT", key="k")
    brokers.move("late.a", "b2")
    brokers.publish("late.a", *(json.dumps({"k": "x", "n": n}).encode() for n in range(10)))
    brokers.move("late.a", "b1")
    brokers.publish("late.a", json.dumps({"k": "x", "n": 10}).encode())
    settings = FeedSettings(batch_messages=4)
    feeds._job.start(spark, [feeds.get("late").log], settings, once=True).awaitTermination()
    assert datasets.position("late") > 1
    whole = datasets.whole(spark, "late", datasets.position("late"))
    assert [(row.k, row.n) for row in whole.collect()] == [("x", 10)]
