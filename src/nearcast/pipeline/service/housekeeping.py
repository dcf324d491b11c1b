"""What keeps the data cluster's folder small: results that are too old go, and small files are merged.

Subscriptions of gateways that are gone end, so that Spark does not compute for nobody.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nearcast.pipeline import io
from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.service.settings import ServiceSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RELEASED_MOST = 10_000  # subscriptions in one round: the catalogue is locked meanwhile

log = logging.getLogger("nearcast.data")


class Housekeeping:
    """Each part can be stopped anywhere and done again."""

    def __init__(self, catalog: Catalog, settings: ServiceSettings) -> None:
        self._catalog = catalog
        self._settings = settings

    def run(self, spark: SparkSession) -> None:
        self.release_brokers()
        self.drop_results()
        self.forget_subscriptions()
        self.compact(spark)

    def release_brokers(self) -> None:
        """One broker in a round. It is forgotten first: if it comes back, it is told so and holds all its own again."""
        for name in self._catalog.brokers.silent(self._settings.broker_away_s)[:1]:
            held = len(self._catalog.subscriptions.held_by(name))
            hours = self._settings.broker_away_s / 3600
            log.warning("broker %s was not heard of for %g h: the %d subscriptions it holds end", name, hours, held)
            self._catalog.brokers.drop(name)
        self._catalog.subscriptions.release_of_strangers(RELEASED_MOST)

    def drop_results(self) -> None:
        """They count as gone first, then the files go, then the rows: nobody is sent to files that are not there."""
        expired = self._catalog.outcomes.expire(self._settings.keep_s, self._settings.keep_executions)
        for channel, number in expired:
            io.remove(self._catalog.warehouse.results(channel, number))
        self._catalog.outcomes.forget(expired)

    def forget_subscriptions(self) -> None:
        """Those that ended before the version that the oldest execution to come, or open, answers."""
        with self._catalog.database.transaction():
            needed = {execution.channel: execution.version for execution in self._catalog.executions.open()}
            for channel in self._catalog.channels.all():
                version = needed.get(channel.name, self._catalog.channels.numbers(channel.name).version)
                self._catalog.subscriptions.forget_removed(channel.name, version)

    def compact(self, spark: SparkSession) -> None:
        """Each dataset up to where every execution, open or to come, has read it."""
        datasets = self._catalog.datasets
        for name in datasets.names():
            upto = self._catalog.executions.floor(name, datasets.position(name))
            datasets.compact(spark, name, upto)
            if self._settings.keep_records_s:
                datasets.keep(name, self._settings.keep_records_s, upto)
