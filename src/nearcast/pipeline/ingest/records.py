"""Payloads become rows of a dataset's columns, or reasons why they cannot.

A payload that fits its type is read in one step by msgspec. Only one that does not is looked at field by field, which
finds its reason, or values that the exact types allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from json import JSONDecodeError, JSONDecoder
from typing import Any

import msgspec

from nearcast.pipeline.ingest.types import OUTSIDE, exact_type, quick_type, read_form
from nearcast.pipeline.storage import Column

Values = tuple[Any, ...]  # one for each column

_SHOWN_CHARACTERS = 40  # of a wrong value in a reason
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_CODECS: dict[str, Any] = {"json": msgspec.json, "msgpack": msgspec.msgpack}


class RecordReader:
    """Reads the payloads of one feed."""

    def __init__(self, columns: Sequence[Column], key: str, format: str) -> None:
        self._columns = tuple(columns)
        self._key = key
        self._format = format
        self._codec = _CODECS[format]
        self._required = frozenset(column.name for column in columns if column.required or column.name == key)
        quick = self._codec.Decoder(quick_type(columns, sorted(self._required)), dec_hook=read_form)
        self._quick: Callable[[bytes], msgspec.Struct] = quick.decode
        self._exact = [self._codec.Decoder(exact_type(column), dec_hook=read_form) for column in columns]
        self._fields = self._codec.Decoder(dict[str, msgspec.Raw])

    def rows(self, payloads: Sequence[bytes]) -> tuple[list[Values], dict[int, str]]:
        """The readable ones as rows, and the reasons of the others by their index."""
        rows: list[Values] = []
        reasons: dict[int, str] = {}
        quick, values = self._quick, msgspec.structs.astuple
        for index, payload in enumerate(payloads):
            try:
                rows.append(values(quick(payload)))
            except Exception:  # msgspec's errors, and all that the forms of values raise
                found = self._examined(payload)
                if isinstance(found, str):
                    reasons[index] = found
                else:
                    rows.append(found)
        return rows, reasons

    def _examined(self, payload: bytes) -> Values | str:
        """The values of all columns, or the reason why there are none."""
        try:
            fields = self._fields.decode(payload)
            if self._format == "json":
                payload.decode()
        except _UNREADABLE:
            return _unreadable(payload, self._format)
        found = [self._value(place, fields) for place in range(len(self._columns))]
        return next((each.text for each in found if isinstance(each, _Reason)), tuple(found))

    def _value(self, place: int, fields: dict[str, msgspec.Raw]) -> Any:
        column, raw = self._columns[place], fields.get(self._columns[place].name)
        try:
            value = self._exact[place].decode(raw) if raw is not None else None
        except _UNREADABLE as error:
            return _Reason(f"field {column.name} is not {column.type}: {self._wrong(raw, str(error))}")
        if value is None and column.name in self._required:
            which = ", the key, is missing" if column.name == self._key else " is required, but missing"
            return _Reason(f"field {column.name}{which}")
        return value

    def _wrong(self, raw: msgspec.Raw | None, problem: str) -> str:
        if OUTSIDE in problem:
            return OUTSIDE
        try:
            value = self._codec.decode(raw)
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        except (*_UNREADABLE, TypeError):
            text = bytes(raw or b"").decode("utf-8", "backslashreplace")
        return text[:_SHOWN_CHARACTERS]


class _Reason(msgspec.Struct):
    text: str


def _unreadable(payload: bytes, format: str) -> str:
    """Why a payload has no fields."""
    if format == "msgpack":
        return "the payload is not msgpack, or has no JSON form" if _is_broken(payload) else _NO_OBJECT
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "the payload is not UTF-8"
    blanks = len(text) - len(text.lstrip(_BLANKS))
    try:
        found, end = JSONDecoder().raw_decode(text, blanks)
    except (JSONDecodeError, RecursionError):
        return "the payload is not json"
    if not isinstance(found, dict):
        return _NO_OBJECT
    return "the payload has something after the object" if text[end:].strip(_BLANKS) else "the payload is not json"


def _is_broken(payload: bytes) -> bool:
    try:
        found = msgspec.msgpack.decode(payload)
    except _UNREADABLE:
        return True
    return isinstance(found, dict)  # with keys that are not text


_NO_OBJECT = "the payload is not an object with fields"
_BLANKS = " \t\r\n"
