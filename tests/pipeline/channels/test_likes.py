"""LIKE finds what Spark's own LIKE finds, and no pattern or record makes it take long."""

from __future__ import annotations

import random
import time

import pytest

from nearcast.pipeline.channels.execution import prepare, schemas_of
from nearcast.pipeline.channels.language import parse_channel

MANY = "%a" * 9 + "%b"
SIGNS = [
    "a",
    "b",
    "A",
    "%",
    "_",
    "\\%",
    "\\_",
    "\\\\",
    ".",
    "(",
    "[",
    "^",
    "$",
    "?",
    "é",
    "\n",
    "💥",
    " ",
    "-",
    "\\",
    "\x01",
]


def found(spark, texts: list[str], patterns: list[str], condition: str) -> set[tuple[str, str]]:
    """Pairs of a pattern and a text that it is like; `condition` has `:pattern`."""
    reports = spark.createDataFrame([(text,) for text in texts], "message STRING").coalesce(1)
    text = (
        f"CREATE CHANNEL c(pattern STRING) PERIOD 10 SECONDS AS SELECT r.message FROM NEW reports r WHERE {condition}"
    )
    subscribed = spark.createDataFrame([(one, one) for one in patterns], "subscription_id STRING, pattern STRING")
    data = {"reports": reports}
    prepared = prepare(parse_channel(text), schemas_of(data))
    return {(row[0], row[1]) for row in prepared.run(spark, subscribed, data, data).collect()}


def drawn(rng: random.Random, signs: list[str], count: int) -> list[str]:
    return sorted({"".join(rng.choice(signs) for _ in range(rng.randint(0, 6))) for _ in range(count)})


@pytest.mark.parametrize("operator", ["LIKE", "ILIKE", "NOT LIKE"])
def test_patterns_of_subscribers_find_what_spark_finds(spark, operator):
    rng = random.Random(3)
    patterns = [one for one in drawn(rng, SIGNS, 300) if "\x01" not in one]
    texts = drawn(rng, [sign for sign in SIGNS if len(sign) == 1], 150)
    pairs = spark.createDataFrame([(p, t) for p in patterns for t in texts], "p STRING, t STRING").coalesce(1)
    left = "REPLACE(REPLACE(REPLACE(p, r'\\\\', ''), r'\\%', ''), r'\\_', '')"
    fine = pairs.where(f"NOT CONTAINS({left}, r'\\')")
    expected = {(row.p, row.t) for row in fine.where(f"t {operator} p").collect()}
    assert len(expected) > 100
    assert found(spark, texts, patterns, f"r.message {operator} :pattern") == expected


@pytest.mark.parametrize(
    "pattern", ["%a%b%", "a%b%", "%a%b", "a%%b", "a_%b%.", "%(%A%", "100\\\\%%x%", "%'%b%", "%a%", "a%b"]
)
@pytest.mark.parametrize("operator", ["LIKE", "ILIKE", "NOT LIKE"])
def test_constant_patterns_find_what_spark_finds(spark, operator, pattern):
    texts = [
        "",
        "a",
        "b",
        "ab",
        "aab",
        "a.b",
        "b a b",
        "(A",
        "x(yAz",
        "100%x",
        "100%yx",
        "100x",
        "a'b",
        "a\nb\n",
        "AB",
        "axb.",
    ]
    literal = "'" + pattern.replace("'", "\\'") + "'"
    frame = spark.createDataFrame([(text,) for text in texts], "t STRING").coalesce(1)
    expected = {("s", row.t) for row in frame.where(f"t {operator} {literal}").collect()}
    assert found(spark, texts, ["s"], f"r.message {operator} {literal} AND :pattern = 's'") == expected


def test_a_pattern_with_a_sign_of_ours_or_a_wrong_escape_finds_nothing(spark):
    assert found(spark, ["a", "a\x01", "\\"], ["\x01%", "%\x02%", "\\a", "\\"], "r.message LIKE :pattern") == set()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("condition", ["r.message LIKE :pattern", f"r.message LIKE '{MANY}' AND :pattern = :pattern"])
def test_no_pattern_and_no_record_makes_others_wait(spark, condition):
    texts = ["a" * 60_000, "a" * 60_000 + "b"]
    began_s = time.monotonic()
    assert found(spark, texts, [MANY], condition) == {(MANY, texts[1])}
    assert time.monotonic() - began_s < 30.0
