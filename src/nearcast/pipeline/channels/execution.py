"""One execution of a channel as a DataFrame: nothing runs until somebody writes or counts it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlglot import exp

from nearcast.errors import UsageError
from nearcast.pipeline.channels.language import DIALECT, NEW_SUFFIX, Channel
from nearcast.pipeline.channels.rewrite import MAX_NESTED_LOOP_PAIRS, SUBSCRIPTIONS, Rewritten, rewrite
from nearcast.pipeline.channels.validation import SUBSCRIPTION_ID, Schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def execute(
    spark: SparkSession,
    channel: Channel,
    subscriptions: DataFrame,
    new_records: Mapping[str, DataFrame],
    datasets: Mapping[str, DataFrame],
    max_nested_loop_pairs: int = MAX_NESTED_LOOP_PAIRS,
) -> DataFrame:
    """The channel's results for all subscriptions: subscription_id and the selected columns.

    `subscriptions` has subscription_id (unique) and a column for each parameter. `new_records` has the records since
    the last execution of each dataset that the channel reads as NEW, `datasets` those that it reads whole.
    """
    _require("new records of the datasets", channel.new_datasets, new_records)
    _require("the datasets", channel.whole_datasets, datasets)
    _require("the subscriptions' columns", (SUBSCRIPTION_ID, *channel.parameters), subscriptions.columns)
    schemas = schemas_of({**datasets, **new_records})
    rewritten = rewrite(channel, schemas, max_nested_loop_pairs)
    relations = {name: datasets[name] for name in channel.whole_datasets}
    relations |= {name + NEW_SUFFIX: new_records[name] for name in channel.new_datasets}
    return run_query(spark, rewritten.query, {**relations, SUBSCRIPTIONS: subscriptions})


def analyse(spark: SparkSession, channel: Channel, schemas: Schemas) -> Rewritten:
    """The rewritten channel, after Spark's own analysis of it over empty datasets; raises `InvalidChannel`."""
    from pyspark.errors import AnalysisException, ParseException

    rewritten = rewrite(channel, schemas)
    empty = {name: _empty(spark, columns) for name, columns in schemas.items()}
    subscriptions = _empty(spark, {SUBSCRIPTION_ID: "STRING", **channel.parameters})
    log = logging.getLogger("SQLQueryContextLogger")  # pyspark prints a page of JSON for each refusal
    silent, log.disabled = log.disabled, True
    try:
        execute(spark, channel, subscriptions, empty, empty)
    except (AnalysisException, ParseException) as error:
        reason = str(error).partition("; line")[0].partition("\n")[0]
        raise channel.refuse(None, f"Spark refuses the query: {reason}", "correct the SELECT") from None
    finally:
        log.disabled = silent
    return rewritten


def schemas_of(datasets: Mapping[str, DataFrame]) -> dict[str, dict[str, str]]:
    return {
        name: {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        for name, frame in datasets.items()
    }


def run_query(spark: SparkSession, query: exp.Expr, relations: Mapping[str, DataFrame]) -> DataFrame:
    """The DataFrame of a query over named relations. Spark binds names at once, so the views can go again."""
    with _views(relations) as views:

        def renamed(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Table) and node.name in views:
                alias = node.alias_or_name
                return exp.alias_(exp.to_table(views[node.name]), alias, table=True, quoted=True)
            return node

        return spark.sql(query.transform(renamed).sql(DIALECT))


@contextmanager
def _views(relations: Mapping[str, DataFrame]) -> Iterator[dict[str, str]]:
    """Temporary views under names that nobody else has: executions may run at the same time."""
    mark = uuid.uuid4().hex
    views = {name: f"nearcast_{name.strip('_')}_{mark}" for name in relations}
    try:
        for name, frame in relations.items():
            frame.createOrReplaceTempView(views[name])
        yield views
    finally:
        for name, frame in relations.items():
            frame.sparkSession.catalog.dropTempView(views[name])


def _empty(spark: SparkSession, columns: Mapping[str, str]) -> DataFrame:
    return spark.createDataFrame([], ", ".join(f"`{name}` {kind}" for name, kind in columns.items()))


def _require(what: str, wanted: tuple[str, ...], there: Container[str]) -> None:
    missing = [name for name in wanted if name not in there]
    if missing:
        raise UsageError(f"{what} lack {', '.join(missing)}: give all that the channel reads")
