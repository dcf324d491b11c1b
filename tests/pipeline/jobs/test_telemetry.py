"""The telemetry job in real Spark over a real server: exact with late and repeated reports, restarts and kills."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from nearcast.core.model.counters import TopicCounters
from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.membership import BrokerInfo, Membership, encode_membership
from nearcast.core.model.names import ENTRIES_KEY, REPORT_STREAM
from nearcast.core.model.reports import Report
from nearcast.core.wire.bus import encode
from nearcast.pipeline import storage
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.datasets import BROKERS, TOPICS, TelemetryCatalog
from nearcast.pipeline.jobs import telemetry
from nearcast.pipeline.jobs.telemetry import LATE_S, SUMMED, TelemetryJob, TelemetrySettings
from nearcast.pipeline.sources.server import RespConnection
from nearcast.pipeline.telemetry import BUCKET_NAMES, TelemetryTables
from nearcast.testing.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.live

NOON_S = 1_700_000_000  # a multiple of ten


def report(broker: str, at_s: float, topics: dict[str, TopicCounters], **figures: Any) -> Report:
    usual = {"seconds": 1.0, "output_bytes_per_s": 1000.0, "input_bytes_per_s": 500.0, "cpu_share": 0.25}
    sized = {"connections": 7, "memory_bytes": 1 << 20, "counted_bytes_per_s": 0.0}
    return Report(broker=broker, at_s=at_s, topics=topics, **(usual | sized | figures))


def append(valkey: RespConnection, found: Report, sequence: str) -> None:
    at_ms = int(found.at_s * 1000)
    fields = ("broker", found.broker, "at", at_ms, "sequence", sequence, "report", encode(found))
    valkey.ask("XADD", REPORT_STREAM, "*", *fields)


class Cluster:
    """A warehouse with its catalogue, and jobs over it that can be killed."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark, self.url = spark, url
        self.warehouse = storage.Warehouse(folder)
        self.database = Database(self.warehouse.catalog)
        self.catalog = TelemetryCatalog(self.database)
        self.settings = TelemetrySettings(keep_s=1e9)

    def run(self) -> None:
        """A new job, as after a restart, that reads what is there and ends."""
        self.job().start(once=True).awaitTermination()

    def job(self) -> TelemetryJob:
        return TelemetryJob(self.spark, self.url, self.warehouse, self.database, self.settings)

    def table(self, name: str = TOPICS) -> dict[tuple[int, str], dict[str, int]]:
        """As a reader sees it: by window and topic or broker."""
        tables = TelemetryTables(self.warehouse.root)
        rows = (tables.topics(0) if name == TOPICS else tables.brokers(0)).to_pylist()
        tables.close()
        return {(row["window_s"], row.get("topic") or row["broker"]): row for row in rows}

    def published(self) -> dict[tuple[int, str], int]:
        return {key: row["published"] for key, row in self.table().items()}


@pytest.fixture
def cluster(spark: SparkSession, server_url: str, valkey: RespConnection, tmp_path: Path) -> Cluster:
    """Its store's server is also that of its only broker."""
    membership = Membership(version=1, term=1, brokers={"b1": BrokerInfo(server_url)})
    valkey.ask("HSET", ENTRIES_KEY, MEMBERSHIP_KEY, encode_membership(membership))
    return Cluster(spark, server_url, tmp_path)


def one(published: int, **more: Any) -> dict[str, TopicCounters]:
    return {"t": TopicCounters(published=published, **more)}


def test_reports_become_sums_per_window_topic_and_broker(cluster: Cluster, valkey: RespConnection) -> None:
    counted = TopicCounters(3, 300, 6, 600, 1, 2, {0: 1, 39: 5})
    append(valkey, report("b1", NOON_S + 0.5, {"t": counted, "größe": TopicCounters(received=4)}), "a-1")
    append(valkey, report("b2", NOON_S + 9.999, {"t": counted.merged(counted)}, output_bytes_per_s=4000.4), "c-1")
    append(valkey, report("b1", NOON_S + 10, {}, seconds=2.0, memory_bytes=5), "a-2")
    cluster.run()
    topics = cluster.table()
    assert topics.keys() == {(NOON_S, "t"), (NOON_S, "größe")}
    merged = topics[NOON_S, "t"]
    assert [merged[name] for name in SUMMED] == [9, 900, 18, 1800, 3, 6]
    assert {name: merged[name] for name in BUCKET_NAMES if merged[name]} == {"bucket_0": 3, "bucket_39": 15}
    brokers = cluster.table(BROKERS)
    assert brokers.keys() == {(NOON_S, "b1"), (NOON_S, "b2"), (NOON_S + 10, "b1")}
    assert brokers[NOON_S, "b2"]["output_bytes"] == 4000
    later = brokers[NOON_S + 10, "b1"]
    assert (later["measured_ms"], later["output_bytes"], later["input_bytes"]) == (2000, 2000, 1000)
    assert (later["cpu_us"], later["memory_bytes_max"], later["connections_max"]) == (500_000, 5, 7)


def test_repeated_reports_count_once_and_late_ones_are_added(cluster: Cluster, valkey: RespConnection) -> None:
    append(valkey, report("b1", NOON_S + 100, one(1)), "a-1")
    append(valkey, report("b1", NOON_S + 100, one(1)), "a-1")  # in the same batch
    append(valkey, report("b2", NOON_S + 100, one(10)), "a-1")  # another broker's
    cluster.run()
    append(valkey, report("b1", NOON_S + 100, one(1)), "a-1")  # in a later batch, after a restart
    append(valkey, report("b1", NOON_S + 105, one(100)), "a-2")  # late: its window was written already
    append(valkey, report("b1", NOON_S + 100 - LATE_S / 2, one(1000)), "a-3")
    cluster.run()
    assert cluster.published() == {(NOON_S + 100, "t"): 111, (NOON_S + 100 - LATE_S // 2, "t"): 1000}
    cluster.settings = TelemetrySettings(batch_records=1, keep_s=1e9)
    append(valkey, report("b1", NOON_S + 10 * LATE_S, one(5)), "a-4")
    append(valkey, report("b1", NOON_S + 10 * LATE_S, one(6)), "a-5")
    append(valkey, report("b1", NOON_S, one(7)), "a-6")  # too late
    cluster.run()
    assert sum(cluster.published().values()) == 1122


@pytest.mark.slow
def test_a_clock_that_is_ahead_does_not_make_others_late(cluster: Cluster, valkey: RespConnection) -> None:
    append(valkey, report("b1", NOON_S, one(1)), "a-1")
    append(valkey, report("b9", 4e9, one(2)), "z-1")
    cluster.run()
    (seconds, _) = valkey.ask("TIME")
    append(valkey, report("b1", int(seconds) - 1, one(4)), "a-2")
    cluster.run()
    found = cluster.published()
    assert sum(found.values()) == 7, "none was late"
    assert max(window_s for window_s, _ in found) <= int(seconds) + 60


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["written", "committed"])
def test_a_kill_in_a_batch_neither_loses_nor_repeats(
    cluster: Cluster, valkey: RespConnection, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    append(valkey, report("b1", NOON_S, one(1)), "a-1")
    cluster.run()
    append(valkey, report("b1", NOON_S + 1, one(10)), "a-2")
    append(valkey, report("b1", NOON_S, one(1)), "a-1")
    commit = TelemetryCatalog.commit

    def killed(catalog: TelemetryCatalog, *arguments: Any) -> None:
        if moment == "committed":
            commit(catalog, *arguments)
        raise RuntimeError("killed")

    monkeypatch.setattr(TelemetryCatalog, "commit", killed)
    with pytest.raises(StreamingQueryException, match="killed"):
        cluster.run()
    monkeypatch.setattr(TelemetryCatalog, "commit", commit)
    append(valkey, report("b1", NOON_S + 20, one(100)), "a-3")
    cluster.run()
    assert cluster.published() == {(NOON_S, "t"): 11, (NOON_S + 20, "t"): 100}
    assert cluster.catalog.progress().reports == 3
    folders = {path.name for path in (cluster.warehouse.root / "telemetry" / "topics-0").iterdir()}
    assert len(folders) == len(cluster.catalog.files(TOPICS))


def test_records_that_are_no_reports_are_counted_and_stop_nothing(cluster: Cluster, valkey: RespConnection) -> None:
    good = report("b1", NOON_S, one(1))
    for fields in (
        ("n", "v"),
        ("broker", "b1", "at", "x", "sequence", "a-1", "report", "{"),
        ("broker", "b1", "at", 2**62, "sequence", "a-7", "report", "{}"),
        ("broker", "b1", "at", NOON_S * 1000, "sequence", "a-2", "report", '{"seconds": "many"}'),
        ("broker", "b1", "at", NOON_S * 1000, "sequence", "a-3", "report", b"\xff\x00"),
        ("at", NOON_S * 1000, "sequence", "a-4", "report", encode(good)),
    ):
        valkey.ask("XADD", REPORT_STREAM, "*", *fields)
    append(valkey, report("b1", NOON_S, one(2**63 - 1, latencies={3: 10**15}), cpu_share=1e300), "a-5")
    append(valkey, report("b1", NOON_S, one(4)), "a-6")
    cluster.run()
    progress = cluster.catalog.progress()
    assert (progress.reports, progress.malformed) == (2, 6)
    assert cluster.published() == {(NOON_S, "t"): 4}


@pytest.mark.slow
def test_files_are_merged_by_levels_and_the_oldest_forgotten(
    cluster: Cluster, valkey: RespConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "FILES_MERGED", 2)
    cluster.settings = TelemetrySettings(batch_records=1, keep_s=1e9)
    for number in range(7):
        append(valkey, report("b1", NOON_S + number, one(10**number)), f"a-{number}")
    cluster.run()
    assert cluster.published() == {(NOON_S, "t"): 1_111_111}
    assert [file.level for file in cluster.catalog.files(TOPICS)] == [0, 1, 2]
    assert sum(1 for _ in (cluster.warehouse.root / "telemetry").glob("topics-*/batch-*")) == 3
    cluster.settings = TelemetrySettings(keep_s=LATE_S + 1)
    append(valkey, report("b1", NOON_S + LATE_S, one(1)), "a-8")
    cluster.run()
    assert min(key[0] for key in cluster.published()) == NOON_S, "by the newest report, not by our clock"
    append(valkey, report("b1", NOON_S + 3 * LATE_S, one(1)), "a-9")
    cluster.run()
    assert cluster.published() == {(NOON_S + 3 * LATE_S, "t"): 1}


@pytest.mark.slow
def test_a_lost_checkpoint_goes_on_where_the_catalogue_says(cluster: Cluster, valkey: RespConnection) -> None:
    append(valkey, report("b1", NOON_S, one(1)), "a-1")
    cluster.run()
    storage.remove(cluster.warehouse.checkpoint(telemetry.CHECKPOINT))
    append(valkey, report("b1", NOON_S, one(10)), "a-2")
    cluster.run()
    assert cluster.published() == {(NOON_S, "t"): 11}


@pytest.mark.slow
def test_a_running_job_follows_the_stream_until_it_is_stopped(cluster: Cluster, valkey: RespConnection) -> None:
    cluster.settings = TelemetrySettings(period_s=0.2, keep_s=1e9)
    append(valkey, report("b1", NOON_S, one(1)), "a-1")
    job = cluster.job()
    query = job.start()
    try:
        wait_until(lambda: cluster.catalog.progress().reports == 1)
        append(valkey, report("b1", NOON_S, one(10)), "a-2")
        wait_until(lambda: cluster.catalog.progress().reports == 2)
    finally:
        job.stop()
    assert not query.isActive
    assert cluster.published() == {(NOON_S, "t"): 11}
