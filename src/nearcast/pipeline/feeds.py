"""Feeds: topics whose messages become records of datasets.

`Feeds` creates, changes and drops feeds, and keeps the query that fills their datasets running (jobs/feed.py). The
messages come from logs, which servers keep. A feed whose topics no log covers gets a log of its own.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearcast.core.model.logs import NAME_MAX, Log
from nearcast.core.model.names import encode_topic
from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline import storage as io
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.feeds import FORMATS, Feed, FeedCatalog, ReadEntry
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.jobs.feed import DEFAULT_SETTINGS, FeedSettings, FeedsJob
from nearcast.pipeline.logs import ClusterLogs
from nearcast.pipeline.sources.parts import log_of
from nearcast.pipeline.storage import DEAD_LETTERS, checked_dataset_name, nullable_ddl, parse_schema
from nearcast.runtime.workers import Troubles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


# --- feeds


LOG_PREFIX = "feed-"  # of the names of logs that feeds get
LOG_RETAIN_S = 24 * 3600.0  # how long the data cluster may be away
LOG_RETAIN_BYTES = 512 << 20  # at each broker
DEAD_LETTERS_KEPT = 200  # commits with dead letters, per feed: the oldest go first
LOOK_S = 1.0  # between two checks of the query
REVIVE_S = 5.0  # between two starts of a query that ends with an error
_STOP_WAIT_S = 30.0
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
        self._logs = ClusterLogs(store_url)
        self._job = FeedsJob(database, datasets, store_url, committed)
        self._settings = settings
        self._troubles = troubles or Troubles(log)
        self._spark: SparkSession | None = None
        self._query: StreamingQuery | None = None
        self._read: list[str] = []  # the logs that the query reads
        self._tried_s = -REVIVE_S
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None
        self._told: dict[str, ReadEntry] = {}  # what brokers know of how far their parts were read
        self.problem = ""  # what keeps the query from running

    # --- what there is

    def all(self) -> list[Feed]:
        """The feeds with their counters."""
        return self._catalog.all()

    def get(self, name: str) -> Feed:
        return self._catalog.get(name)

    def dead_letters(self, spark: SparkSession, name: str) -> DataFrame:
        """The dead letters that are kept; `kind` and `reason` describe each."""
        self._catalog.get(name)
        paths = [self._datasets.warehouse.dead_letters(name, number) for number in self._catalog.dead_letters(name)]
        return io.read(spark, nullable_ddl(DEAD_LETTERS), paths)

    # --- making and changing

    def create(self, name: str, topic: str, schema: str, format: str = "json", key: str = "") -> Feed:
        """Create a feed and the dataset of the same name, and run it. Repeating this changes nothing.

        Every message of its topics whose publish begins after this call becomes a record.
        """
        checked_dataset_name(name)
        encode_topic(topic)
        if format not in FORMATS:
            raise UsageError(f"unknown format {format!r}: use one of {', '.join(FORMATS)}")
        _check_readable(schema)
        with self._lock:
            found = self._catalog.find(name)
            if found is not None and (found.topic, found.format) != (topic, format):
                raise UsageError(f"feed {name} reads {found.topic} as {found.format}: drop it first to change that")
            self._datasets.check(name, schema, key)  # before a log is made
            if found is None:
                made = self._made(name, topic, format)
                with self._database.transaction():
                    self._datasets.create(name, schema, key)
                    if made.log not in self._wanted():
                        self._catalog.begin(made.since)
                    self._catalog.add(made)
            self._keep_running()
        return self._catalog.get(name)

    def _made(self, name: str, topic: str, format: str) -> Feed:
        """A feed that begins now, with a log that keeps its topics."""
        io.remove(self._datasets.warehouse.dead_letters(name, 0).parent)  # of a dropped feed of this name
        kept = self._logs.covering(topic)
        since = self._logs.positions(kept) if kept is not None else {}
        if kept is None:
            own = (LOG_PREFIX + name)[:NAME_MAX]
            kept = self._logs.create(Log(own, 0, (topic,), LOG_RETAIN_S, LOG_RETAIN_BYTES))
        return Feed(name=name, topic=topic, format=format, log=kept.key, since=since)

    def alter(self, name: str, schema: str) -> None:
        """Add columns to a feed's dataset, as in `severity INT`. They are filled from the next batch on."""
        self._catalog.get(name)
        _check_readable(schema)
        self._datasets.alter(name, schema)

    def drop(self, name: str) -> None:
        """End a feed, and its log if no other feed reads it. Its dataset stays until it is dropped too."""
        with self._lock:
            feed = self._catalog.get(name)
            self._catalog.remove(name)
            self._keep_running()
            io.remove(self._datasets.warehouse.dead_letters(name, 0).parent)
            if feed.log not in self._wanted():
                self._leave_log(feed)

    def _leave_log(self, feed: Feed) -> None:
        """No feed reads the log any more: drop it if it was made for a feed."""
        own = feed.log.partition("@")[0]
        try:
            if own.startswith(LOG_PREFIX):
                self._logs.drop(own)
            else:
                self._logs.forget_reader(feed.log)
        except ClusterError as error:
            log.warning("feed %s was dropped, but its log %s does not know: %s", feed.name, own, error)

    # --- running

    def open(self, spark: SparkSession) -> None:
        """Start the query, and keep it running until `stop`."""
        self._spark = spark
        self._stopping.clear()
        self._keeper = threading.Thread(target=self._look_after, name="feeds", daemon=True)
        self._keeper.start()

    def stop(self) -> None:
        """End the query; returns when it does not run any more."""
        self._stopping.set()
        if self._keeper is not None:
            self._keeper.join(_STOP_WAIT_S)
        with self._lock:
            self._spark = None
            if self._query is not None:
                self._query.stop()
            self._query = None

    def _look_after(self) -> None:
        while not self._stopping.is_set():
            try:
                self._keep_running()
                self._sweep()
                self._tell_brokers()
            except Exception as error:  # Spark and py4j have many ways to fail; the next round tries again
                self._troubles.note("keeping the feeds running", error)
            self._stopping.wait(LOOK_S)

    def _tell_brokers(self) -> None:
        """Tell them how far their parts were read; what could not be told is told in the next round."""
        read = {stream: entry for stream, entry in self._catalog.entries().items() if log_of(stream) in self._wanted()}
        if read == self._told:
            return
        try:
            self._logs.note_read(read)
            self._told = read
        except ClusterError as error:
            log.debug("brokers do not know yet how far feeds have read: %s", error)

    def _wanted(self) -> list[str]:
        return sorted({feed.log for feed in self._catalog.all()})

    def _keep_running(self) -> None:
        """Have the query run over the logs of all feeds: start it, or start it again with other logs."""
        with self._lock:
            wanted = self._wanted()
            if self._spark is None:
                return
            now_s = time.monotonic()
            if self._query is not None and self._query.isActive:
                if wanted == self._read:
                    self.problem = "" if now_s - self._tried_s > REVIVE_S else self.problem
                    return
                self._query.stop()
                self._tried_s = -REVIVE_S
            elif self._query is not None:
                self._note_end(self._query)
            if wanted and now_s - self._tried_s >= REVIVE_S:
                self._tried_s = now_s
                self._query, self._read = self._job.start(self._spark, wanted, self._settings), wanted

    def _note_end(self, query: StreamingQuery) -> None:
        error = query.exception()
        first = str(error).partition("\n")[0] if error is not None else ""
        if first and first != self.problem:
            log.warning("the query of the feeds ended and is started again: %s", first)
        self.problem = first

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
