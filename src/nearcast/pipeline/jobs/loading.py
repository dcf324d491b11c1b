"""Files of a person, read as a frame: CSV with a header, JSON (one object a line, or an array), Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearcast.errors import UsageError
from nearcast.pipeline.schemas import Column, ddl_of, nullable_ddl, parse_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("csv", "json", "parquet")


def read_file(
    spark: SparkSession, file: Path, format: str, columns: Sequence[Column]
) -> tuple[DataFrame, tuple[Column, ...]]:
    """The file's rows and columns. Without columns given they are what Spark finds in the file."""
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}: use one of {', '.join(FORMATS)}")
    reader = spark.read.options(**_options(file, format))
    if columns:
        return reader.schema(nullable_ddl(columns)).format(format).load(str(file)), tuple(columns)
    frame = reader.format(format).load(str(file))
    found = [Column(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
    return frame, parse_schema(ddl_of(found))  # checks the names that the file brings


def checked_rows(frame: DataFrame, columns: Sequence[Column], key: str) -> int:
    """How many rows; raises UsageError for a value that is missing, or a key that comes twice."""
    from pyspark.sql import functions as F

    required = [column.name for column in columns if column.required or column.name == key]
    missing = [F.count_if(F.col(name).isNull()).alias(name) for name in required]
    keys = F.count_distinct(key) if key else F.count("*")
    row = frame.agg(F.count("*").alias("_rows"), keys.alias("_keys"), *missing).first()
    assert row is not None
    for name in required:
        if row[name]:
            raise UsageError(f"{row[name]} rows have no {name}, which is required: fill it in")
    if row["_keys"] != row["_rows"]:
        raise UsageError(f"{row['_rows'] - row['_keys']} rows repeat a value of the key {key}: keep one row of each")
    return int(row["_rows"])


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Errors of Spark in this block are the file's: say what is wrong with it."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except Py4JJavaError as error:  # what PySpark has no class for
        raise _unreadable(file, _told(error.java_exception)) from None
    except PySparkException as error:
        raise _unreadable(file, str(error)) from None


def _told(thrown: Any) -> str:
    """What Java says of the record that it could not read; else its last cause."""
    causes = [thrown]
    while (cause := causes[-1].getCause()) is not None:
        causes.append(cause)
    messages = [str(one.getMessage()) for one in causes]
    return next((message for message in messages if "MALFORMED" in message), messages[-1])


def _unreadable(file: Path, reason: str) -> UsageError:
    first = reason.partition("\n")[0]
    return UsageError(f"{file.name} cannot be read: {first}: correct it, or give the schema it has")


def _options(file: Path, format: str) -> dict[str, str]:
    if format == "csv":
        return {"header": "true", "mode": "FAILFAST", "inferSchema": "true", "enforceSchema": "false"}
    if format == "json":
        with file.open("rb") as opened:
            in_array = opened.read(64).lstrip().startswith(b"[")
        return {"mode": "FAILFAST", "multiLine": str(in_array).lower()}
    return {}
