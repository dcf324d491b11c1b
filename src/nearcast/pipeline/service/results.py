"""The stored results of executions: measured when they are committed, and served as JSON from their Parquet files.

Each type that a channel may select has a JSON form; the table is also in docs/data.md.

BOOLEAN, TINYINT ... BIGINT     as they are
FLOAT, DOUBLE                   a number; NaN and the infinities are null, which is all that JSON has for them
DECIMAL                         text, exact
STRING                          text; bytes that are not UTF-8 become U+FFFD
BINARY                          text in base64
DATE, TIMESTAMP, TIMESTAMP_NTZ  text: 2026-01-31, 2026-01-31T12:00:00.000000Z, the last one without Z;
                                null outside the years 1 to 9999
ARRAY, MAP, STRUCT              an array; an object with the keys, which are text; an object with the fields
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from nearcast.pipeline.catalog.executions import Size

# --- JSON forms


_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - of both kinds of times
_EPOCH_DAY = _EPOCH.date()


def json_column(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The values of a column as Python values that msgspec encodes to their JSON form."""
    form = _form(column.type)
    return [None if value is None else form(value) for value in _raw(column).to_pylist()]


def _raw(column: Any) -> Any:
    """In a form that Python can hold for every value: text as bytes, times as numbers."""
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


# --- measuring and reading


SUBSCRIPTION_ID = "subscription_id"
CACHE_BYTES = 64 << 20
_ROWS_READ_AT_ONCE = 1 << 16
_TIME_BYTES = 29  # "2026-01-31T12:00:00.000000Z"

Rows = list[dict[str, Any]]


def measured(folder: Path) -> dict[str, Size]:
    """subscription -> how many rows it has there, and roughly their size as JSON."""
    if not folder.exists():
        return {}
    parts = []
    for batch in pads.dataset(folder, format="parquet").to_batches(batch_size=_ROWS_READ_AT_ONCE):
        sizes = pa.table({"id": batch[SUBSCRIPTION_ID], "bytes": _json_bytes(batch)})
        parts.append(sizes.group_by("id").aggregate([("bytes", "count"), ("bytes", "sum")]))
    if not parts:
        return {}
    total = pa.concat_tables(parts).group_by("id").aggregate([("bytes_count", "sum"), ("bytes_sum", "sum")])
    columns = (total[name].to_pylist() for name in ("id", "bytes_count_sum", "bytes_sum_sum"))
    return {name: Size(rows, size) for name, rows, size in zip(*columns, strict=True)}


def _json_bytes(batch: pa.RecordBatch) -> pa.Array:
    """The size of each row: names, punctuation and each value as text; nested values by their size in memory."""
    names = [name for name in batch.schema.names if name != SUBSCRIPTION_ID]
    total = pa.repeat(pa.scalar(1 + sum(len(name) + 4 for name in names), pa.int64()), batch.num_rows)
    for name in names:
        column = batch[name]
        if pa.types.is_nested(column.type):
            size: Any = column.nbytes // max(1, batch.num_rows)
        else:
            if pa.types.is_temporal(column.type):
                lengths: Any = pc.if_else(pc.is_valid(column), _TIME_BYTES, 4)
            elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
                lengths = pc.add(pc.binary_length(column), 2)
            else:
                lengths = pc.binary_length(pc.cast(column, pa.string()))
            size = pc.fill_null(lengths, 4)  # null
        total = pc.add(total, pc.cast(size, pa.int64()) if isinstance(size, pa.Array) else size)
    return total


class Results:
    """Reads results; callers have checked in the catalogue that they exist.

    Several brokers fetch parts of the same execution within moments, so recent tables are kept in memory up to a limit
    of bytes, and the least recently used is dropped first. Larger tables are filtered while they are read.
    """

    def __init__(self, folder_of: Callable[[str, int], Path], cache_bytes: int = CACHE_BYTES) -> None:
        self._folder_of = folder_of
        self._most_bytes = cache_bytes
        self._tables: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, channel: str, number: int, subscriptions: Sequence[str]) -> dict[str, Rows]:
        """The rows of these subscriptions in an execution, in their JSON form; those without any are left out."""
        try:
            table = self._read(channel, number, pc.field(SUBSCRIPTION_ID).isin(list(subscriptions)))
        except pa.ArrowInvalid as error:  # retention may be removing the folder
            raise FileNotFoundError(str(error)) from None
        found: dict[str, Rows] = {}
        names = [name for name in table.column_names if name != SUBSCRIPTION_ID]
        columns = [json_column(table[name]) for name in names]
        for subscription, *values in zip(table[SUBSCRIPTION_ID].to_pylist(), *columns, strict=True):
            found.setdefault(subscription, []).append(dict(zip(names, values, strict=True)))
        return found

    def _read(self, channel: str, number: int, wanted: pc.Expression) -> pa.Table:
        cached = self._cached(channel, number)
        if cached is not None:
            return cached.filter(wanted)
        return pads.dataset(self._folder_of(channel, number), format="parquet").to_table(filter=wanted)

    def _cached(self, channel: str, number: int) -> pa.Table | None:
        """The whole table, read now if it is not in memory; None if it is too large for that."""
        key = (channel, number)
        with self._lock:
            if key in self._tables:
                self._tables.move_to_end(key)
                return self._tables[key]
        folder = self._folder_of(channel, number)
        stored_bytes = sum(file.stat().st_size for file in folder.rglob("*.parquet"))
        if stored_bytes * 8 > self._most_bytes:  # Parquet is compressed: in memory a table is a few times larger
            return None
        table = pads.dataset(folder, format="parquet").to_table()
        with self._lock:
            self._tables[key] = table
            while len(self._tables) > 1 and sum(t.nbytes for t in self._tables.values()) > self._most_bytes:
                self._tables.popitem(last=False)
        return table
