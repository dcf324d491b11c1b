"""One execution of a channel: read what was noted when it was opened, run the query, write the results, commit.

It may stop at any point and be run again: what it reads is fixed, what it writes replaces what an earlier attempt
wrote, and the commit happens once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa

from nearcast.pipeline import io
from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.channels import StoredChannel
from nearcast.pipeline.catalog.executions import Execution, Measures, Size
from nearcast.pipeline.channels.execution import Prepared, prepare
from nearcast.pipeline.channels.language import parse_channel
from nearcast.pipeline.channels.validation import SUBSCRIPTION_ID
from nearcast.pipeline.service.results import measured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What a canonical parameter is in JSON; Spark casts it to the declared type. All others are text.
_JSON_TYPES = {
    "BOOLEAN": pa.bool_(),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), pa.int64()),
    **dict.fromkeys(("FLOAT", "DOUBLE"), pa.float64()),
}


class ChannelJob:
    """Runs the executions of one channel, one after the other, and keeps between them what does not change."""

    def __init__(self, spark: SparkSession, catalog: Catalog, channel: StoredChannel) -> None:
        self._spark = spark
        self._catalog = catalog
        self._channel = channel
        self._prepared: Prepared | None = None
        self._subscriptions: tuple[int, DataFrame] | None = None  # of a version

    def run(self, execution: Execution) -> bool:
        """False if the channel was dropped meanwhile: then nothing of the execution stays."""
        began_s = time.monotonic()
        new_rows = self._catalog.new_rows(execution)
        folder = self._catalog.warehouse.results(execution.channel, execution.number)
        index: dict[str, Size] = {}
        plan = ""
        if not self._bound().certainly_empty([name for name, rows in new_rows.items() if not rows]):
            frame = self._results(execution)
            io.write(frame, folder)
            index, plan = measured(folder), plan_of(frame)
        newest_s = self._catalog.newest_s(execution)
        measures = Measures(
            rows_in=sum(new_rows.values()),
            rows_out=sum(size.rows for size in index.values()),
            seconds=time.monotonic() - began_s,
            latency_s=self._catalog.clock() - newest_s if newest_s is not None else None,
        )
        if not self._catalog.executions.commit(execution, index, measures, plan):
            io.remove(folder)
            return False
        return True

    def _results(self, execution: Execution) -> DataFrame:
        datasets, inputs = self._catalog.datasets, execution.inputs
        new = {name: datasets.new(self._spark, name, after, upto) for name, (after, upto) in inputs.new.items()}
        whole = {name: datasets.whole(self._spark, name, upto) for name, upto in inputs.whole.items()}
        subscribed = self._subscribed(execution.version)
        return self._bound().run(self._spark, subscribed, new, whole, execution.opened_s)

    def _bound(self) -> Prepared:
        """Prepared again when a dataset has gained a column."""
        names = (*self._channel.new_datasets, *self._channel.whole_datasets)
        schemas = {name: self._catalog.datasets.schema(name) for name in names}
        if self._prepared is None or self._prepared.schemas != schemas:
            self._prepared = prepare(parse_channel(self._channel.text), schemas)
        return self._prepared

    def _subscribed(self, version: int) -> DataFrame:
        if self._subscriptions is None or self._subscriptions[0] != version:
            self._subscriptions = (version, self._read_subscriptions(version))
        return self._subscriptions[1]

    def _read_subscriptions(self, version: int) -> DataFrame:
        from pyspark.sql import functions as F

        rows = self._catalog.subscriptions.at(self._channel.name, version)
        columns = {SUBSCRIPTION_ID: pa.array([name for name, _ in rows], pa.string())}
        for name, kind in self._channel.parameters.items():
            values = [parameters[name] for _, parameters in rows]
            columns[name] = pa.array(values, _JSON_TYPES.get(kind, pa.string()))
        typed = (F.col(name).cast(kind).alias(name) for name, kind in self._channel.parameters.items())
        return self._spark.createDataFrame(pa.table(columns)).select(SUBSCRIPTION_ID, *typed)


def plan_of(frame: DataFrame) -> str:
    """Spark's physical plan of a frame, as text."""
    return str(frame._jdf.queryExecution().simpleString())
