"""Payloads become rows of columns, or dead letters whose reason names the field."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from nearcast.pipeline.ingest.records import RecordReader
from nearcast.pipeline.storage import parse_schema

WANTED = parse_schema(
    "user STRING, n INT NOT NULL, lat DOUBLE, at TIMESTAMP, tags ARRAY<INT>, ok BOOLEAN, s STRUCT<a: INT, b: STRING>"
)
GOOD = b'{"user": "ada", "n": 1}'


def one(schema: str, payload: bytes | dict[str, Any], format: str = "json") -> Any:
    """The row of a payload as a tuple, or the reason why there is none."""
    payload = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
    rows, reasons = RecordReader(parse_schema(schema), "", format).rows([payload])
    return reasons[0] if reasons else msgspec.to_builtins(rows[0], builtin_types=(dt.datetime, dt.date, Decimal, bytes))


def test_good_payloads_are_read_with_their_types() -> None:
    payload = (
        b' {"user": "ada", "n": 7, "lat": 1, "at": "2026-01-01T00:00:00Z", "tags": [1, null], "ok": true, "other": [],'
        b' "s": {"a": 1, "b": "x"}}\n'
    )
    numbered = b'{"user": "ada", "n": 7, "at": 1767225600, "lat": null}'
    (row, second), reasons = RecordReader(WANTED, "user", "json").rows([payload, numbered])
    assert reasons == {}
    assert row[:3] == ("ada", 7, 1.0)
    assert row[3] == second[3] == dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    assert (row[4], row[5], msgspec.to_builtins(row[6])) == ([1, None], True, {"a": 1, "b": "x"})
    assert second[2] is None


@pytest.mark.parametrize(
    ("schema", "value", "read"),
    [
        ("v STRING", 5, "5"),
        ("v STRING", {"a": [1]}, '{"a":[1]}'),
        ("v ARRAY<STRING>", ["a", 1, None], ["a", "1", None]),
        ("v TINYINT", -128, -128),
        ("v BIGINT", -(1 << 63), -(1 << 63)),
        ("v FLOAT", 1.5, 1.5),
        ("v BINARY", "AQI=", b"\x01\x02"),
        ("v DECIMAL(5, 2)", 1.005, Decimal("1.01")),
        ("v DECIMAL(5, 2)", "-999.99", Decimal("-999.99")),
        ("v DATE", "2026-01-31", dt.date(2026, 1, 31)),
        ("v DATE", "2026-1-3", dt.date(2026, 1, 3)),
        ("v DATE", "0001-01-01", dt.date(1, 1, 1)),
        ("v DATE", "9999-12-31", dt.date(9999, 12, 31)),
        ("v TIMESTAMP", "2026-01-31", dt.datetime(2026, 1, 31, tzinfo=dt.UTC)),
        ("v TIMESTAMP", "2026-01-31 10:00:00", dt.datetime(2026, 1, 31, 10, tzinfo=dt.UTC)),
        ("v TIMESTAMP", "2026-01-31T10:00:00.25+02:00", dt.datetime(2026, 1, 31, 8, 0, 0, 250_000, tzinfo=dt.UTC)),
        ("v TIMESTAMP", 1.5, dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=dt.UTC)),
        ("v TIMESTAMP_NTZ", "2026-01-31T10:00:00+02:00", dt.datetime(2026, 1, 31, 10)),  # noqa: DTZ001
        ("v MAP<STRING, DATE>", {"x": "2026-01-31"}, {"x": dt.date(2026, 1, 31)}),
        ("v STRUCT<`0`: INT, class: STRING>", {"0": 1, "class": "b"}, {"0": 1, "class": "b"}),
    ],
)
def test_values_are_read_by_type(schema: str, value: Any, read: Any) -> None:
    assert one(schema, {"v": value}) == (read,)


@pytest.mark.parametrize("value", ["+10000-01-01", "+1000000-01-01", "0000-12-31", "-5877641-06-23", "5881580-07-11"])
def test_a_day_beyond_the_calendar_is_a_dead_letter(value: str) -> None:
    """Spark would fail where it compares such a day with a timestamp, for all who subscribed and at every try."""
    for schema, record in (
        ("v DATE", value),
        ("v TIMESTAMP", value + "T00:00:00Z"),
        ("v STRUCT<d: DATE>", {"d": value}),
        ("v ARRAY<STRUCT<d: DATE>>", [{"d": None}, {"d": value}]),
        ("v MAP<STRING, DATE>", {"x": value}),
    ):
        assert one(schema, {"v": record}).endswith("a time outside the years 1 to 9999")


@pytest.mark.parametrize("value", ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00", 1e12, -1e12])
def test_an_instant_is_within_the_calendar_in_utc(value: Any) -> None:
    assert one("v TIMESTAMP", {"v": value}) == "field v is not TIMESTAMP: a time outside the years 1 to 9999"


BAD: list[tuple[bytes, str]] = [
    (b"", "the payload is not json"),
    (b"nonsense", "the payload is not json"),
    (b'{"user": "a", "n": 1', "the payload is not json"),
    (b"{'user': 'a', 'n': 1}", "the payload is not json"),
    (b'{"user": "a", "n": NaN}', "the payload is not json"),
    (b'{"user": "a", "n": 1} x', "the payload has something after the object"),
    (b'{"user": "a", "n": 1}{}', "the payload has something after the object"),
    (b'{"user": "\xff", "n": 1}', "the payload is not UTF-8"),
    (b"[1]", "the payload is not an object with fields"),
    (b'[{"user": "a", "n": 1}]', "the payload is not an object with fields"),
    (b"17", "the payload is not an object with fields"),
    (b"null", "the payload is not an object with fields"),
    (b"[" * 5000, "the payload is not json"),
    (b'{"user": "a", "n": "1"}', "field n is not INT: 1"),
    (b'{"user": "a", "n": 1.5}', "field n is not INT: 1.5"),
    (b'{"user": "a", "n": true}', "field n is not INT: true"),
    (b'{"user": "a", "n": 99999999999}', "field n is not INT: 99999999999"),
    (b'{"user": "a", "n": 1, "lat": "' + b"x" * 90 + b'"}', "field lat is not DOUBLE: " + "x" * 40),
    (b'{"user": "a", "n": 1, "lat": 1e999}', "field lat is not DOUBLE: 1e999"),
    (b'{"user": "a", "n": 1, "tags": [1, "x"]}', 'field tags is not ARRAY<INT>: [1,"x"]'),
    (b'{"user": "a", "n": 1, "at": "noon"}', "field at is not TIMESTAMP: noon"),
    (b'{"user": "a", "n": 1, "ok": "yes"}', "field ok is not BOOLEAN: yes"),
    (b'{"user": "a", "n": 1, "s": {"a": "x"}}', 'field s is not STRUCT<a: INT, b: STRING>: {"a":"x"}'),
    (b'{"user": "a"}', "field n is required, but missing"),
    (b'{"user": "a", "n": null}', "field n is required, but missing"),
    (b'{"n": 1}', "field user, the key, is missing"),
]


def test_bad_payloads_have_a_reason() -> None:
    payloads = [GOOD, *(payload for payload, _ in BAD), GOOD]
    rows, reasons = RecordReader(WANTED, "user", "json").rows(payloads)
    assert len(rows) == 2
    assert list(reasons.values()) == [reason for _, reason in BAD]
    assert list(reasons) == list(range(1, len(BAD) + 1))


def test_a_surrogate_alone_is_no_text() -> None:
    assert one("v STRING", b'{"v": "\\ud800"}').startswith("the payload is not json")


def test_msgpack_takes_the_same_road() -> None:
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    packed = [
        msgspec.msgpack.encode({"user": "ada", "n": 7, "at": noon, "tags": [1]}),
        msgspec.msgpack.encode({"user": "ada", "n": "x"}),
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode({1: 1}),
        b"\xc1",
        b"",
    ]
    (row,), reasons = RecordReader(WANTED, "user", "msgpack").rows(packed)
    assert (row[1], row[3]) == (7, noon)
    assert list(reasons.values()) == [
        "field n is not INT: x",
        "the payload is not an object with fields",
        "the payload is not msgpack, or has no JSON form",
        "the payload is not msgpack, or has no JSON form",
        "the payload is not msgpack, or has no JSON form",
    ]
    assert one("v DECIMAL", msgspec.msgpack.encode({"v": float("nan")}), "msgpack") == "field v is not DECIMAL: null"
