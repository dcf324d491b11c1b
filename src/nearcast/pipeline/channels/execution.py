"""Executions of a channel: the query is prepared once, and each execution runs it over its inputs.

An execution is a DataFrame: nothing runs until it is written or counted.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from nearcast.errors import UsageError
from nearcast.pipeline.channels.functions import EXECUTION_TIME
from nearcast.pipeline.channels.language import DIALECT, NEW_SUFFIX, Channel
from nearcast.pipeline.channels.rewrite import MAX_NESTED_LOOP_PAIRS, SUBSCRIPTIONS, Rewritten, rewrite
from nearcast.pipeline.channels.validation import SUBSCRIPTION_ID, Schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_MARK = uuid.uuid4().hex  # a placeholder in the prepared text, which each execution replaces with its own mark


@dataclass(frozen=True)
class Prepared:
    """A channel bound to the schemas of its datasets, as the SQL text of one execution.

    Prepare again when a dataset gains a column.
    """

    channel: Channel
    schemas: Schemas
    rewritten: Rewritten
    text: str

    def run(
        self,
        spark: SparkSession,
        subscriptions: DataFrame,
        new_records: Mapping[str, DataFrame],
        datasets: Mapping[str, DataFrame],
        now_s: float = 0.0,
    ) -> DataFrame:
        """The channel's results for all subscriptions: subscription_id and the selected columns.

        `subscriptions` has subscription_id (unique) and a column for each parameter. `new_records` has the records
        since the last execution for each dataset that the channel reads as NEW; `datasets` has those that it reads
        whole. `now_s` is the time of the execution, the same when it is run again.
        """
        channel = self.channel
        _require("the new records", channel.new_datasets, new_records)
        _require("the datasets", channel.whole_datasets, datasets)
        _require("the subscriptions' columns", (SUBSCRIPTION_ID, *channel.parameters), subscriptions.columns)
        relations = {name: datasets[name] for name in channel.whole_datasets}
        relations |= {name + NEW_SUFFIX: new_records[name] for name in channel.new_datasets}
        times = {EXECUTION_TIME: int(now_s * 1e6)} if EXECUTION_TIME in self.text else {}
        return _bound(spark, self.text, {**relations, SUBSCRIPTIONS: subscriptions}, times)

    def certainly_empty(self, empty: Container[str]) -> bool:
        """Whether an execution has no results if these datasets have no new records, so that Spark need not run it."""
        return any(name in empty for name in self.rewritten.needed)


def prepare(channel: Channel, schemas: Schemas, max_nested_loop_pairs: int = MAX_NESTED_LOOP_PAIRS) -> Prepared:
    """Parse, bind and rewrite a channel once for many executions; raises `InvalidChannel`."""
    rewritten = rewrite(channel, schemas, max_nested_loop_pairs)
    names = [*channel.whole_datasets, *(name + NEW_SUFFIX for name in channel.new_datasets), SUBSCRIPTIONS]
    return Prepared(channel, schemas, rewritten, _with_views(rewritten.query, names))


def schemas_of(datasets: Mapping[str, DataFrame]) -> dict[str, dict[str, str]]:
    return {
        name: {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        for name, frame in datasets.items()
    }


def run_query(spark: SparkSession, query: exp.Expr, relations: Mapping[str, DataFrame]) -> DataFrame:
    """The DataFrame of a query over named relations."""
    return _bound(spark, _with_views(query, relations), relations)


def _with_views(query: exp.Expr, names: Container[str]) -> str:
    """The query's text with each relation read from its view."""

    def renamed(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Table) and node.name in names:
            alias = node.alias_or_name
            return exp.alias_(exp.to_table(_view(node.name, _MARK)), alias, table=True, quoted=True)
        return node

    return query.transform(renamed).sql(DIALECT)


def _bound(
    spark: SparkSession, text: str, relations: Mapping[str, DataFrame], arguments: dict[str, int] | None = None
) -> DataFrame:
    """Spark binds names immediately, so the views can be dropped afterwards."""
    with _views(relations) as mark:
        return spark.sql(text.replace(_MARK, mark), args=arguments or None)


@contextmanager
def _views(relations: Mapping[str, DataFrame]) -> Iterator[str]:
    """Temporary views under unique names: executions may run at the same time."""
    mark = uuid.uuid4().hex
    try:
        for name, frame in relations.items():
            frame.createOrReplaceTempView(_view(name, mark))
        yield mark
    finally:
        for name, frame in relations.items():
            frame.sparkSession.catalog.dropTempView(_view(name, mark))


def _view(name: str, mark: str) -> str:
    return f"nearcast_{name.strip('_')}_{mark}"


def _require(what: str, wanted: tuple[str, ...], there: Container[str]) -> None:
    missing = [name for name in wanted if name not in there]
    if missing:
        raise UsageError(f"{what} lack {', '.join(missing)}: give everything that the channel reads")
