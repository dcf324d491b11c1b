"""Feeds: topics whose messages become records of datasets.

`Feeds` creates, changes and drops feeds, and keeps them running. It lists them in a hash on the store's server, from
which collectors (agent/collector.py) learn of them. Collectors put the messages into a stream, which the feed's query
reads (jobs/feed.py).
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nearcast.core.model.names import FEEDS, encode_topic, feed_keys
from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline import storage as io
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.datasets import FORMATS, Feed, FeedCatalog
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.jobs.feed import DEFAULT_SETTINGS, FeedJob, FeedSettings
from nearcast.pipeline.sources.server import RespConnection
from nearcast.pipeline.storage import DEAD_LETTERS, checked_dataset_name, nullable_ddl, parse_schema
from nearcast.runtime.workers import Troubles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


# --- feeds


DEAD_LETTERS_KEPT = 200  # commits with dead letters, per feed: the oldest go first
LOOK_S = 1.0  # between two checks of the queries
UNCOLLECTED_S = 15.0  # without a collector; a lease lasts 3 s, and agents look for feeds every second
UNCOLLECTED = "no agent collects it: check the agents' logs and their rights on the store's server"
REVIVE_S = 5.0  # between two starts of a query that ends with an error
_STOP_WAIT_S = 30.0
_POLL_S = 0.1
_OTHER_MAP = re.compile("MAP<(?!STRING,)")

log = logging.getLogger(__name__)


class Feeds:
    """All feeds of one data cluster. `open` starts them, `stop` ends them; new ones start automatically."""

    def __init__(
        self,
        database: Database,
        datasets: Datasets,
        store_url: str,
        committed: Callable[[str, int], None] = lambda dataset, number: None,
        settings: FeedSettings = DEFAULT_SETTINGS,
        troubles: Troubles | None = None,
    ) -> None:
        """`committed(dataset, number)` is called from other threads, after each batch with records."""
        self._database = database
        self._datasets = datasets
        self._catalog = FeedCatalog(database)
        self._url = store_url
        self._committed = committed
        self._settings = settings
        self._troubles = troubles or Troubles(log)
        self._spark: SparkSession | None = None
        self._queries: dict[str, StreamingQuery] = {}
        self._tried_s: dict[str, float] = {}
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None
        self._collected_s: dict[str, float] = {}  # when an agent was last seen collecting it, or we began to look
        self.uncollected: set[str] = set()  # feeds that no agent has collected for a while
        self._untold = ""  # why the feeds could not be announced to collectors
        self.problems: dict[str, str] = {}  # feed -> what keeps it from running

    # --- what there is

    def all(self) -> list[Feed]:
        """The feeds with their counters."""
        return self._catalog.all()

    def get(self, name: str) -> Feed:
        return self._catalog.get(name)

    def collectors(self) -> dict[str, str]:
        """feed -> the broker whose agent collects it now; feeds without a collector are left out."""
        names = [feed.name for feed in self._catalog.all()]
        try:
            with RespConnection(self._url) as connection:
                held = {name: connection.ask("GET", feed_keys(name).lease) for name in names}
        except ClusterError as error:
            log.warning("feeds: cannot find out which agents collect them: %s", error)
            return {}
        return {name: agent.decode().partition(":")[0] for name, agent in held.items() if agent}

    def dead_letters(self, spark: SparkSession, name: str) -> DataFrame:
        """The dead letters that are kept; `kind` and `reason` describe each."""
        self._catalog.get(name)
        paths = [self._datasets.warehouse.dead_letters(name, number) for number in self._catalog.dead_letters(name)]
        return io.read(spark, nullable_ddl(DEAD_LETTERS), paths)

    # --- making and changing

    def create(self, name: str, topic: str, schema: str, format: str = "json", key: str = "") -> Feed:
        """Create a feed and the dataset of the same name, and run it. Repeating this changes nothing."""
        checked_dataset_name(name)
        encode_topic(topic)
        if format not in FORMATS:
            raise UsageError(f"unknown format {format!r}: use one of {', '.join(FORMATS)}")
        _check_readable(schema)
        found = self._catalog.find(name)
        with self._lock:
            if found is None:
                self._remove_traces(name)
            with self._database.transaction():
                self._datasets.create(name, schema, key)
                if found is None:
                    self._catalog.add(Feed(name=name, topic=topic, format=format))
                elif (found.topic, found.format) != (topic, format):
                    raise UsageError(f"feed {name} reads {found.topic} as {found.format}: drop it first to change that")
            self._tell_collectors()
            self._start_missing()
        return self._catalog.get(name)

    def alter(self, name: str, schema: str) -> None:
        """Add columns to a feed's dataset, as in `severity INT`. Its query uses them from the next batch on."""
        self._catalog.get(name)
        _check_readable(schema)
        self._datasets.alter(name, schema)

    def drop(self, name: str) -> None:
        """End a feed. Its dataset stays until it is dropped too."""
        with self._lock:
            self._catalog.get(name)
            self._end(name)
            self._catalog.remove(name)
            self._tell_collectors()
            self._remove_traces(name)

    def until_collected(self, name: str, timeout_s: float) -> bool:
        """Wait until a collector has attached to the feed's topics; False if none has in time."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            with RespConnection(self._url) as connection:
                if connection.ask("EXISTS", feed_keys(name).state):
                    return True
            time.sleep(_POLL_S)
        return False

    # --- running

    def open(self, spark: SparkSession) -> None:
        """Start the queries of all feeds, and keep them running until `stop`."""
        self._spark = spark
        self._stopping.clear()
        self._keeper = threading.Thread(target=self._look_after, name="feeds", daemon=True)
        self._keeper.start()

    def stop(self) -> None:
        """End all queries; returns when none runs."""
        self._stopping.set()
        if self._keeper is not None:
            self._keeper.join(_STOP_WAIT_S)
        with self._lock:
            self._spark = None
            for name in list(self._queries):
                self._end(name)

    def _look_after(self) -> None:
        while not self._stopping.is_set():
            try:
                self._tell_collectors()
                self._start_missing()
                self._sweep()
                self._look_for_collectors()
            except Exception as error:  # Spark and py4j have many ways to fail; the next round tries again
                self._troubles.note("keeping the feeds running", error)
            self._stopping.wait(LOOK_S)

    def _look_for_collectors(self) -> None:
        """Report each feed that no agent has collected for a while: nothing else would show why it stays empty."""
        now_s, collected = time.monotonic(), self.collectors()
        names = [feed.name for feed in self._catalog.all()]
        for name in names:
            if name in collected or name not in self._collected_s:
                self._collected_s[name] = now_s
            if now_s - self._collected_s[name] < UNCOLLECTED_S:
                self.uncollected.discard(name)
            elif name not in self.uncollected:
                self.uncollected.add(name)
                log.error("feed %s: %s", name, UNCOLLECTED)
        self.uncollected.intersection_update(names)

    def _start_missing(self) -> None:
        with self._lock:
            spark = self._spark
            for feed in self._catalog.all() if spark is not None else ():
                query = self._queries.get(feed.name)
                if query is None or not query.isActive:
                    self._start(feed.name, query)

    def _start(self, name: str, ended: StreamingQuery | None) -> None:
        assert self._spark is not None
        if ended is not None and (error := ended.exception()) is not None:
            first = str(error).partition("\n")[0]
            if self.problems.get(name) != first:
                log.warning("feed %s ended and is started again: %s", name, first)
            self.problems[name] = first
        now_s = time.monotonic()
        if now_s - self._tried_s.get(name, -REVIVE_S) < REVIVE_S:
            return
        self._tried_s[name] = now_s
        job = FeedJob(name, self._database, self._datasets, self._url, self._noted)
        self._queries[name] = job.start(self._spark, self._settings)

    def _noted(self, dataset: str, number: int) -> None:
        self.problems.pop(dataset, None)
        self._committed(dataset, number)

    def _end(self, name: str) -> None:
        self.problems.pop(name, None)
        self._tried_s.pop(name, None)
        if (query := self._queries.pop(name, None)) is not None:
            query.stop()

    # --- the store's server

    def _tell_collectors(self) -> None:
        """Write the list of feeds for collectors. This is repeated, because the server may lose its memory."""
        wanted = {feed.name: json.dumps({"topic": feed.topic, "stream": feed.stream}) for feed in self._catalog.all()}
        try:
            with RespConnection(self._url) as connection:
                there = [name.decode() for name in connection.ask("HKEYS", FEEDS)]
                if gone := [name for name in there if name not in wanted]:
                    connection.ask("HDEL", FEEDS, *gone)
                if wanted:
                    connection.ask("HSET", FEEDS, *(part for pair in wanted.items() for part in pair))
            self._untold = ""
        except ClusterError as error:
            if str(error) != self._untold:
                log.warning("feeds: cannot announce them to collectors: %s", error)
            self._untold = str(error)

    def _remove_traces(self, name: str) -> None:
        """Remove what is left of a dropped feed of this name: its stream, its checkpoint and its dead letters."""
        warehouse = self._datasets.warehouse
        with RespConnection(self._url) as connection:
            connection.ask("DEL", *msgspec.structs.astuple(feed_keys(name)))
        io.remove(warehouse.checkpoint(name))
        io.remove(warehouse.dead_letters(name, 0).parent)

    def _sweep(self) -> None:
        for feed in self._catalog.all():
            for number in self._catalog.dead_letters(feed.name)[DEAD_LETTERS_KEPT:]:
                io.remove(self._datasets.warehouse.dead_letters(feed.name, number))
                self._catalog.forget_dead_letters(feed.name, number)


def _check_readable(schema: str) -> None:
    """Refuse maps whose keys are not strings: Spark cannot read them from JSON, and every batch would fail."""
    for column in parse_schema(schema):
        if _OTHER_MAP.search(column.type):
            raise UsageError(
                f"the column {column.name} is of type {column.type}: keys in JSON are text, so use MAP<STRING, ...>"
            )


# --- dead letters


SHOWN_BYTES = 500  # of a payload


def newest_dead_letters(folders: Iterable[Path], last: int) -> list[dict[str, Any]]:
    """The last dead letters, the newest first, read without Spark.

    `folders`: of the last commits, the newest first. One that was removed meanwhile is skipped.
    """
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = []
    for folder in folders:
        for file in sorted(folder.glob("*.parquet")):
            try:
                rows = pq.read_table(file).to_pylist()
            except FileNotFoundError:
                continue
            found += [_shown(row) for row in reversed(rows)]
        if len(found) >= last:
            break
    return found[:last]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    payload = row["payload"]
    times = {name: row[name].isoformat() if row[name] is not None else None for name in ("published_at", "ingested_at")}
    text = None if payload is None else payload[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return {**row, "payload": text, **times}
