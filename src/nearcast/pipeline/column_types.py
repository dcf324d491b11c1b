"""The types that a column may have: those that Spark reads from messages and Parquet stores, within limits."""

from __future__ import annotations

import re

from sqlglot import exp

from nearcast.errors import UsageError

DIALECT = "spark"
NESTING_MAX = 10  # of arrays, maps and structs in one another
DECIMAL_DIGITS_MAX = 38  # Spark's own

_FIELD_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
_SCALARS = {
    *(exp.DType.TEXT, exp.DType.BOOLEAN, exp.DType.BINARY),
    *(exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT),
    *(exp.DType.FLOAT, exp.DType.DOUBLE, exp.DType.DECIMAL),
    *(exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPNTZ),
}
_NESTED = {exp.DType.ARRAY: 1, exp.DType.MAP: 2, exp.DType.STRUCT: None}  # how many types each has inside


def checked_type(column: str, kind: exp.DataType) -> str:
    """The type as Spark writes it; raises UsageError."""
    for part in kind.find_all(exp.DataType):
        if part.this not in _SCALARS and part.this not in _NESTED:
            raise UsageError(f"the column {column} is of type {kind.sql(DIALECT)}: use a type of Spark, as STRING")
        if part.this is exp.DType.DECIMAL:
            _check_decimal(column, part)
        elif part.this in _NESTED:
            _check_nested(column, part)
    return str(kind.sql(DIALECT))


def _check_decimal(column: str, kind: exp.DataType) -> None:
    sizes = [int(size.name) for size in kind.expressions if size.name.isdigit()]
    digits, scale = [*sizes, 0][:2] if sizes else (10, 0)
    if len(sizes) != len(kind.expressions) or not 1 <= digits <= DECIMAL_DIGITS_MAX or scale > digits:
        raise UsageError(
            f"the column {column} is of type {kind.sql(DIALECT)}: give at most {DECIMAL_DIGITS_MAX} digits, "
            "and no more after the point, as DECIMAL(10, 2)"
        )


def _check_nested(column: str, kind: exp.DataType) -> None:
    parts, inside = kind.expressions, _NESTED[kind.this]
    if not parts or (inside and len(parts) != inside):
        raise UsageError(f"the column {column}: say what is in {kind.sql(DIALECT)}, as ARRAY<INT> or STRUCT<a: INT>")
    if kind.this is exp.DType.MAP and parts[0].this in _NESTED:
        raise UsageError(f"the column {column} has a map with keys of type {parts[0].sql(DIALECT)}: use a plain type")
    if kind.this is exp.DType.STRUCT:
        _check_fields(column, [part.name for part in parts])
    depth = sum(isinstance(part, exp.DataType) for part in _ancestors(kind))
    if depth > NESTING_MAX:
        raise UsageError(f"the column {column} is nested more than {NESTING_MAX} deep: store inner parts as STRING")


def _check_fields(column: str, names: list[str]) -> None:
    for name in names:
        if not _FIELD_NAME.fullmatch(name):
            raise UsageError(f"the field {name!r} of column {column}: use at most 64 letters, digits and _")
        if [other.lower() for other in names].count(name.lower()) > 1:
            raise UsageError(f"the column {column} names {name} twice (case does not tell names apart): rename one")


def _ancestors(node: exp.Expr) -> list[exp.Expr]:
    found = [node]
    while found[-1].parent is not None:
        found.append(found[-1].parent)
    return found
