"""The JSON form of each type that a channel may select; the table is in docs/data.md.

BOOLEAN, TINYINT ... BIGINT     as they are
FLOAT, DOUBLE                   a number; NaN and the infinities are null, which is all that JSON has for them
DECIMAL                         text, as exact as it is
STRING                          text; bytes that are not UTF-8 become U+FFFD
BINARY                          text in base64
DATE, TIMESTAMP, TIMESTAMP_NTZ  text: 2026-01-31, 2026-01-31T12:00:00.000000Z, the last one without Z;
                                null outside of the years 1 to 9999
ARRAY, MAP, STRUCT              an array; an object by its keys, which are text; an object by its fields
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - of both kinds of times
_EPOCH_DAY = _EPOCH.date()


def json_column(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The values of a column as msgspec encodes them in their JSON form."""
    form = _form(column.type)
    return [None if value is None else form(value) for value in _raw(column).to_pylist()]


def _raw(column: Any) -> Any:
    """As what Python can hold whatever the value is: text as bytes, times as numbers."""
    return column.cast(_raw_type(column.type))


def _raw_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_map(kind):
        return pa.map_(_raw_type(kind.key_type), _raw_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_raw_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_raw_type(field.type)) for field in kind])
    return kind


def _form(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return lambda value: value.decode("utf-8", "replace")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_timestamp(kind):
        return lambda value: _time(value, "Z" if kind.tz else "")
    if pa.types.is_date32(kind):
        return _date
    if pa.types.is_floating(kind):
        return lambda value: value if math.isfinite(value) else None
    if pa.types.is_decimal(kind):
        return lambda value: f"{value:f}"
    if pa.types.is_map(kind):
        return _map_form(_form(kind.key_type), _form(kind.item_type))
    if pa.types.is_list(kind):
        return _list_form(_form(kind.value_type))
    if pa.types.is_struct(kind):
        return _struct_form({field.name: _form(field.type) for field in kind})
    return lambda value: value


def _list_form(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [None if value is None else inner(value) for value in values]


def _map_form(key: Callable[[Any], Any], inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda pairs: {key(name): None if value is None else inner(value) for name, value in pairs}


def _struct_form(inner: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    return lambda fields: {name: None if fields[name] is None else form(fields[name]) for name, form in inner.items()}


def _time(microseconds: int, zone: str) -> str | None:
    try:
        return (_EPOCH + dt.timedelta(microseconds=microseconds)).isoformat(timespec="microseconds") + zone
    except OverflowError:
        return None


def _date(days: int) -> str | None:
    try:
        return (_EPOCH_DAY + dt.timedelta(days=days)).isoformat()
    except OverflowError:
        return None
