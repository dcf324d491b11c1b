"""How fast messages in logs become committed Parquet, and how soon: our feeds, and a loop of redis-py beside them.

The records are JSON of about 300 bytes. Clients publish them to topics that a log covers, spread over the brokers. Then
a warehouse with one feed reads them in batches of 200,000, and every batch is committed. The first batch of each run,
in which Spark and its workers get warm, is timed apart. In turn with it a loop in one process does what one would write
without nearcast: XRANGE with redis-py over streams of the same records, `json`, and Parquet with pyarrow.

The lag is measured with a steady flow, from a message's acknowledgement to the commit of its batch, with one feed and
with ten. The processor time is that of the data cluster: this process, Java and Spark's Python workers.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from multiprocessing.queues import Queue
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.core.model.logs import Log
from nearcast.core.model.placement import Mode
from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.feeds import Feeds
from nearcast.pipeline.ingest.types import arrow_schema
from nearcast.pipeline.jobs.feed import FeedSettings, FeedsJob
from nearcast.pipeline.spark import SessionSettings, open_session
from nearcast.pipeline.storage import Warehouse, parse_schema
from nearcast.runtime.client import Client
from nearcast.testing.cluster import LocalCluster

BROKERS = (1, 2, 4)  # the growth; the last one is the measurement itself
BATCH_RECORDS = 200_000
RECORDS_MIN = 2000
ROUNDS = 3
SECONDS = 30.0
RATE_PER_S = 1000
WARM_UP_S = 10.0  # of the lag: Java compiles what runs often
FEEDS = 10
CORES = 2
TOPICS = 40  # spread over the brokers
IN_FLIGHT = 2000  # messages that wait for acknowledgement while the logs are filled
PAGE = 1000  # entries of one XRANGE of redis-py
SCHEMA = "id BIGINT, kind STRING, lat DOUBLE, lon DOUBLE, severity INT, user STRING, message STRING"
LOG_BYTES = 1 << 40
STREAM = "bench-records"  # redis-py's

Progress = Callable[[str], None]


class Growth(msgspec.Struct, frozen=True):
    """The speed with the records on some brokers."""

    brokers: int
    records_per_s: float


class Lag(msgspec.Struct, frozen=True):
    """How long records take from acknowledgement to commit, and the processors that this keeps busy."""

    feeds: int
    p50_s: float
    p99_s: float
    cores: float


class IngestBench(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run."""

    records: int  # that were timed in each round
    record_bytes: float
    batch_records: int
    records_per_s: float
    cold_batch_s: float  # from the start of the query to the first commit, the first time
    redis_py_records_per_s: float
    ratio: float
    growth: list[Growth]
    lag_s: float  # p99
    lag_p50_s: float
    lag_cores: float
    ten_feeds_lag_s: float
    ten_feeds_lag_p50_s: float
    ten_feeds_cores: float


async def measure_ingest(
    records: int, *, rounds: int = ROUNDS, seconds: float = SECONDS, progress: Progress = lambda _: None
) -> IngestBench:
    """Run everything; takes about three minutes with a million records."""
    if records < RECORDS_MIN:
        raise UsageError(f"give at least {RECORDS_MIN} records")
    folder = Path(tempfile.mkdtemp(prefix="nearcast-ingest-"))
    try:
        progress(f"starting a cluster with {BROKERS[-1]} brokers")
        async with await LocalCluster.start(brokers=BROKERS[-1]) as cluster:
            return await _Measurement(cluster, folder, records, progress).run(rounds, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- records


_WORDS = [f"{number * 2654435761 % 2**32:08x}" for number in range(997)]
_KINDS = ("fire", "flood", "storm", "quake")


def record(number: int) -> bytes:
    """A bit more than 300 bytes, all different."""
    words = " ".join(_WORDS[(number * step + step) % len(_WORDS)] for step in range(1, 25))
    return json.dumps(
        {
            "id": number,
            "kind": _KINDS[number % len(_KINDS)],
            "lat": 48.8 + number % 1000 / 7000,
            "lon": 2.3 + number % 777 / 7000,
            "severity": number % 10,
            "user": f"user-{number % 5000}",
            "message": words,
        }
    ).encode()


# --- redis-py


def read_with_redis_py(urls: Sequence[str], folder: Path, records: int) -> float:
    """Records per second of the plain loop, over the streams of all servers, one after another."""
    import redis

    schema, rows, files = arrow_schema(parse_schema(SCHEMA)), [], 0
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began_s = time.perf_counter()
    for url in urls:
        server: Any = redis.Redis.from_url(url)
        after = b"-"
        while page := server.xrange(STREAM, after, "+", PAGE):
            rows += [json.loads(fields[b"payload"]) for _, fields in page]
            after = b"(" + page[-1][0]
            if len(rows) >= BATCH_RECORDS:
                pq.write_table(pa.Table.from_pylist(rows, schema), folder / f"{files}.parquet")
                rows, files = [], files + 1
        server.close()
    if rows:
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / f"{files}.parquet")
    taken_s = time.perf_counter() - began_s
    found = sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
    if found != records:
        raise ClusterError(f"redis-py's loop has read {found} records of {records}")
    return records / taken_s


def _fill_streams(urls: Sequence[str], records: int) -> None:
    import redis

    for place, url in enumerate(urls):
        server = redis.Redis.from_url(url)
        numbers = range(place, records, len(urls))
        for first in range(0, len(numbers), PAGE):
            pipeline = server.pipeline(transaction=False)
            for number in numbers[first : first + PAGE]:
                pipeline.xadd(STREAM, {"payload": record(number)})
            pipeline.execute()
        server.close()


# --- our side


class Run:
    """A warehouse of its own with one feed that begins before the records, and when its batches were committed."""

    def __init__(self, folder: Path, store_url: str, topics: str) -> None:
        warehouse = Warehouse(folder)
        self._database = Database(warehouse.catalog)
        datasets = Datasets(self._database, warehouse)
        self._feeds = Feeds(self._database, datasets, store_url)
        self._feeds.create("records", topics, SCHEMA)
        self._job = FeedsJob(self._database, datasets, store_url, self._note)
        self._committed_s: list[float] = []

    def _note(self, dataset: str, number: int) -> None:
        self._committed_s.append(time.perf_counter())

    def measure(self, spark: Any, batch_records: int, records: int) -> tuple[float, float]:
        """Records per second after the first batch, and the seconds of that one."""
        began_s = time.perf_counter()
        (log,) = {feed.log for feed in self._feeds.all()}
        settings = FeedSettings(batch_messages=batch_records)
        self._job.start(spark, [log], settings, once=True).awaitTermination()
        found = self._feeds.get("records").progress
        self._database.close()
        if (found.records, found.dead, found.lost) != (records, 0, 0):
            raise ClusterError(f"of {records} records, {found.records} were committed")
        first_s, *_, last_s = self._committed_s
        return (records - batch_records) / (last_s - first_s), first_s - began_s


# --- lag


def _publish_steadily(url: str, topics: list[str], seconds: float, acknowledged: Queue[Any]) -> None:
    """In a process of its own: put the acknowledgement's time of each record, by number, into the queue."""
    asyncio.run(_published(url, topics, seconds, acknowledged))


async def _published(url: str, topics: list[str], seconds: float, acknowledged: Queue[Any]) -> None:
    times: dict[int, float] = {}

    async def publish(client: Client, number: int) -> None:
        await client.publish(topics[number % len(topics)], record(number))
        times[number] = time.time()

    async with Client(url) as client, asyncio.TaskGroup() as group:
        began_s = time.monotonic()
        for number in range(int(seconds * RATE_PER_S)):
            group.create_task(publish(client, number))
            if (ahead_s := number / RATE_PER_S - (time.monotonic() - began_s)) > 0:
                await asyncio.sleep(ahead_s)
    acknowledged.put(times)


class Steady:
    """Feeds of one log under a steady flow."""

    def __init__(self, folder: Path, cluster: LocalCluster, feeds: int) -> None:
        self._names = [f"records_{number}" for number in range(feeds)]
        self._topics = [f"steady{feeds}.{name}.{number}" for name in self._names for number in range(4)]
        self._pattern = f"steady{feeds}.*"
        self._cluster = cluster
        self._warehouse = Warehouse(folder)
        self._database = Database(self._warehouse.catalog)
        self._datasets = Datasets(self._database, self._warehouse)
        self._committed_s: dict[tuple[str, int], float] = {}
        self._feeds = Feeds(self._database, self._datasets, cluster.store_url, self._note)

    def _note(self, dataset: str, number: int) -> None:
        self._committed_s[dataset, number] = time.time()

    def measure(self, spark: Any, seconds: float) -> Lag:
        for name in self._names:
            self._feeds.create(name, self._pattern.replace("*", f"{name}.*"), SCHEMA)
        self._feeds.open(spark)
        clock = _processor_clock(spark)
        spawning = multiprocessing.get_context("spawn")
        acknowledged: Queue[Any] = spawning.Queue()
        url = self._cluster.urls["b1"]
        arguments = (url, self._topics, WARM_UP_S + seconds, acknowledged)
        publishing = spawning.Process(target=_publish_steadily, args=arguments, daemon=True)
        publishing.start()
        time.sleep(WARM_UP_S)
        began_s, began_cpu_s = time.monotonic(), clock()
        times: dict[int, float] = acknowledged.get(timeout=WARM_UP_S + seconds + 60)
        cores = (clock() - began_cpu_s) / (time.monotonic() - began_s)
        publishing.join()
        self._until_committed(len(times))
        self._feeds.stop()
        lags = sorted(self._lags(times, skipped=int(WARM_UP_S * RATE_PER_S)))
        self._database.close()
        return Lag(len(self._names), lags[len(lags) // 2], lags[int(len(lags) * 0.99)], cores)

    def _until_committed(self, records: int) -> None:
        until_s = time.monotonic() + 60
        while sum(feed.progress.records for feed in self._feeds.all()) < records:
            if time.monotonic() > until_s:
                raise ClusterError(f"not all of {records} records were committed: {self._feeds.problem}")
            time.sleep(0.1)

    def _lags(self, acknowledged_s: dict[int, float], skipped: int) -> Iterator[float]:
        for (dataset, number), committed_s in self._committed_s.items():
            for file in self._warehouse.batch(dataset, number).glob("*.parquet"):
                ids = pq.read_table(file, columns=["id"])["id"].to_pylist()
                yield from (committed_s - acknowledged_s[each] for each in ids if each >= skipped)


def _processor_clock(spark: Any) -> Callable[[], float]:
    """The processor time of this process, of Java, and of all processes that Java has started."""
    java = spark.sparkContext._gateway.proc.pid
    ticks_per_s = os.sysconf("SC_CLK_TCK")

    def clock() -> float:
        found: dict[int, tuple[int, int]] = {}  # pid -> parent, ticks
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            found[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
        ticks, below = 0, [java]
        while below:
            parent = below.pop()
            ticks += found.get(parent, (0, 0))[1]
            below += [pid for pid, (of, _) in found.items() if of == parent]
        return ticks / ticks_per_s + time.process_time()

    return clock


# --- the measurement


class _Measurement:
    def __init__(self, cluster: LocalCluster, folder: Path, records: int, progress: Progress) -> None:
        self._cluster = cluster
        self._folder = folder
        self._batch = min(BATCH_RECORDS, records // 5)
        self._records = records + self._batch  # the first batch is not timed
        self._progress = progress
        self._bytes = 0

    async def run(self, rounds: int, seconds: float) -> IngestBench:
        await self._create_logs()
        runs = {
            (brokers, number): await asyncio.to_thread(
                Run, self._folder / f"on-{brokers}-{number}", self._cluster.store_url, f"on{brokers}.*"
            )
            for brokers in BROKERS
            for number in range(rounds)
        }
        for brokers in BROKERS:
            await self._publish(brokers)
        self._progress(f"redis-py: filling {BROKERS[-1]} streams")
        urls = list(self._cluster.urls.values())
        await asyncio.to_thread(_fill_streams, urls, self._records)
        async with AsyncExitStack() as stack:
            self._progress(f"Spark, local[{CORES}]")
            session = open_session(SessionSettings(master=f"local[{CORES}]", app_name="nearcast-bench-ingest"))
            spark = await asyncio.to_thread(session.__enter__)
            stack.push_async_callback(asyncio.to_thread, session.__exit__, None, None, None)
            speeds, cold_s, plain = await asyncio.to_thread(self._rounds, spark, runs, rounds, urls)
            lags = [await asyncio.to_thread(self._lag, spark, feeds, seconds) for feeds in (1, FEEDS)]
        return self._result(speeds, cold_s, plain, lags)

    async def _create_logs(self) -> None:
        names = [f"on{brokers}" for brokers in BROKERS] + [f"steady{feeds}" for feeds in (1, FEEDS)]
        console = await self._cluster.console()
        for name in names:
            await console.create_log(Log(name, 0, (f"{name}.*",), 3600.0, LOG_BYTES))
        placed: dict[str, tuple[Mode, tuple[str, ...]]] = {}
        for brokers in BROKERS:
            for topic in range(TOPICS):
                placed[f"on{brokers}.{topic}"] = (Mode.SINGLE, (f"b{topic % brokers + 1}",))
        await console.move_all(placed)

    async def _publish(self, brokers: int) -> None:
        self._progress(f"publishing {self._records:,} records at {brokers} broker{'s' * (brokers > 1)}")
        self._bytes = 0
        async with Client(self._cluster.urls["b1"]) as client:
            for number in range(self._records):
                payload = record(number)
                self._bytes += len(payload)
                client.publish_nowait(f"on{brokers}.{number % TOPICS}", payload)
                if number % IN_FLIGHT == IN_FLIGHT - 1:
                    await client.flush()
            await client.flush()

    def _rounds(
        self, spark: Any, runs: dict[tuple[int, int], Run], rounds: int, urls: Sequence[str]
    ) -> tuple[dict[int, list[float]], float, list[float]]:
        speeds: dict[int, list[float]] = {brokers: [] for brokers in BROKERS}
        cold_s: list[float] = []
        plain: list[float] = []
        for number in range(rounds):
            for brokers in (*BROKERS[number % 2 :], *BROKERS[: number % 2]):  # no side is always the one after another
                self._progress(f"round {number + 1} of {rounds}: {brokers} broker{'s' * (brokers > 1)}")
                speed, first_s = runs[brokers, number].measure(spark, self._batch, self._records)
                self._progress(f"  {speed:,.0f} records/s")
                speeds[brokers].append(speed)
                cold_s.append(first_s)
                shutil.rmtree(self._folder / f"on-{brokers}-{number}")
                if brokers == BROKERS[-1]:
                    self._progress(f"round {number + 1} of {rounds}: redis-py")
                    plain.append(read_with_redis_py(urls, self._folder / "plain", self._records))
                    self._progress(f"  {plain[-1]:,.0f} records/s")
        return speeds, cold_s[0], plain

    def _lag(self, spark: Any, feeds: int, seconds: float) -> Lag:
        self._progress(f"lag with {feeds} feed{'s' * (feeds > 1)} at {RATE_PER_S:,} records/s")
        return Steady(self._folder / f"steady-{feeds}", self._cluster, feeds).measure(spark, seconds)

    def _result(
        self, speeds: dict[int, list[float]], cold_s: float, plain: list[float], lags: list[Lag]
    ) -> IngestBench:
        one, ten = lags
        return IngestBench(
            records=self._records - self._batch,
            record_bytes=self._bytes / self._records,
            batch_records=self._batch,
            records_per_s=median(speeds[BROKERS[-1]]),
            cold_batch_s=cold_s,
            redis_py_records_per_s=median(plain),
            ratio=median(speeds[BROKERS[-1]]) / median(plain),
            growth=[Growth(brokers, median(found)) for brokers, found in speeds.items()],
            lag_s=one.p99_s,
            lag_p50_s=one.p50_s,
            lag_cores=one.cores,
            ten_feeds_lag_s=ten.p99_s,
            ten_feeds_lag_p50_s=ten.p50_s,
            ten_feeds_cores=ten.cores,
        )
