"""Records of a stream as columns, each with the reason why it cannot be one: null if it can.

One pass of `from_json` serves a good record. Only where it complains is the text read a second time, as strings, to
tell which field it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from nearcast.pipeline.schemas import Column as Wanted
from nearcast.pipeline.schemas import nullable_ddl
from nearcast.pipeline.transforms.msgpack import json_of_msgpack

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_CORRUPT = "_corrupt"
_STRICT = {"columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_BLANKS = " \t\r\n"
_CALENDAR = ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999")
_SHOWN_CHARACTERS = 40  # of a wrong value in a reason

ENVELOPE = ("kind", "topic", "publisher", "sequence", "published_at", "ingested_at", "payload", "ms", "seq")


def parse(frame: DataFrame, wanted: Sequence[Wanted], key: str, format: str) -> DataFrame:
    """Rows of the source in; out: the envelope, `record` (a struct with the wanted columns), and `reason`."""
    from pyspark.sql import functions as F

    payload = F.col("payload")
    text = payload.cast("string") if format == "json" else json_of_msgpack(payload)
    typed = F.from_json("text", f"{nullable_ddl(wanted)}, `{_CORRUPT}` STRING", _STRICT)
    opened = _opened(frame).withColumn("text", text).withColumn("record", typed)
    return opened.select(*ENVELOPE, "record", _reason(wanted, key, format).alias("reason"))


def _opened(frame: DataFrame) -> DataFrame:
    """The fields that collectors write, and the record's place in its stream."""
    from pyspark.sql import functions as F

    def text(name: str) -> Column:
        return F.col("fields")[name].cast("string")

    place = F.split("id", "-")
    return frame.select(
        F.coalesce(text("kind"), F.lit("record")).alias("kind"),
        text("text").alias("said"),
        *(text(name).alias(name) for name in ("topic", "publisher", "sequence")),
        F.timestamp_micros((text("published_at").try_cast("double") * 1e6).cast("bigint")).alias("published_at"),
        F.col("at").alias("ingested_at"),
        F.col("fields")["payload"].alias("payload"),
        place[0].cast("bigint").alias("ms"),
        place[1].cast("bigint").alias("seq"),
    )


def _reason(wanted: Sequence[Wanted], key: str, format: str) -> Column:
    from pyspark.sql import functions as F

    text, record = F.col("text"), F.col("record")
    bare = F.btrim(text, F.lit(_BLANKS))
    not_read = (
        F.when(F.try_parse_json(text).isNull(), f"the payload is not {format}")
        .when(~bare.startswith("{"), "the payload is not an object with fields")
        .when(~bare.endswith("}"), "something follows the object in the payload")
        .otherwise(F.coalesce(*_wrong(wanted), F.lit("a value inside a field is of the wrong type")))
    )
    return (
        F.when(F.col("kind") != "record", F.col("said"))
        .when(F.col("payload").isNull(), "there is no payload")
        .when(text.isNull(), f"the payload is not {format}, or has no JSON form")
        .when(~F.is_valid_utf8(text), "the payload is not UTF-8")
        .when(record.isNull() | record[_CORRUPT].isNotNull() | ~bare.endswith("}"), not_read)
        .otherwise(F.coalesce(*_missing(wanted, key), *_far(wanted), F.lit(None)))
    )


def _wrong(wanted: Sequence[Wanted]) -> Iterator[Column]:
    from pyspark.sql import functions as F

    record = F.col("record")
    texts = F.from_json("text", ", ".join(f"`{column.name}` STRING" for column in wanted))
    for column in wanted:
        value = texts[column.name]
        said = F.concat(F.lit(f"field {column.name} is not {column.type}: "), F.left(value, F.lit(_SHOWN_CHARACTERS)))
        yield F.when(record[column.name].isNull() & value.isNotNull(), said)


def _missing(wanted: Sequence[Wanted], key: str) -> Iterator[Column]:
    from pyspark.sql import functions as F

    record = F.col("record")
    for column in wanted:
        if column.name == key:
            yield F.when(record[column.name].isNull(), f"field {column.name}, the key, is missing")
        elif column.required:
            yield F.when(record[column.name].isNull(), f"field {column.name} is required, and missing")


def _far(wanted: Sequence[Wanted]) -> Iterator[Column]:
    """Times beyond SQL's calendar: Spark reads a date of the year 1,000,000, and fails where it is made a timestamp."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DataType

    for column in wanted:
        far = _is_far(F.col("record")[column.name], DataType.fromDDL(column.type))
        if far is not None:
            yield F.when(far, f"field {column.name} is not {column.type}: a time outside of the years 1 to 9999")


def _is_far(value: Column, kind: DataType) -> Column | None:
    """Whether a time in it is, however deep; None if its type has none."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DateType, MapType, StructType, TimestampNTZType, TimestampType

    if isinstance(kind, DateType | TimestampType | TimestampNTZType):
        return ~value.between(*(F.lit(end).cast(kind) for end in _CALENDAR))
    if isinstance(kind, StructType):
        parts = [_is_far(value[field.name], field.dataType) for field in kind.fields]
        found = [_surely(part) for part in parts if part is not None]
        return reduce(or_, found) if found else None
    if isinstance(kind, MapType):
        return _is_far(F.map_values(value), ArrayType(kind.valueType))
    if isinstance(kind, ArrayType) and _is_far(F.lit(None), kind.elementType) is not None:
        return F.exists(value, lambda one: _surely(_is_far(one, kind.elementType)))
    return None


def _surely(far: Column | None) -> Column:
    """What is null is not far."""
    from pyspark.sql import functions as F

    return F.lit(False) if far is None else F.coalesce(far, F.lit(False))
