"""Keeps the telemetry job running beside feeds and channels: a query that ends with an error is started again."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.jobs.telemetry import TelemetryJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

REVIVE_S = 10.0  # between two starts

log = logging.getLogger("nearcast.data")


class Telemetry:
    """`look` now and then; nothing runs before the first look."""

    def __init__(self, spark: SparkSession, store_url: str, catalog: Catalog) -> None:
        self._job = TelemetryJob(spark, store_url, catalog.warehouse, catalog.database)
        self._query: StreamingQuery | None = None
        self._tried_s = -REVIVE_S
        self._problem = ""

    def look(self) -> None:
        """Start the query if it does not run, at most once in a while."""
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
