"""Data that a query cannot work with gives NULL for its row, and the same rows in a second run."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from nearcast.pipeline.channels.analysis import analyse
from nearcast.pipeline.channels.execution import schemas_of
from nearcast.pipeline.channels.language import InvalidChannel, parse_channel

REPORTS = (
    "id INT, level INT, big BIGINT, message STRING, ratio DOUBLE, price DECIMAL(38,0), day DATE, at TIMESTAMP, "
    "tags ARRAY<STRING>, counts MAP<STRING, INT>"
)
LEAST_INT, MOST_INT, LEAST_BIG, MOST_BIG = -(2**31), 2**31 - 1, -(2**63), 2**63 - 1
DAY, AT = dt.date(2026, 1, 31), dt.datetime.fromisoformat("2026-01-31 12:00:00")  # Spark's times have no zone
GOOD = (1, 7, 8, "42", 2.5, Decimal(10), DAY, AT, ["a", "b"], {"x": 3})
BAD = (2, LEAST_INT, LEAST_BIG, "a word\\", 1e300, Decimal(10**37), DAY, AT, [], {})


@pytest.fixture(scope="module")
def reports(spark):
    return spark.createDataFrame([GOOD, BAD], REPORTS).coalesce(1).cache()


def run(spark, reports, parameter: str, values: list, select: str, where: str = "r.id > 0", rest: str = ""):
    text = (
        f"CREATE CHANNEL c(n {parameter}) PERIOD 10 SECONDS AS\nSELECT {select} FROM NEW reports r WHERE {where} {rest}"
    )
    channel = parse_channel(text)
    prepared = analyse(spark, channel, schemas_of({"reports": reports}))
    subscribed = spark.createDataFrame(
        [(f"s{i}", v) for i, v in enumerate(values)], f"subscription_id STRING, n {parameter}"
    )
    return prepared.run(spark, subscribed, {"reports": reports}, {}, now_s=AT.replace(tzinfo=dt.UTC).timestamp())


def test_one_subscription_whose_parameter_overflows_leaves_the_others_theirs(spark, reports):
    found = run(spark, reports, "INT", [MOST_INT, 0, 1], "r.id", "r.id = :n + 1").collect()
    assert sorted(tuple(row) for row in found) == [("s1", 1), ("s2", 2)]


def test_one_subscription_that_divides_by_zero_gets_null(spark, reports):
    found = run(spark, reports, "INT", [0, 7], "r.level / :n AS x", "r.id = 1").collect()
    assert sorted((row[0], row[1]) for row in found) == [("s0", None), ("s1", 1.0)]


# What each gives for the good record; for the bad one, NULL.
EXPRESSIONS = {
    "CAST(r.message AS INT)": 42,
    "r.message::BIGINT": 42,
    "to_date('20' || r.message || '-01-01')": dt.date(2042, 1, 1),
    "to_timestamp(r.message)": None,
    "r.big - 1": 7,
    "r.level - 1": 6,
    "r.big * :n": 16,
    "r.price * 100": Decimal(1000),
    "-r.level": -7,
    "abs(r.big)": 8,
    "floor(r.ratio)": 2,
    "ceil(r.ratio)": 3,
    "r.tags[0]": "a",
    "element_at(r.tags, 2)": "b",
    "element_at(r.tags, r.id - 1)": None,
    "r.counts['x']": 3,
    "date_add(r.day, r.level)": DAY + dt.timedelta(days=7),
    "add_months(r.day, r.level)": dt.date(2026, 8, 31),
    "r.id % (r.id - 2)": 0,
    "r.id / (2 - r.id)": 1.0,
    "r.message LIKE r.message": True,
    "try_to_date(r.message, 'dd')": None,
    "round(r.ratio, 1) * 1e300 * 0 / 0": None,
    "substring(r.message, CAST(r.big AS INT))": "",
}


def test_what_a_record_makes_impossible_is_null(spark, reports):
    select = ", ".join(f"{expression} AS x{index}" for index, expression in enumerate(EXPRESSIONS))
    good, bad = sorted(run(spark, reports, "INT", [2], f"r.id, {select}").collect(), key=lambda row: row.id)
    assert list(good)[2:] == list(EXPRESSIONS.values())
    assert [name for name, value in zip(EXPRESSIONS, list(bad)[2:], strict=True) if value is not None] == []


@pytest.mark.parametrize("day", ["CAST(:n AS DATE)", "to_date(:n)", "try_to_date(:n)", "DATE(:n)"])
def test_a_day_beyond_the_calendar_is_null(spark, reports, day):
    """Made a timestamp, it would end the query for all."""
    far, near = ["+1000000-01-01", "5881580-07-11", "-5877641-06-23"], ["2026-01-30", "9999-12-31"]
    select = f"{day} AS x, {day} < r.at AS y, hour({day}) AS z, r.id"
    found = run(spark, reports, "STRING", [*far, *near], select, "r.id = 1 AND :n = :n").collect()
    rows = sorted(tuple(row)[:4] for row in found)
    assert [row[1:] for row in rows[:3]] == [(None, None, None)] * 3
    assert [row[2:] for row in rows[3:]] == [(True, 0), (False, 0)]


def test_sums_that_overflow_are_null(spark, reports):
    select = (
        "r.day, sum(r.big + :n) AS total, avg(r.level) AS mean, count(*) AS rows, sum(DISTINCT r.price * 9) AS dear"
    )
    (row,) = run(spark, reports, "BIGINT", [-8], select, rest="GROUP BY r.day").collect()
    assert (row.total, row.mean, row.rows) == (0, (7 + LEAST_INT) / 2, 2), "one of two is NULL, and not counted"
    (row,) = run(spark, reports, "BIGINT", [LEAST_BIG], "r.day, sum(:n) AS total", rest="GROUP BY r.day").collect()
    assert row.total is None


def test_the_current_time_is_that_of_the_execution(spark, reports):
    select = "now() AS a, current_timestamp() AS b, current_date AS c, current_date() AS d"
    (row,) = run(spark, reports, "INT", [1], select, "r.id = :n AND r.at > now() - INTERVAL 10 MINUTES").collect()
    assert list(row)[1:] == [AT, AT, DAY, DAY]


def test_lists_are_sorted(spark, reports):
    select = "r.day, collect_list(r.id * :n) AS ids, collect_set(r.message) AS texts"
    (row,) = run(spark, reports, "INT", [-1], select, rest="GROUP BY r.day").collect()
    assert (row.ids, row.texts) == ([-2, -1], ["42", "a word\\"])


@pytest.mark.parametrize(
    ("select", "where", "problem"),
    [
        ("r.id", "r.id = :n AND r.message = 5", "Spark would cast r.message to BIGINT"),
        ("r.id", "r.id = :n AND r.level IN (1, 'two')", "Spark would cast 'two' to BIGINT"),
        ("coalesce(r.level, r.message) AS x", "r.id = :n", "Spark would cast r.message to BIGINT"),
        ("r.message + 1 AS x", "r.id = :n", "Spark would cast r.message to"),
        ("r.id", "r.id = :n AND r.at > 'yesteryear'", "Spark would cast 'yesteryear' to TIMESTAMP"),
        ("r.message RLIKE '(' AS x", "r.id = :n", "invalid regular expression '('"),
        ("regexp_extract(r.message, '(a)', 2) AS x", "r.id = :n", "a group that does not exist"),
        ("regexp_extract(r.message, '(a)', r.level) AS x", "r.id = :n", "the group is not a constant"),
        ("regexp_extract(r.message, '(a)', -1) AS x", "r.id = :n", "the group is not a constant, or is below 0"),
        ("size(r.id) AS x", "r.id = :n", "Spark refuses the query"),
        ("r.tags[r.big] AS x", "r.id = :n", "Spark would cast r.big to INT"),
        ("substring(r.message, r.big) AS x", "r.id = :n", "Spark would cast r.big to INT"),
        ("left(r.message, r.big) AS x", "r.id = :n", "Spark would cast r.big to INT"),
        ("(SELECT explode(collect_list(id)) FROM NEW reports) AS x", "r.id = :n", "may return several rows"),
        ("date_format(r.at, 'bbb') AS x", "r.id = :n", "invalid time format"),
        ("date_format(r.message, 'yyyy') AS x", "r.id = :n", "Spark would cast r.message to TIMESTAMP"),
        ("try_to_timestamp(r.message, 'bbb') AS x", "r.id = :n", "invalid time format"),
        ("try_to_date(r.message, 'bbb') AS x", "r.id = :n", "invalid time format"),
    ],
)
def test_what_would_fail_at_a_record_is_refused_before(spark, reports, select, where, problem):
    with pytest.raises(InvalidChannel) as refused:
        run(spark, reports, "INT", [1], select, where)
    assert problem in str(refused.value)
    assert refused.value.line == 2


def test_a_constant_that_reads_as_a_time_is_fine(spark, reports):
    assert run(spark, reports, "INT", [1], "r.id", "r.id = :n AND r.at > '2026-01-01'").count() == 1


# What docs/data.md lists, and sqlglot or a check of ours once stood in the way of.
LISTED = {
    "date_format(r.at, 'dd.MM.yyyy HH:mm')": "31.01.2026 12:00",
    "date_format(r.day, 'EEEE')": "Saturday",
    "md5(r.message)": "a1d0c6e83f027327d8461063f4ac58a6",
    "sha1(r.message)": "92cfceb39d57d914ed8b14d0e37643de0797ae56",
    "sha2(r.message, 256)": "73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049",
    "crc32(r.message)": 841265288,
    "log10(r.level * 1000 / 7)": 3.0,
    "log(10, 1000)": 3.0,
    "log2(r.big)": 3.0,
    "log(r.big) = ln(8)": True,
}


def test_listed_functions_give_what_spark_gives(spark, reports):
    select = ", ".join(f"{expression} AS x{index}" for index, expression in enumerate(LISTED))
    (row,) = run(spark, reports, "INT", [1], select, "r.id = :n").collect()
    assert dict(zip(LISTED, list(row)[1:], strict=True)) == LISTED
