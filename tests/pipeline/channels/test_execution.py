"""The rewritten query gives, row for row, what the channel's query gives when it is run once for each subscription."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter

import pytest
from sqlglot import exp

from nearcast.errors import UsageError
from nearcast.pipeline.channels.analysis import analyse
from nearcast.pipeline.channels.execution import prepare, run_query, schemas_of
from nearcast.pipeline.channels.language import NEW_SUFFIX, InvalidChannel, parse_channel
from nearcast.pipeline.channels.rewrite import query_for_one, rewrite

REPORTS = "id INT, kind STRING, lat DOUBLE, lon DOUBLE, level INT, price DECIMAL(10,2), at TIMESTAMP, day DATE"
SHELTERS = "name STRING, kind STRING, lat DOUBLE, lon DOUBLE, low INT, high INT"
USERS = "user INT, lat DOUBLE, lon DOUBLE"
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
KINDS = ["fire", "flood", "storm", None]
# Poles, the date line from both sides, longitudes a turn away, and what is no position at all.
PLACES = [
    (90.0, 0.0), (90.0, 77.0), (-90.0, 12.0), (89.9999, 179.0), (-89.99, -3.0), (0.0, 180.0), (0.0, -180.0),
    (0.0, 179.9999), (0.0, -179.9999), (52.0, 13.0), (52.0, 373.0 - 720.0), (52.0, 13.001), (None, 3.0), (3.0, None),
    (91.0, 0.0), (float("nan"), 1.0), (1.0, float("nan")), (0.0, 0.0), (-0.0, 0.0), (51.99, -347.0),
]  # fmt: skip


def place(rng: random.Random) -> tuple[float | None, float | None]:
    if rng.random() < 0.4:
        return rng.choice(PLACES)
    if rng.random() < 0.6:
        return 52 + rng.gauss(0, 0.05), 13 + rng.gauss(0, 0.05)
    return math.degrees(math.asin(rng.uniform(-1, 1))), rng.uniform(-180, 180)


def reports(rng: random.Random, count: int) -> list[tuple]:
    rows = [
        (
            rng.randrange(count),
            rng.choice(KINDS),
            *place(rng),
            rng.choice([None, *range(10)]),
            None,
            START + dt.timedelta(minutes=rng.randrange(300)),
            (START + dt.timedelta(days=rng.randrange(20))).date(),
        )
        for _ in range(count)
    ]
    return rows + rows[:5]  # records may be there twice


def shelters(rng: random.Random, count: int) -> list[tuple]:
    return [
        (f"s{i % 7}", rng.choice(KINDS), *place(rng), *sorted([rng.randrange(9), rng.randrange(9)]))
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def data(spark):
    rng = random.Random(4)
    return {
        "reports": spark.createDataFrame(reports(rng, 150), REPORTS).coalesce(1).cache(),
        "shelters": spark.createDataFrame(shelters(rng, 25), SHELTERS).coalesce(1).cache(),
        "users": spark.createDataFrame([(i % 30, *place(rng)) for i in range(40)], USERS).coalesce(1).cache(),
    }


def literal(value: object) -> exp.Expr:
    if isinstance(value, float) and not math.isfinite(value):
        return exp.Literal.string(str(value))
    if isinstance(value, dt.date | dt.datetime):
        return exp.Literal.string(value.isoformat(" ") if isinstance(value, dt.datetime) else value.isoformat())
    return exp.convert(repr(value) if isinstance(value, float) else value)


def naive(spark, channel, rows, data) -> Counter:
    """One query for each subscription, put together with UNION ALL only to spare the start of each."""
    queries = []
    for subscription, *values in rows:
        literals = dict(zip(channel.parameters, map(literal, values), strict=True))
        query = exp.select(exp.alias_(exp.Literal.string(subscription), "subscription_id"), "q.*")
        queries.append(query.from_(query_for_one(channel, schemas_of(data), literals).subquery("q")))
    relations = data | {name + NEW_SUFFIX: frame for name, frame in data.items()}
    return counted(run_query(spark, exp.union(*queries, distinct=False), relations))


def counted(frame) -> Counter:
    return Counter(tuple(str(value) for value in row) for row in frame.collect())


def set_oriented(spark, channel, rows, data, **limits) -> Counter:
    schema = ", ".join(["subscription_id STRING", *(f"{n} {t}" for n, t in channel.parameters.items())])
    subscriptions = spark.createDataFrame(rows, schema).coalesce(1)
    return counted(prepare(channel, schemas_of(data), **limits).run(spark, subscriptions, data, data))


def check(spark, data, text: str, kinds: list[str], rows: list[tuple], least: int = 1) -> Counter:
    channel = parse_channel(text)
    assert [join.kind for join in rewrite(channel, schemas_of(data)).joins] == kinds
    rows = [(f"s{index}", *values) for index, values in enumerate(rows)]
    found = set_oriented(spark, channel, rows, data)
    assert found == naive(spark, channel, rows, data)
    assert found.total() >= least
    return found


def test_equality(spark, data):
    check(
        spark,
        data,
        "CREATE CHANNEL c(kind STRING) PERIOD 10 SECONDS AS SELECT * FROM NEW reports WHERE kind = :kind",
        ["hash"],
        [("fire",), ("flood",), ("fire",), (None,), ("hail",)],
        least=60,
    )


def test_null_safe_equality_and_an_expression_of_parameters(spark, data):
    check(
        spark,
        data,
        "CREATE CHANNEL c(kind STRING, n INT) PERIOD 10 SECONDS AS "
        "SELECT id, :n + level AS sum FROM NEW reports WHERE kind <=> :kind AND level * 2 = :n + 1",
        ["hash"],
        [("fire", 3), (None, 3), (None, None), ("flood", 7), (None, 3)],
    )


DISTANCE = (
    "CREATE CHANNEL c(lat DOUBLE, lon DOUBLE) PERIOD 10 SECONDS AS SELECT id, lat, distance(lat, lon, :lat, :lon) AS d "
    "FROM NEW reports WHERE distance(lat, lon, :lat, :lon) {}"
)


@pytest.mark.parametrize("limit", ["< 5000", "< 20015110"])
def test_distance_with_a_constant_radius(spark, data, limit):
    check(spark, data, DISTANCE.format(limit), ["grid"], PLACES[:12], 20)


def test_distance_with_a_radius_of_each_subscription(spark, data):
    rng = random.Random(6)
    radii = [0.0, 10.0, 3000.0, 25_000.0, 1e6, 1.2e7, -1.0, None, float("inf"), float("nan")] * 3
    places = [*PLACES, *(place(rng) for _ in range(10))]
    rows = [(*where, radius) for where, radius in zip(rng.sample(places, len(places)), radii, strict=True)]
    text = (
        "CREATE CHANNEL c(lat DOUBLE, lon DOUBLE, r DOUBLE) PERIOD 10 SECONDS AS SELECT id, kind "
        "FROM NEW reports AS e WHERE :r >= distance(:lat, :lon, e.lat, e.lon) AND kind <> 'storm'"
    )
    check(spark, data, text, ["grid"], rows, 50)


def test_spark_compiled_gives_the_same_as_interpreted(spark, data, request):
    channel = parse_channel(DISTANCE.format("< 5000"))
    rows = [(str(index), *where) for index, where in enumerate(PLACES)]
    expected = set_oriented(spark, channel, rows, data)
    request.getfixturevalue("compiled")
    assert set_oriented(spark, channel, rows, data) == expected


def test_a_radius_that_just_reaches_a_record_finds_it(spark):
    """The boundary: radii equal to distances that Spark computed itself."""
    rng = random.Random(7)
    points = [(i, None, *place(rng), None, None, None, None) for i in range(60)]
    data = {"reports": spark.createDataFrame(points, REPORTS).coalesce(1)}
    centres = [(52.0, 13.0), (89.99, 5.0), (0.0, -180.0)]
    every = parse_channel(DISTANCE.format("< 1e30"))
    found = set_oriented(spark, every, [(str(i), *c) for i, c in enumerate(centres)], data)
    rows = [(*centres[int(i)], float(d)) for i, _, _, d in found]
    text = DISTANCE.format("<= :r").replace("lon DOUBLE)", "lon DOUBLE, r DOUBLE)")
    assert len(rows) > 100
    channel = parse_channel(text)
    inclusive = set_oriented(spark, channel, [(str(i), *row) for i, row in enumerate(rows)], data)
    reached = {subscription for subscription, _, _, d in inclusive if float(d) == rows[int(subscription)][2]}
    assert len(reached) == len(rows)


@pytest.mark.parametrize(
    ("condition", "kind", "rows"),
    [
        ("level BETWEEN :a AND :b", "INT", [(1, 3), (3, 1), (4, 4), (None, 3), (0, None), (-9, 10**9), (1, 3)]),
        ("level > :a AND :b >= level", "DOUBLE", [(0.5, 3.0), (3.0, 3.0), (-math.inf, math.inf), (1.0, math.nan)]),
        ("lat BETWEEN :a AND :b", "DOUBLE", [(51.9, 52.1), (52.0, 52.0), (-1e300, 1e300), (math.nan, math.nan)]),
        ("at >= :a AND at < :b", "TIMESTAMP", [(START, START + dt.timedelta(minutes=20)), (START, START)]),
        ("day BETWEEN :a AND :b", "DATE", [(START.date(), START.date()), (START.date(), dt.date(2026, 1, 9))]),
    ],
)
def test_range(spark, data, condition, kind, rows):
    text = f"CREATE CHANNEL c(a {kind}, b {kind}) PERIOD 1 SECOND AS SELECT id, lat FROM NEW reports WHERE {condition}"
    check(spark, data, text, ["range"], rows)


def test_range_of_the_dataset_around_a_parameter(spark, data):
    text = "CREATE CHANNEL c(x INT) PERIOD 1 SECOND AS SELECT name FROM NEW shelters WHERE :x BETWEEN low AND high"
    check(spark, data, text, ["range"], [(3,), (0,), (8,), (None,), (3,)])


def test_anything_else_is_a_nested_loop(spark, data):
    text = "CREATE CHANNEL c(k STRING) PERIOD 1 SECOND AS SELECT id FROM NEW reports WHERE kind LIKE concat(:k, '%')"
    check(spark, data, text, ["nested loop"], [("f",), ("fl",), (None,)])
    channel = parse_channel(text)
    assert "reports.kind LIKE" in rewrite(channel, schemas_of(data)).warnings[0]
    with pytest.raises(Exception, match="more than 464 pairs"):
        set_oriented(spark, channel, [("1", "f"), ("2", "fl"), ("3", "g")], data, max_nested_loop_pairs=464)
    assert set_oriented(spark, channel, [("1", "f"), ("2", "f"), ("3", "f")], data, max_nested_loop_pairs=464)


NEAR_ME = (
    "CREATE CHANNEL c(who INT) PERIOD 1 SECOND AS SELECT r.id, u.lat, s.name FROM NEW reports AS r, users AS u "
    "{} JOIN shelters AS s ON r.kind = s.kind WHERE u.user = :who AND distance(r.lat, r.lon, u.lat, u.lon) < 9000"
)


def test_enrichment_near_a_user(spark, data):
    rows = [(user,) for user in [*range(9), 3, None]]
    check(spark, data, NEAR_ME.format(""), ["hash", "grid", "hash"], rows, 20)
    check(spark, data, NEAR_ME.format("LEFT"), ["grid", "hash", "hash"], rows, 20)


def test_parameters_in_the_condition_of_a_left_join(spark, data):
    text = (
        "CREATE CHANNEL c(k STRING, x INT) PERIOD 1 SECOND AS SELECT r.id, s.name, :x AS x FROM NEW reports r "
        "LEFT JOIN shelters s ON s.kind = r.kind AND s.low > :x WHERE r.kind = :k OR s.name IS NULL"
    )
    check(spark, data, text, ["nested loop", "hash"], [("fire", 3), ("fire", 8), (None, None), ("hail", 0)], 50)


@pytest.mark.parametrize("join", ["LEFT", "LEFT SEMI", "LEFT ANTI"])
def test_a_left_semi_or_anti_join_on_distance_uses_the_grid(spark, data, join):
    """Records that no shelter is near, or that have no position, are kept by LEFT and ANTI, once each."""
    text = (
        f"CREATE CHANNEL c(k STRING) PERIOD 1 SECOND AS SELECT r.id{', s.name' if join == 'LEFT' else ''} "
        f"FROM NEW reports r {join} JOIN shelters s ON distance(r.lat, r.lon, s.lat, s.lon) < 1000 * s.high "
        "WHERE r.kind = :k"
    )
    check(spark, data, text, ["hash", "grid"], [("fire",), ("flood",), (None,)], 10)


def test_a_left_join_between_bounds_uses_ranges(spark, data):
    text = (
        "CREATE CHANNEL c(k STRING) PERIOD 1 SECOND AS SELECT r.id, s.name FROM NEW reports r "
        "LEFT JOIN shelters s ON r.level BETWEEN s.low AND s.high WHERE r.kind = :k"
    )
    check(spark, data, text, ["hash", "range"], [("fire",), (None,)], 10)


def test_a_left_join_of_all_pairs_is_limited_as_an_inner_one_is(spark, data):
    """The grid would have to double the records, which LEFT must not."""
    text = (
        "CREATE CHANNEL c(k STRING) PERIOD 1 SECOND AS SELECT r.id, s.name FROM NEW reports r "
        "LEFT JOIN shelters s ON distance(r.lat, r.lon, s.lat, s.lon) < r.level WHERE r.kind = :k"
    )
    check(spark, data, text, ["hash", "nested loop"], [("fire",), (None,)], 10)
    channel = parse_channel(text)
    assert "s is joined by a nested loop (DISTANCE(" in rewrite(channel, schemas_of(data)).warnings[0]
    with pytest.raises(Exception, match="nested loop of r and s: more than 3000 pairs"):
        set_oriented(spark, channel, [("1", "fire")], data, max_nested_loop_pairs=3000)


def test_grouping_having_and_distinct(spark, data):
    text = (
        "CREATE CHANNEL c(k STRING, n INT) PERIOD 1 SECOND AS SELECT level, count(*) AS reports, max(id) AS last, "
        ":n AS n FROM NEW reports WHERE kind = :k GROUP BY level HAVING count(*) > :n"
    )
    check(spark, data, text, ["hash"], [("fire", 1), ("fire", 3), ("flood", 1), ("fire", 1)], 4)
    text = "CREATE CHANNEL c(k STRING) PERIOD 1 SECOND AS SELECT DISTINCT level FROM NEW reports WHERE kind = :k"
    check(spark, data, text, ["hash"], [("fire",), ("flood",)], 4)


def test_windows_are_of_each_subscription(spark, data):
    text = (
        "CREATE CHANNEL c(k STRING) PERIOD 1 SECOND AS SELECT id, count(*) OVER (PARTITION BY level) AS same, "
        "sum(level) OVER () AS all FROM NEW reports WHERE kind = :k"
    )
    check(spark, data, text, ["hash"], [("fire",), ("flood",)], 40)


def test_subqueries_and_named_queries_without_parameters(spark, data):
    text = (
        "CREATE CHANNEL c(k STRING) PERIOD 1 SECOND AS WITH safe AS (SELECT DISTINCT kind FROM shelters WHERE low < 5) "
        "SELECT r.id FROM NEW reports r JOIN safe ON safe.kind = r.kind JOIN (SELECT max(high) AS top FROM shelters) m "
        "ON m.top > r.level WHERE r.kind = :k AND EXISTS (SELECT 1 FROM users u WHERE u.user = r.id)"
    )
    check(spark, data, text, ["hash", "hash", "nested loop"], [("fire",), ("flood",), (None,)], 4)


def test_a_channel_without_parameters(spark, data):
    text = "CREATE CHANNEL c() PERIOD 1 SECOND AS SELECT id FROM NEW reports WHERE level > 8"
    check(spark, data, text, ["one set"], [(), ()], 4)


@pytest.mark.parametrize("text", [DISTANCE.format("< 5000"), NEAR_ME.format("").replace("who INT", "who DOUBLE")])
def test_empty_inputs_give_no_rows(spark, data, text):
    channel = parse_channel(text)
    none = {name: frame.limit(0) for name, frame in data.items()}
    values = (52.0, 13.0)[: len(channel.parameters)]
    assert not set_oriented(spark, channel, [("1", *values)], none)
    assert not set_oriented(spark, channel, [], data)


def test_inputs_that_lack_something_are_refused(spark, data):
    prepared = prepare(parse_channel(DISTANCE.format("< 1")), schemas_of(data))
    with pytest.raises(UsageError, match="lack reports"):
        prepared.run(spark, data["users"], {}, data)
    with pytest.raises(UsageError, match="lack subscription_id"):
        prepared.run(spark, data["users"], data, data)


def test_spark_has_the_last_word(spark, data):
    text = "CREATE CHANNEL c(k STRING) PERIOD 1 SECOND AS\nSELECT no_such(id) AS x FROM NEW reports WHERE kind = :k"
    with pytest.raises(InvalidChannel, match=r"(?i)line 2.*no_such"):
        analyse(spark, parse_channel(text), schemas_of(data))
    prepared = analyse(spark, parse_channel(text.replace("no_such", "abs")), schemas_of(data))
    assert prepared.rewritten.columns == ("x",)
