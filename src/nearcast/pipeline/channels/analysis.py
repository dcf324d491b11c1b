"""What only Spark knows about a channel: whether its query is valid, its result types, and what it would cast.

Spark analyses the query once, over empty datasets, when a channel is created or checked. A channel may select only
types that have a JSON form (`service/results.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from nearcast.pipeline.channels.execution import Prepared, prepare
from nearcast.pipeline.channels.language import DIALECT, Channel
from nearcast.pipeline.channels.validation import SUBSCRIPTION_ID, Schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType


NESTING_MAX = 20

_PLAIN = {
    *("string", "char", "varchar", "boolean", "binary", "date", "timestamp", "timestamp_ntz"),
    *("byte", "short", "integer", "long", "float", "double", "decimal"),
}


def undeliverable(kind: DataType, depth: int = 0) -> str:
    """Why results cannot have this type, as in "of type VARIANT"; empty if they can."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if depth > NESTING_MAX:
        return f"nested more than {NESTING_MAX} deep"
    if isinstance(kind, StructType):
        names = Counter(field.name.lower() for field in kind.fields)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            return f"a struct with two fields {twice[0]}"
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        if kind.keyType.typeName() != "string":
            return f"a map with keys of type {kind.keyType.simpleString().upper()}"
        inner = [kind.valueType]
    else:
        return "" if kind.typeName() in _PLAIN else f"of type {kind.simpleString().upper()}"
    return next((problem for part in inner if (problem := undeliverable(part, depth + 1))), "")


_WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")
_DATA_ERROR = "one value that does not fit would fail the query for all; write a CAST, which gives NULL instead"


def analyse(spark: SparkSession, channel: Channel, schemas: Schemas) -> Prepared:
    """The prepared channel, after Spark has analysed it over empty datasets; raises `InvalidChannel`."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    prepared = prepare(channel, schemas)
    empty = {name: _empty(spark, columns) for name, columns in schemas.items()}
    subscriptions = _empty(spark, {SUBSCRIPTION_ID: "STRING", **channel.parameters})
    _check_patterns(spark, channel)
    _check_formats(spark, channel)
    try:
        frame = prepared.run(spark, subscriptions, empty, empty)
    except (PySparkException, Py4JJavaError) as error:  # including a stack overflow
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
            hint = "CAST it to a type that results may have, such as STRING"
            raise channel.refuse(next(found, None), f"the result {field.name} is {problem}", hint)


def _check_patterns(spark: SparkSession, channel: Channel) -> None:
    """Regular expressions are Java's; `functions.py` ensures that they are constants."""
    from pyspark.errors import IllegalArgumentException

    kinds = (exp.RegexpLike, exp.RegexpExtract, exp.RegexpReplace, exp.RegexpSplit)
    for node in channel.select.find_all(*kinds):
        try:
            compiled = spark._jvm.java.util.regex.Pattern.compile(node.expression.name)  # type: ignore[union-attr]
        except IllegalArgumentException as error:
            problem = f"invalid regular expression {node.expression.name!r}: {_reason(error)}"
            raise channel.refuse(node, problem, "write a Java regular expression") from None
        group = int(node.text("group") or 1)
        if isinstance(node, exp.RegexpExtract) and group > compiled.matcher("").groupCount():
            raise channel.refuse(node, "regexp_extract of a group that does not exist", "add ( ) for it, or use 0")


def _check_formats(spark: SparkSession, channel: Channel) -> None:
    """Time formats are constants (`functions.py`), but Spark checks one only when it first meets a value."""
    from pyspark.errors import PySparkException

    calls = [node for node in channel.select.find_all(exp.TimeToStr, exp.Anonymous) if _has_format(node)]
    for node in calls:
        call = node.copy()
        value = exp.cast(exp.Literal.string("2026-01-31"), "timestamp" if isinstance(node, exp.TimeToStr) else "string")
        (call.this if isinstance(node, exp.TimeToStr) else call.expressions[0]).replace(value)
        try:
            spark.sql(f"SELECT {call.sql(DIALECT)}").collect()
        except PySparkException as error:
            raise channel.refuse(node, f"invalid time format: {_reason(error)}", "write a Spark time format") from None


def _has_format(node: exp.Expr) -> bool:
    is_named = isinstance(node, exp.Anonymous) and node.name.lower() in ("try_to_timestamp", "try_to_date")
    return isinstance(node, exp.TimeToStr) or (is_named and len(node.expressions) > 1)


def _check_casts(channel: Channel, frame: DataFrame) -> None:
    """Spark casts text implicitly where it meets another type, and large numbers where it expects small ones.

    Explicit casts are safe (`functions.py`).
    """
    for node in _expressions(frame._jdf.queryExecution().analyzed()):
        if node.getClass().getSimpleName() != "Cast" or node.evalMode().toString() == "TRY":
            continue
        source, target = node.child().dataType().simpleString(), node.dataType().simpleString()
        if _may_fail(source, target) and not _is_fine_constant(node):
            text = node.child().sql()
            name = text.replace("`", "").rpartition(".")[2].lower()
            columns = (column for column in channel.select.find_all(exp.Column) if column.name.lower() == name)
            shown = text.replace("`", "")
            raise channel.refuse(next(columns, None), f"Spark would cast {shown} to {target.upper()}", _DATA_ERROR)


def _may_fail(source: str, target: str) -> bool:
    """Whether some value of one type has no counterpart in the other. Any text can become bytes."""
    if source in _WHOLE_NUMBERS and target in _WHOLE_NUMBERS:
        return _WHOLE_NUMBERS.index(source) > _WHOLE_NUMBERS.index(target)
    return source.count("string") > target.count("string") and (source, target) != ("string", "binary")


def _is_fine_constant(cast: Any) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return bool(cast.foldable()) and cast.eval(None) is not None
    except (Py4JError, PySparkException):
        return False


def _expressions(plan: Any) -> Iterator[Any]:
    """All expressions of a Spark plan, including those of its subqueries."""
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


def explained(prepared: Prepared) -> dict[str, Any]:
    """What a checked channel reads and how its subscriptions are joined, as plain values.

    The REST API sends it and `nearcast channel check` shows it.
    """
    channel, rewritten = prepared.channel, prepared.rewritten
    return {
        "channel": channel.name,
        "period_s": channel.period_s,
        "continuous": channel.continuous,
        "parameters": dict(channel.parameters),
        "new_datasets": list(channel.new_datasets),
        "whole_datasets": list(channel.whole_datasets),
        "columns": list(rewritten.columns),
        "joins": [
            {"relation": join.relation, "kind": join.kind, "on": list(join.conditions)} for join in rewritten.joins
        ],
        "warnings": list(rewritten.warnings),
        "sql": rewritten.sql(pretty=True),
    }
