"""Payloads in msgpack as JSON text, so that both formats take the same road."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow

if TYPE_CHECKING:
    from pyspark.sql import Column


def json_of_msgpack(payload: Column) -> Column:
    """The same value as JSON; null where the payload is not msgpack, or has no JSON form."""
    from pyspark.sql import functions as F

    return F.arrow_udf(_converted, "string")(payload)  # type: ignore[call-overload]


def _converted(payloads: pyarrow.Array) -> pyarrow.Array:
    return pyarrow.array([_json(payload) for payload in payloads.to_pylist()], pyarrow.string())


def _json(payload: bytes | None) -> str | None:
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(payload)).decode() if payload is not None else None
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError, OverflowError, RecursionError):
        return None
