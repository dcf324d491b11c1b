"""Payloads become columns, or dead letters whose reason names the field."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from nearcast.pipeline.jobs.feed import parse
from nearcast.pipeline.sources.valkey_streams import SCHEMA
from nearcast.pipeline.storage import parse_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WANTED = parse_schema(
    "user STRING, n INT NOT NULL, lat DOUBLE, at TIMESTAMP, tags ARRAY<INT>, ok BOOLEAN, s STRUCT<a: INT, b: STRING>"
)
GOOD = b'{"user": "ada", "n": 1}'


def parsed(spark: SparkSession, payloads: list[bytes | None], format: str = "json") -> list[Any]:
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    rows = [
        ("s", f"{i}-7", noon, {"topic": b"t", "published_at": b"1.5"} | ({"payload": p} if p is not None else {}))
        for i, p in enumerate(payloads)
    ]
    frame: DataFrame = spark.createDataFrame(rows, SCHEMA)
    return parse(frame, WANTED, "user", format).orderBy("ms").collect()


def test_good_payloads_are_read_with_their_types(spark: SparkSession) -> None:
    payload = (
        b' {"user": "ada", "n": 7, "lat": 1, "at": "2026-01-01T00:00:00Z", "tags": [1, 2], "ok": true, "other": [],'
        b' "s": {"a": 1, "b": "x"}}\n'
    )
    row, numbered = parsed(spark, [payload, b'{"user": "ada", "n": 7, "at": 1767225600, "lat": null}'])
    assert (row.reason, row.kind, row.topic, row.ms, row.seq) == (None, "record", "t", 0, 7)
    assert row.published_at == dt.datetime.fromtimestamp(1.5, tz=dt.UTC).replace(tzinfo=None)
    found = row.record
    assert (found.user, found.n, found.lat, found.tags, found.ok, found.s.b) == ("ada", 7, 1.0, [1, 2], True, "x")
    assert found["at"] == numbered.record["at"]
    assert numbered.reason is None
    assert numbered.record.lat is None


@pytest.mark.parametrize("value", ["0001-01-01", "9999-12-31", "1969-12-31", "2026-01-31"])
def test_days_of_the_calendar_are_read(spark: SparkSession, value: str) -> None:
    assert reasons(spark, {"d": value, "s": {"d": value}, "a": [{"d": value}], "m": {"x": value}}) == [None]


@pytest.mark.parametrize("value", ["+10000-01-01", "+1000000-01-01", "0000-12-31", "-5877641-06-23", "5881580-07-11"])
def test_a_day_beyond_the_calendar_is_a_dead_letter(spark: SparkSession, value: str) -> None:
    """Spark would fail where it compares such a day with a timestamp, for all who subscribed and at every try."""
    said = "outside the years 1 to 9999"
    for record in ({"d": value}, {"s": {"d": value}}, {"a": [{"d": None}, {"d": value}]}, {"m": {"x": value}}):
        (reason,) = reasons(spark, record)
        assert reason.endswith(said)
    (reason,) = reasons(spark, {"at": value + "T00:00:00Z"})
    assert reason


def reasons(spark: SparkSession, record: dict[str, Any]) -> list[str]:
    wanted = parse_schema(
        "d DATE, at TIMESTAMP, s STRUCT<d: DATE>, a ARRAY<STRUCT<d: DATE>>, m MAP<STRING, DATE>, n INT"
    )
    fields = {"topic": b"t", "published_at": b"1.5", "payload": msgspec.json.encode(record)}
    frame = spark.createDataFrame([("s", "1-7", dt.datetime(2026, 1, 1, tzinfo=dt.UTC), fields)], SCHEMA)
    return [row.reason for row in parse(frame, wanted, "", "json").select("reason").collect()]


BAD: list[tuple[bytes | None, str]] = [
    (None, "there is no payload"),
    (b"", "the payload is not json"),
    (b"nonsense", "the payload is not json"),
    (b'{"user": "a", "n": 1', "the payload is not json"),
    (b"{'user': 'a', 'n': 1}", "the payload is not json"),
    (b'{"user": "a", "n": 1} x', "the payload has something after the object"),
    (b'{"user": "\xff", "n": 1}', "the payload is not UTF-8"),
    (b"[1]", "the payload is not an object with fields"),
    (b'[{"user": "a", "n": 1}]', "the payload is not an object with fields"),
    (b"17", "the payload is not an object with fields"),
    (b"null", "the payload is not an object with fields"),
    (b'{"user": "a", "n": "1"}', "field n is not INT: 1"),
    (b'{"user": "a", "n": 1.5}', "field n is not INT: 1.5"),
    (b'{"user": "a", "n": 99999999999}', "field n is not INT: 99999999999"),
    (b'{"user": "a", "n": 1, "lat": "' + b"x" * 90 + b'"}', "field lat is not DOUBLE: " + "x" * 40),
    (b'{"user": "a", "n": 1, "tags": [1, "x"]}', 'field tags is not ARRAY<INT>: [1,"x"]'),
    (b'{"user": "a", "n": 1, "at": "noon"}', "field at is not TIMESTAMP: noon"),
    (b'{"user": "a", "n": 1, "ok": "yes"}', "field ok is not BOOLEAN: yes"),
    (b'{"user": "a", "n": 1, "s": {"a": "x"}}', "a value inside a field is of the wrong type"),
    (b'{"user": "a"}', "field n is required, but missing"),
    (b'{"user": "a", "n": null}', "field n is required, but missing"),
    (b'{"n": 1}', "field user, the key, is missing"),
]


def test_bad_payloads_have_a_reason(spark: SparkSession) -> None:
    rows = parsed(spark, [GOOD, *(payload for payload, _ in BAD), GOOD])
    assert [row.reason for row in rows] == [None, *(reason for _, reason in BAD), None]
    assert [row.payload for row in rows[1:-1]] == [payload for payload, _ in BAD]


def test_msgpack_takes_the_same_road(spark: SparkSession) -> None:
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    packed = [
        msgspec.msgpack.encode({"user": "ada", "n": 7, "at": noon, "tags": [1]}),
        msgspec.msgpack.encode({"user": "ada", "n": "x"}),
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode({(1, 2): 1}),
        b"\xc1",
        None,
    ]
    rows = parsed(spark, packed, "msgpack")
    assert (rows[0].reason, rows[0].record.n, rows[0].record["at"].hour) == (None, 7, 12)
    assert [row.reason for row in rows[1:]] == [
        "field n is not INT: x",
        "the payload is not an object with fields",
        "the payload is not msgpack, or has no JSON form",
        "the payload is not msgpack, or has no JSON form",
        "there is no payload",
    ]


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_what_a_collector_missed_is_told_in_its_words(spark: SparkSession, format: str) -> None:
    fields = {"kind": b"gap", "topic": b"t", "text": b"messages 3 to 5 are missing"}
    frame = spark.createDataFrame([("s", "1-0", None, fields)], SCHEMA)
    (row,) = parse(frame, WANTED, "", format).collect()
    assert (row.kind, row.topic, row.reason) == ("gap", "t", "messages 3 to 5 are missing")
