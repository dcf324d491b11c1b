"""Schemas: what a person writes (`user_id STRING NOT NULL, lat DOUBLE`), checked, and the columns that are ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from nearcast.errors import UsageError
from nearcast.pipeline.channels.language import NEW_SUFFIX
from nearcast.pipeline.column_types import DIALECT, checked_type

SCHEMA_CHARACTERS_MAX = 100_000
COLUMNS_MAX = 1000
BATCH = "_batch"  # the number of the batch a row came with: in the files only, readers do not see it

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_DATASET_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FORM = "write it as in: user_id STRING NOT NULL, lat DOUBLE"


class Column(msgspec.Struct, frozen=True):
    """One column of a dataset."""

    name: str
    type: str  # as Spark writes it
    required: bool = False


# What a feed adds to each record: where it came from, when it was sent, and when the collector stored it.
METADATA = (Column("_topic", "STRING"), Column("_published_at", "TIMESTAMP"), Column("_ingested_at", "TIMESTAMP"))

DEAD_LETTERS = (
    Column("kind", "STRING"),  # record: could not be read; gap: was never received; loss: left the stream unread
    Column("reason", "STRING"),
    Column("topic", "STRING"),
    Column("payload", "BINARY"),  # its beginning
    Column("publisher", "STRING"),
    Column("sequence", "STRING"),
    Column("published_at", "TIMESTAMP"),
    Column("ingested_at", "TIMESTAMP"),
)


@lru_cache(maxsize=256)
def parse_schema(ddl: str) -> tuple[Column, ...]:
    """The columns that a person wrote down; raises UsageError."""
    columns = tuple(_column(node) for node in _definitions(ddl))
    if not columns:
        raise UsageError(f"the schema has no columns: {_FORM}")
    if len(columns) > COLUMNS_MAX:
        raise UsageError(f"the schema has {len(columns)} columns: give at most {COLUMNS_MAX}")
    names = [column.name.lower() for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the schema names {name} twice (case does not tell names apart): rename one")
    return columns


def _definitions(ddl: str) -> list[exp.Expr]:
    shown = ddl if len(ddl) < 200 else f"{ddl[:200]}..."
    if len(ddl) > SCHEMA_CHARACTERS_MAX:
        raise UsageError(f"the schema has {len(ddl)} characters: give at most {SCHEMA_CHARACTERS_MAX}")
    try:
        parsed = parse_one(f"CREATE TABLE t (\n{ddl}\n)", dialect=DIALECT)
    except SqlglotError as error:
        raise UsageError(f"the schema {shown!r} cannot be read ({_reason(error)}): {_FORM}") from None
    except RecursionError:
        raise UsageError(f"the schema {shown!r} is nested too deep: {_FORM}") from None
    if not isinstance(parsed, exp.Create) or not isinstance(parsed.this, exp.Schema) or parsed.args.get("expression"):
        raise UsageError(f"the schema {shown!r} is not a list of columns: {_FORM}")
    return list(parsed.this.expressions)


def ddl_of(columns: Iterable[Column]) -> str:
    """The inverse of `parse_schema`."""
    return ", ".join(f"`{column.name}` {column.type}{' NOT NULL' if column.required else ''}" for column in columns)


def nullable_ddl(columns: Iterable[Column]) -> str:
    """For files and frames: what is required was checked on the way in."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)


def grown(name: str, before: Sequence[Column], after: Sequence[Column]) -> tuple[Column, ...]:
    """The columns of a dataset after a change of its schema; raises UsageError unless it only adds columns."""
    known = {column.name.lower(): column for column in before}
    added = [column for column in after if column.name.lower() not in known]
    for column in after:
        old = known.get(column.name.lower(), column)
        if (old.name, old.type) != (column.name, column.type):
            raise UsageError(
                f"dataset {name} has the column {old.name} {old.type}, which cannot become {column.name} "
                f"{column.type}: add a column with another name, or drop the dataset and make it anew"
            )
    for column in added:
        if column.required and before:
            raise UsageError(f"the new column {column.name} is NOT NULL, but older records lack it: leave that out")
    return (*before, *added)


def checked_key(key: str, columns: Sequence[Column]) -> str:
    """The key under the name that the schema gives it; raises UsageError if there is no such column."""
    if not key:
        return ""
    found = [column for column in columns if column.name.lower() == key.lower()]
    if not found:
        there = ", ".join(column.name for column in columns)
        raise UsageError(f"the key {key!r} is not a column of the schema: use one of {there}")
    if "<" in found[0].type:
        raise UsageError(f"the key {key!r} is of type {found[0].type}: use a column of a plain type")
    return found[0].name


def checked_dataset_name(name: str) -> str:
    if not _DATASET_NAME.fullmatch(name):
        raise UsageError(f"the name {name!r}: use at most 64 lower-case letters, digits and _, a letter first")
    if name.endswith(NEW_SUFFIX):
        raise UsageError(f"the name {name!r}: channels call new records so, choose one that does not end {NEW_SUFFIX}")
    return name


def _column(node: exp.Expr) -> Column:
    kind = node.args.get("kind") if isinstance(node, exp.ColumnDef) else None
    if not isinstance(kind, exp.DataType):
        raise UsageError(f"{node.sql(DIALECT)!r} in the schema is not a column with its type: {_FORM}")
    if not _NAME.fullmatch(node.name):
        raise UsageError(f"the column {node.name!r}: use at most 64 letters, digits and _, a letter first")
    written = checked_type(node.name, kind)
    constraints = [constraint.kind for constraint in node.args.get("constraints") or ()]
    if not all(isinstance(found, exp.NotNullColumnConstraint) for found in constraints):
        raise UsageError(f"the column {node.name} has more than a type and NOT NULL: leave the rest out")
    return Column(node.name, written, required=bool(constraints))


def _reason(error: SqlglotError) -> str:
    return str(error).splitlines()[0].partition(". Line")[0]
