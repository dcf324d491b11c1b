"""What only Spark knows about a channel: whether its query is one, what types its results have, what it would cast.

Asked once, over empty datasets, when a channel is created or checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from nearcast.pipeline.channels.execution import Prepared, prepare
from nearcast.pipeline.channels.language import Channel
from nearcast.pipeline.channels.result_types import undeliverable
from nearcast.pipeline.channels.validation import SUBSCRIPTION_ID, Schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DATA_ERROR = "one value that does not look like it would fail the query for all: write a CAST, which gives NULL then"


def analyse(spark: SparkSession, channel: Channel, schemas: Schemas) -> Prepared:
    """The prepared channel, after Spark's own analysis of it over empty datasets; raises `InvalidChannel`."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    prepared = prepare(channel, schemas)
    empty = {name: _empty(spark, columns) for name, columns in schemas.items()}
    subscriptions = _empty(spark, {SUBSCRIPTION_ID: "STRING", **channel.parameters})
    _check_patterns(spark, channel)
    try:
        frame = prepared.run(spark, subscriptions, empty, empty)
    except (PySparkException, Py4JJavaError) as error:  # also a stack that overflows
        raise channel.refuse(None, f"Spark refuses the query: {_reason(error)}", "correct the SELECT") from None
    _check_results(channel, frame)
    _check_casts(channel, frame)
    return prepared


def _empty(spark: SparkSession, columns: Mapping[str, str]) -> DataFrame:
    return spark.createDataFrame([], ", ".join(f"`{name}` {kind}" for name, kind in columns.items()))


def _reason(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else str(error)
    return text.partition("; line")[0].partition("\n")[0][:500]


def _check_results(channel: Channel, frame: DataFrame) -> None:
    for field in frame.schema.fields:
        problem = undeliverable(field.dataType)
        if problem:
            found = (one for one in channel.select.selects if one.alias_or_name.lower() == field.name.lower())
            hint = "CAST it to a type that results may have, as STRING"
            raise channel.refuse(next(found, None), f"the result {field.name} is {problem}", hint)


def _check_patterns(spark: SparkSession, channel: Channel) -> None:
    """Regular expressions are Java's, and constants: `tries.py` has seen to that."""
    from pyspark.errors import IllegalArgumentException

    kinds = (exp.RegexpLike, exp.RegexpExtract, exp.RegexpReplace, exp.RegexpSplit)
    for node in channel.select.find_all(*kinds):
        try:
            compiled = spark._jvm.java.util.regex.Pattern.compile(node.expression.name)  # type: ignore[union-attr]
        except IllegalArgumentException as error:
            problem = f"the regular expression {node.expression.name!r}: {_reason(error)}"
            raise channel.refuse(node, problem, "write one of Java") from None
        group = node.args.get("group")
        if isinstance(node, exp.RegexpExtract) and int(group.name if group else 1) > compiled.matcher("").groupCount():
            raise channel.refuse(node, "regexp_extract of a group that is not there", "put ( ) around it, or use 0")


def _check_casts(channel: Channel, frame: DataFrame) -> None:
    """Spark casts text by itself where something else stands beside it; what people cast is safe (`tries.py`)."""
    for node in _expressions(frame._jdf.queryExecution().analyzed()):
        if node.getClass().getSimpleName() != "Cast" or node.evalMode().toString() == "TRY":
            continue
        source, target = node.child().dataType().simpleString(), node.dataType().simpleString()
        if source.count("string") > target.count("string") and not _is_fine_constant(node):
            text = node.child().sql()
            name = text.replace("`", "").rpartition(".")[2].lower()
            columns = (column for column in channel.select.find_all(exp.Column) if column.name.lower() == name)
            shown = text.replace("`", "")
            raise channel.refuse(next(columns, None), f"Spark would cast {shown} to {target.upper()}", _DATA_ERROR)


def _is_fine_constant(cast: Any) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return bool(cast.foldable()) and cast.eval(None) is not None
    except (Py4JError, PySparkException):
        return False


def _expressions(plan: Any) -> Iterator[Any]:
    """All expressions of a plan of Spark, those of its subqueries too."""
    plans, found = [plan], []
    while plans:
        one = plans.pop()
        plans += _each(one.children())
        found += _each(one.expressions())
        while found:
            node = found.pop()
            yield node
            found += _each(node.children())
            if "Subquery" in node.getClass().getSimpleName() or node.getClass().getSimpleName() == "Exists":
                plans.append(node.plan())


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
