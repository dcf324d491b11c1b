"""What is a channel and what is not: refused with line, column and what to do."""

from __future__ import annotations

import pytest

from nearcast.pipeline.channels.language import InvalidChannel, parse_channel
from nearcast.pipeline.channels.rewrite import rewrite

SCHEMAS = {
    "reports": {"id": "bigint", "kind": "string", "lat": "double", "lon": "double", "level": "int", "at": "timestamp"},
    "Shelters": {"name": "string", "Kind": "string", "lat": "double", "lon": "double"},
}
HEAD = "CREATE CHANNEL c(k STRING) PERIOD 10 SECONDS AS\n"


def refused(text: str) -> InvalidChannel:
    with pytest.raises(InvalidChannel) as caught:
        rewrite(parse_channel(text), SCHEMAS)
    assert str(caught.value).startswith(f"line {caught.value.line}, column {caught.value.column}: ")
    assert caught.value.hint
    return caught.value


def test_a_channel_is_read():
    channel = parse_channel(
        "-- near me\ncreate channel Near_Me(Kind string, r decimal(10, 2), t TIMESTAMP)\n"
        "period 1.5 seconds continuous as\nSELECT x.id "
        "FROM NEW Reports x JOIN shelters s ON s.kind = :KIND AND x.price < :r AND x.at > :t"
    )
    assert (channel.name, channel.period_s, channel.continuous) == ("near_me", 1.5, True)
    assert channel.parameters == {"kind": "STRING", "r": "DECIMAL(10, 2)", "t": "TIMESTAMP"}
    assert (channel.new_datasets, channel.whole_datasets) == (("reports",), ("shelters",))


def test_a_dataset_may_be_read_new_and_whole():
    text = HEAD + "SELECT a.id FROM NEW reports a, reports b WHERE a.id = b.id AND a.kind = :k"
    channel = parse_channel(text)
    assert (channel.new_datasets, channel.whole_datasets) == (("reports",), ("reports",))
    assert [join.kind for join in rewrite(channel, SCHEMAS).joins] == ["hash", "hash"]


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("", (1, 1), "expected CREATE"),
        ("CREATE TABLE x", (1, 8), "expected CHANNEL, found TABLE"),
        ("CREATE OR CHANNEL c(k INT)", (1, 11), "expected REPLACE, found CHANNEL"),
        ("CREATE OR REPLACE TABLE c", (1, 19), "expected CHANNEL, found TABLE"),
        ("CREATE CHANNEL (k STRING)", (1, 16), "name is missing"),
        ("CREATE CHANNEL c(k STRNG)", (1, 20), "unknown parameter type STRNG"),
        ("CREATE CHANNEL c(k INT, K INT)", (1, 25), "declared twice"),
        ("CREATE CHANNEL c(k INT)\n PERIOD 0 SECONDS", (2, 9), "invalid period 0"),
        ("CREATE CHANNEL c(k INT) PERIOD 5 MINUTES", (1, 34), "expected SECONDS"),
        ("CREATE CHANNEL c(k INT) PERIOD 5 SECONDS SELECT", (1, 42), "expected AS, found SELECT"),
        ("CREATE CHANNEL c(k INT) PERIOD 5 SECONDS AS SELECT 'x", (1, 1), "cannot be read"),
        ("CREATE CHANNEL c(kind STRING, user INT) PERIOD 1 SECOND AS", (1, 31), "parameter user is INT"),
        ("CREATE CHANNEL c(k DECIMAL(50, 2)) PERIOD 1 SECOND AS", (1, 20), "type DECIMAL(50,2)"),
        ("CREATE CHANNEL c(k DECIMAL(2, 5)) PERIOD 1 SECOND AS", (1, 20), "type DECIMAL(2,5)"),
        ("CREATE CHANNEL c(k DECIMAL(10, -2)) PERIOD 1 SECOND AS", (1, 20), "type DECIMAL(10,-2)"),
        ("CREATE CHANNEL c(k DECIMAL(x)) PERIOD 1 SECOND AS", (1, 20), "type DECIMAL(X)"),
    ],
)
def test_a_wrong_header_is_refused(text, place, problem):
    error = refused(text)
    assert (error.line, error.column) == place
    assert problem in error.problem


@pytest.mark.parametrize(
    ("select", "place", "problem"),
    [
        ("SELECT id FROM NEW reports\nWHERE kind = = :k", (3, 14), "invalid SQL"),
        ("SELECT id AS a b FROM NEW reports WHERE kind = :k", (2, 16), "invalid SQL"),
        ("SELECT id FROM NEW reports WHERE kind = :k AND nothing more", (2, 56), "invalid SQL"),
        ("SELECT id FROM reports WHERE kind = :k", (2, 8), "no dataset is read as NEW"),
        ("SELECT id FROM NEW nothing WHERE kind = :k", (2, 20), "unknown dataset nothing"),
        ("SELECT id,\n  wrong FROM NEW reports WHERE kind = :k", (3, 3), "column 'wrong' is unknown"),
        ("SELECT kind FROM NEW reports, shelters WHERE id = :k", (2, 8), "column 'kind' is unknown or ambiguous"),
        ("SELECT r.nope FROM NEW reports r WHERE kind = :k", (2, 10), "unknown column: nope"),
        ("SELECT id FROM NEW reports WHERE kind = :kk", (2, 41), ":kk is not declared"),
        ("SELECT id FROM NEW reports", (1, 18), "parameter k is never used"),
        ("SELECT id FROM NEW reports WHERE level = :k", (2, 42), "level is of type number, :k of type text"),
        ("SELECT id FROM NEW reports WHERE at BETWEEN :k AND now()", (2, 45), "of type time, :k of type text"),
        ("SELECT id FROM NEW reports WHERE distance(lat, lon, :k, 1) < 5", (2, 53), ":k in distance is of type text"),
        ("SELECT id FROM NEW reports WHERE distance(lat, lon, 0, 1) < :k", (2, 61), ":k is of type text"),
        ("SELECT id FROM NEW reports WHERE distance(lat, lon, 5) < 1 AND kind = :k", (2, 34), "distance has 3"),
        ("SELECT id, lat AS id FROM NEW reports WHERE kind = :k", (2, 12), "two columns of the result are named id"),
        ("SELECT id AS subscription_id FROM NEW reports WHERE kind = :k", (2, 8), "named subscription_id"),
        ("SELECT id FROM NEW reports WHERE kind = :k ORDER BY id", (2, 53), "ORDER BY is not allowed"),
        ("SELECT id FROM NEW reports WHERE kind = :k LIMIT 5", (2, 50), "LIMIT is not allowed"),
        ("SELECT max(id) AS m FROM NEW reports WHERE kind = :k", (2, 8), "an aggregate without GROUP BY"),
        ("SELECT id FROM NEW reports NATURAL JOIN shelters WHERE kind = :k", (2, 41), "a NATURAL join"),
        ("SELECT id FROM NEW reports r RIGHT JOIN shelters s ON s.kind = :k", (2, 41), "a RIGHT join"),
        ("SELECT id FROM (SELECT * FROM NEW reports WHERE kind = :k) t", (2, 56), ":k is not allowed in a subquery"),
        ("SELECT id FROM NEW reports WHERE kind = :k UNION SELECT 1", (2, 8), "not a single SELECT"),
        ("SELECT id FROM NEW db.reports WHERE kind = :k", (2, 20), "db.reports is not a dataset"),
        ("SELECT id, kind FROM NEW reports WHERE kind = :k GROUP BY ROLLUP(id, kind)", (2, 66), "ROLLUP"),
        (
            "SELECT s.kind FROM NEW reports r, shelters _parameters, shelters s WHERE r.kind = :k",
            (2, 35),
            "_parameters is",
        ),
    ],
)
def test_a_wrong_select_is_refused(select, place, problem):
    error = refused(HEAD + select)
    assert problem in error.problem
    assert (error.line, error.column) == place


@pytest.mark.parametrize("name", ["_subscriptions", "_sets", "_matches", "reports__new", "Reports__NEW", "`_x`"])
def test_names_of_the_rewriting_are_not_for_queries(name):
    """They would read everybody's subscriptions, or the new records of another dataset."""
    error = refused(
        HEAD
        + f"WITH {name} AS (SELECT kind FROM shelters)\nSELECT o.kind FROM NEW reports r, {name} o WHERE r.kind = :k"
    )
    assert "is reserved" in error.problem
    error = refused(HEAD + f"SELECT o.kind FROM NEW reports r, {name} o WHERE r.kind = :k")
    assert "is reserved" in error.problem


def test_a_cast_makes_types_agree():
    text = HEAD + "SELECT id FROM NEW reports WHERE level = CAST(:k AS INT)"
    assert [join.kind for join in rewrite(parse_channel(text), SCHEMAS).joins] == ["hash"]


def test_the_written_text_stays_free_of_names_of_the_rewriting():
    text = HEAD + "SELECT id FROM NEW reports WHERE upper(kind) LIKE :k"
    warnings = rewrite(parse_channel(text), SCHEMAS).warnings
    assert len(warnings) == 1
    assert "(UPPER(reports.kind) LIKE :k)" in warnings[0]
