"""The part of the data cluster that runs Spark: its session, the feeds, the executions, and housekeeping.

`SparkEngine` is the whole; `Housekeeping` and `Telemetry` are parts of it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.errors import ClusterError
from nearcast.pipeline import storage as io
from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.channels import StoredChannel
from nearcast.pipeline.catalog.executions import Execution
from nearcast.pipeline.channels.analysis import analyse
from nearcast.pipeline.channels.execution import Prepared
from nearcast.pipeline.channels.language import Channel
from nearcast.pipeline.feeds import Feeds
from nearcast.pipeline.jobs.channel import ChannelJob
from nearcast.pipeline.jobs.telemetry import TelemetryJob
from nearcast.pipeline.service.scheduler import Scheduler
from nearcast.pipeline.service.state import EngineNotReady, Schemas, ServiceSettings
from nearcast.pipeline.storage import require_shared
from nearcast.runtime.workers import Troubles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


# --- housekeeping


RELEASED_MOST = 10_000  # subscriptions in one round, during which the catalogue is locked

log = logging.getLogger("nearcast.data")


class Housekeeping:
    """Keeps the data cluster's folder small: deletes results that are too old, and merges small files.

    It also ends the subscriptions of brokers that are gone, so that Spark computes no results that will not be fetched.
    Each step can be interrupted anywhere and repeated.
    """

    def __init__(self, catalog: Catalog, settings: ServiceSettings) -> None:
        self._catalog = catalog
        self._settings = settings

    def run(self, spark: SparkSession) -> None:
        self.release_brokers()
        self.drop_results()
        self.forget_subscriptions()
        self.compact(spark)

    def release_brokers(self) -> None:
        """Release one silent broker per round.

        It is forgotten first. If it comes back, it learns of that and asks for all its subscriptions again.
        """
        for name in self._catalog.brokers.silent(self._settings.broker_away_s)[:1]:
            held = len(self._catalog.subscriptions.held_by(name))
            hours = self._settings.broker_away_s / 3600
            log.warning("broker %s was not heard from for %g h: the %d subscriptions it holds end", name, hours, held)
            self._catalog.brokers.drop(name)
        self._catalog.subscriptions.release_of_strangers(RELEASED_MOST)

    def drop_results(self) -> None:
        """Drop old results. They count as gone first, then files go, then rows: no caller finds files missing."""
        expired = self._catalog.outcomes.expire(self._settings.keep_s, self._settings.keep_executions)
        for channel, number in expired:
            io.remove(self._catalog.warehouse.results(channel, number))
        self._catalog.outcomes.forget(expired)

    def forget_subscriptions(self) -> None:
        """Forget subscriptions that ended before the version that the oldest open or future execution answers."""
        with self._catalog.database.transaction():
            needed = {execution.channel: execution.version for execution in self._catalog.executions.open()}
            for channel in self._catalog.channels.all():
                version = needed.get(channel.name, self._catalog.channels.numbers(channel.name).version)
                self._catalog.subscriptions.forget_removed(channel.name, version)

    def compact(self, spark: SparkSession) -> None:
        """Compact each dataset up to the oldest position that an open or future execution needs."""
        datasets = self._catalog.datasets
        for name in datasets.names():
            upto = self._catalog.executions.floor(name, datasets.position(name))
            datasets.compact(spark, name, upto)
            if self._settings.keep_records_s:
                datasets.keep(name, self._settings.keep_records_s, upto)


# --- telemetry


REVIVE_S = 10.0  # between two starts


class Telemetry:
    """Keeps the telemetry job running. Call `look` regularly: it starts the job, and restarts it if it has failed."""

    def __init__(self, spark: SparkSession, store_url: str, catalog: Catalog) -> None:
        self._job = TelemetryJob(spark, store_url, catalog.warehouse, catalog.database)
        self._query: StreamingQuery | None = None
        self._tried_s = -REVIVE_S
        self._problem = ""

    def look(self) -> None:
        """Start the query if it does not run, at most once every `REVIVE_S`."""
        now_s = time.monotonic()
        if (self._query is not None and self._query.isActive) or now_s - self._tried_s < REVIVE_S:
            return
        self._tried_s = now_s
        if self._query is not None and (error := self._query.exception()) is not None:
            first = str(error).partition("\n")[0]
            if first != self._problem:
                log.warning("telemetry ended and is started again: %s", first)
            self._problem = first
        self._query = self._job.start()


# --- the engine


STARTING = "starting"
_LOOK_S = 0.5  # between two checks of the Java process
_STOP_WAIT_S = 20.0
_TAG = "execution"  # marks the jobs of executions; feeds end their own jobs


class SparkEngine:
    """Runs Spark in its own thread, because Spark takes seconds to start. Start it once, stop it once.

    Until Spark runs, the API serves what is stored. If the Java process ends by itself, the engine ends too and says
    why; the process should then be restarted.

    `session` opens Spark for the duration of a `with` block. `ended` is called from the engine's thread when the engine
    has ended, with the error or None.
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: ServiceSettings,
        session: Callable[[], AbstractContextManager[SparkSession]],
        store_url: str,
        ended: Callable[[BaseException | None], object],
        troubles: Troubles | None = None,
    ) -> None:
        self._troubles = troubles or Troubles(log)
        self._catalog = catalog
        self._settings = settings
        self._session = session
        self._store_url = store_url
        self._ended = ended
        self._spark: SparkSession | None = None
        self._jobs: dict[str, tuple[StoredChannel, ChannelJob]] = {}
        self._scheduler = Scheduler(catalog, self._execute, settings.executions_at_once, self._troubles)
        self._feeds = Feeds(catalog.database, catalog.datasets, store_url, self._committed, troubles=self._troubles)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live, name="spark", daemon=True)
        self._housekeeper = threading.Thread(target=self._keep_house, name="housekeeping", daemon=True)
        self.state = STARTING

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when Java has ended, or after a while: Java then ends with this process, because its pipe closes."""
        self._stopping.set()
        self._thread.join(_STOP_WAIT_S)

    @property
    def feeds(self) -> Feeds:
        return self._feeds

    @property
    def trouble(self) -> str:
        return self._troubles.problem

    @property
    def feeds_problem(self) -> str:
        return self._feeds.problem

    def analyse(self, channel: Channel, schemas: Schemas) -> Prepared:
        return analyse(self._ready(), channel, schemas)

    def load(self, name: str, file: Path, *, file_format: str, schema: str, key: str) -> None:
        loaded = self._catalog.datasets.load(self._ready(), name, file, file_format, schema, key)
        self._scheduler.committed(loaded.name)

    def changed(self) -> None:
        self._scheduler.changed()

    def problem(self, channel: StoredChannel) -> str:
        return self._scheduler.problem(channel)

    def _ready(self) -> SparkSession:
        if self._spark is None:
            raise EngineNotReady(f"Spark is {self.state}", starting=self.state == STARTING)
        return self._spark

    def _live(self) -> None:
        error: BaseException | None = None
        try:
            with self._session() as spark:
                if not str(spark.sparkContext.master).startswith("local["):  # there, executors are threads
                    require_shared(spark, self._catalog.warehouse.root)
                self._catalog.datasets.clean()  # a killed predecessor's Java process no longer writes
                self._run(spark)
        except Exception as failure:  # whatever it is, the process must learn of it and end
            error = failure
        finally:
            self.state = "stopped"
            self._spark = None
            self._ended(error)

    def _run(self, spark: SparkSession) -> None:
        self._spark = spark
        self._feeds.open(spark)
        self._scheduler.start()
        self._housekeeper.start()
        self.state = "running"
        log.info("Spark %s runs on %s", spark.version, spark.sparkContext.master)
        java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        telemetry = Telemetry(spark, self._store_url, self._catalog) if self._settings.telemetry else None
        try:
            while not self._stopping.wait(_LOOK_S):
                if java.poll() is not None:
                    raise ClusterError(f"Java ended with code {java.poll()}: see spark.log in the folder")
                if telemetry is not None:
                    telemetry.look()
        finally:
            self._stopping.set()
            self._wind_down(spark)

    def _wind_down(self, spark: SparkSession) -> None:
        """Cancel executions without waiting for them: what they did not commit is done after the next start."""
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs a traceback for each batch that is cut off
        logging.getLogger().addFilter(_is_not_of_py4j)  # py4j also logs to the root logger directly
        with contextlib.suppress(Exception):  # Java may be gone, which py4j reports in many ways
            spark.sparkContext.cancelJobsWithTag(_TAG)
        self._scheduler.stop()
        with contextlib.suppress(Exception):
            self._feeds.stop()  # the session stops the other queries

    def _execute(self, channel: StoredChannel, execution: Execution) -> None:
        known, job = self._jobs.get(channel.name, (None, None))
        if job is None or known != channel:  # new, or replaced
            job = ChannelJob(self._ready(), self._catalog, channel)
            self._jobs[channel.name] = (channel, job)
        context = self._ready().sparkContext  # what follows is for this thread's jobs
        context.addJobTag(_TAG)
        context.setLocalProperty(
            "spark.scheduler.pool", channel.name
        )  # channels share the cores, and feeds have theirs
        job.run(execution)

    def _committed(self, dataset: str, number: int) -> None:
        self._scheduler.committed(dataset)

    def _keep_house(self) -> None:
        housekeeping = Housekeeping(self._catalog, self._settings)
        while not self._stopping.wait(self._settings.housekeeping_s):
            try:
                housekeeping.run(self._ready())
            except Exception as error:  # Spark and py4j have many ways to fail; the next round tries again
                if not self._stopping.is_set():
                    self._troubles.note("housekeeping", error)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts
