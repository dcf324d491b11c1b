"""The types of columns as Arrow stores them, and as msgspec reads them from payloads.

msgspec reads and checks a whole payload in one step if it is given its type. There are two types for a schema. The
quick one fits nearly all payloads. The exact one also takes what only the schema's meaning allows: any value is a
STRING, as its JSON text.

Values with a form of their own in JSON (times, decimals) are read by a class each, in both types.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import msgspec
import pyarrow as pa
from sqlglot import exp

from nearcast.pipeline.channels.language import DIALECT
from nearcast.pipeline.storage import Column

# --- Arrow


_SCALARS = {
    exp.DType.TEXT: pa.string(),
    exp.DType.BOOLEAN: pa.bool_(),
    exp.DType.BINARY: pa.binary(),
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TIMESTAMP: pa.timestamp("us", "UTC"),
    exp.DType.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    exp.DType.TIMESTAMPNTZ: pa.timestamp("us"),
}
_DECIMAL_DIGITS = 10  # of a DECIMAL that does not say


@lru_cache(maxsize=1024)
def arrow_type(written: str) -> pa.DataType:
    """The Arrow type of a column's type, which the schema has checked."""
    return _arrow(exp.DataType.build(written, dialect=DIALECT))


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([(column.name, arrow_type(column.type)) for column in columns])


def _arrow(kind: exp.DataType) -> pa.DataType:
    inner = kind.expressions
    if kind.this is exp.DType.DECIMAL:
        sizes = [int(size.name) for size in inner]
        return pa.decimal128(*([*sizes, 0][:2] if sizes else (_DECIMAL_DIGITS, 0)))
    if kind.this is exp.DType.ARRAY:
        return pa.list_(_arrow(inner[0]))
    if kind.this is exp.DType.MAP:
        return pa.map_(_arrow(inner[0]), _arrow(inner[1]))
    if kind.this is exp.DType.STRUCT:
        return pa.struct([(field.name, _arrow(field.args["kind"])) for field in inner])
    return _SCALARS[kind.this]


# --- msgspec


class _AnyResult(type):
    """msgspec checks that what is read is an instance of the type that was asked for; here it is a plain value."""

    def __instancecheck__(cls, value: object) -> bool:
        return True


class Form(metaclass=_AnyResult):
    """A value with a form of its own: `read` makes it from what the payload has, or raises ValueError."""

    @classmethod
    def read(cls, found: Any) -> Any:
        raise ValueError(found)


def read_form(form: type[Form], found: Any) -> Any:
    """For msgspec's `dec_hook`: a value that msgspec itself does not know."""
    return form.read(found)


def quick_type(columns: Sequence[Column], required: Sequence[str]) -> type[msgspec.Struct]:
    """The type of payloads that need no second look. The fields are in the order of the columns."""
    fields = [(column.name, arrow_type(column.type)) for column in columns]
    return _struct(fields, str, frozenset(required))


def exact_type(column: Column) -> Any:
    """The type of one column's values; null is read as None."""
    return _value(arrow_type(column.type), Text) | None


def _struct(fields: Sequence[tuple[str, pa.DataType]], text: type, required: frozenset[str]) -> type[msgspec.Struct]:
    """Fields have names of our own: those in the schema need not be names in Python."""
    own = {f"c{number}": name for number, (name, _) in enumerate(fields)}
    made: list[Any] = []
    for attribute, (name, kind) in zip(own, fields, strict=True):
        value = _value(kind, text)
        made.append((attribute, value) if name in required else (attribute, value | None, None))
    return msgspec.defstruct("Payload", made, rename=own, kw_only=True, gc=False)


def _value(kind: pa.DataType, text: type) -> Any:
    if pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_binary(kind):
        return bytes
    if pa.types.is_list(kind):
        return list[_value(kind.value_type, text) | None]  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[str, _value(kind.item_type, text) | None]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        return _struct([(field.name, field.type) for field in kind], text, frozenset())
    return _form(kind)


@lru_cache(maxsize=256)
def _form(kind: pa.DataType) -> type[Form]:
    if pa.types.is_date(kind):
        return Day
    if pa.types.is_decimal(kind):
        return type("Decimal", (Decimal,), {"digits": kind.precision, "scale": kind.scale})
    return Instant if kind.tz else LocalTime


# --- values with a form of their own


OUTSIDE = "a time outside the years 1 to 9999"

_YEAR = re.compile(r"[+-]?\d{1,7}(?=-|$)")
_SHORT = re.compile(r"(\d{4})(?:-(\d{1,2}))?(?:-(\d{1,2}))?")
_BEGAN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Text(Form):
    """Text, or any other value as its JSON text."""

    @classmethod
    def read(cls, found: Any) -> str:
        return found if isinstance(found, str) else msgspec.json.encode(found).decode()


class Day(Form):
    """A DATE: `2026-01-31`, and what begins like that."""

    @classmethod
    def read(cls, found: Any) -> dt.date:
        if isinstance(found, dt.datetime):
            return found.date()
        return _parsed(found).date()


class LocalTime(Form):
    """A TIMESTAMP_NTZ: the time as written, whatever its zone."""

    @classmethod
    def read(cls, found: Any) -> dt.datetime:
        return (found if isinstance(found, dt.datetime) else _parsed(found)).replace(tzinfo=None)


class Instant(Form):
    """A TIMESTAMP: in UTC if it names no zone, or seconds since 1970."""

    @classmethod
    def read(cls, found: Any) -> dt.datetime:
        try:
            if isinstance(found, int | float) and not isinstance(found, bool):
                return _BEGAN + dt.timedelta(seconds=found)
            read = found if isinstance(found, dt.datetime) else _parsed(found)
            return read.replace(tzinfo=dt.UTC) if read.tzinfo is None else read.astimezone(dt.UTC)
        except OverflowError:
            raise ValueError(OUTSIDE) from None


class Decimal(Form):
    """A DECIMAL, as a number or as text, rounded half up."""

    digits: ClassVar[int]
    scale: ClassVar[int]

    @classmethod
    def read(cls, found: Any) -> decimal.Decimal:
        if isinstance(found, bool) or not isinstance(found, int | float | str | decimal.Decimal):
            raise ValueError(found)
        with decimal.localcontext(prec=cls.digits, rounding=decimal.ROUND_HALF_UP) as context:
            context.traps[decimal.InvalidOperation] = True
            try:
                read = decimal.Decimal(str(found)).quantize(decimal.Decimal(1).scaleb(-cls.scale))
            except decimal.InvalidOperation:
                raise ValueError(found) from None
        if not read.is_finite():
            raise ValueError(found)
        return read


def _parsed(found: Any) -> dt.datetime:
    if not isinstance(found, str):
        raise ValueError(found)
    text = found.strip()
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        year, short = _YEAR.match(text), _SHORT.fullmatch(text)
        if year and not 1 <= int(year.group()) <= dt.MAXYEAR:
            raise ValueError(OUTSIDE) from None
        if not short:
            raise
        return dt.datetime(*(int(part or 1) for part in short.groups()))  # type: ignore[arg-type]  # noqa: DTZ001
