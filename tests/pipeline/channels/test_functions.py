"""What a channel may be made of: everything that is not listed is refused, with its place."""

from __future__ import annotations

import pytest

from nearcast.pipeline.channels.language import InvalidChannel, parse_channel
from nearcast.pipeline.channels.validation import bind

SCHEMAS = {"reports": {"id": "INT", "kind": "STRING", "at": "TIMESTAMP", "day": "DATE", "tags": "ARRAY<STRING>"}}
HEADER = "CREATE CHANNEL c(n INT) PERIOD 10 SECONDS AS\n"


def refusal(body: str) -> InvalidChannel:
    with pytest.raises(InvalidChannel) as refused:
        bind(parse_channel(HEADER + body), SCHEMAS)
    return refused.value


@pytest.mark.parametrize(
    "call",
    [
        "reflect('java.lang.System', 'exit', 3)",
        "`reflect`('java.lang.System', 'getenv', 'TOKEN')",
        "java_method('java.lang.System', 'getenv')",
        "try_reflect('java.lang.System', 'getenv')",
        "assert_true(r.id > 3)",
        "raise_error('no')",
        "input_file_name()",
        "current_user()",
        "version()",
        "repeat(r.kind, :n)",
        "space(:n)",
        "sequence(0, :n)",
        "array_repeat(r.kind, :n)",
        "format_string('%999999999d', r.id)",
        "from_json(r.kind, 'a INT')",
        "some_function(r.id)",
    ],
)
def test_a_function_that_is_not_listed_is_refused_with_its_place(call: str) -> None:
    found = refusal(f"SELECT r.id, {call} AS x FROM NEW reports r WHERE r.id = :n")
    assert (found.line, found.column) == (2, 14)
    assert "may not be used in a channel" in found.problem


@pytest.mark.parametrize(
    "call", ["rand()", "randn()", "uuid()", "shuffle(r.tags)", "monotonically_increasing_id()", "localtimestamp()"]
)
def test_what_differs_in_a_second_run_is_refused(call: str) -> None:
    assert "may not be used" in refusal(f"SELECT {call} AS x FROM NEW reports r WHERE r.id = :n").problem


@pytest.mark.parametrize("call", ["first(r.id)", "last(r.id)", "any_value(r.id)", "first_value(r.id)"])
def test_what_depends_on_the_order_of_records_is_refused(call: str) -> None:
    found = refusal(f"SELECT r.kind, {call} AS x FROM NEW reports r WHERE r.id = :n GROUP BY r.kind")
    assert "min_by" in found.hint


@pytest.mark.parametrize(
    "body",
    [
        "SELECT TRANSFORM (r.kind) USING 'cat' AS (x) FROM NEW reports r WHERE r.id = :n",
        "SELECT transform(r.tags, x -> x) AS x FROM NEW reports r WHERE r.id = :n",
        "SELECT r.id FROM NEW reports TABLESAMPLE (10 PERCENT) AS r WHERE r.id = :n",
        "SELECT /*+ BROADCAST(r) */ r.id FROM NEW reports r WHERE r.id = :n",
        "SELECT r.id FROM NEW reports r, parquet.`/etc/passwd` p WHERE r.id = :n",
        "SELECT r.id FROM NEW reports r, range(1000000000) p WHERE r.id = :n",
        "SELECT r.id FROM NEW reports r, identifier('reports') p WHERE r.id = :n",
        "SELECT r.kind COLLATE UTF8_LCASE AS x FROM NEW reports r WHERE r.id = :n",
        "WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM t) SELECT id FROM NEW reports, t WHERE a = :n",
        "SELECT r.id, (SELECT id FROM reports) AS x FROM NEW reports r WHERE r.id = :n",
        "SELECT CAST('now' AS TIMESTAMP) AS x FROM NEW reports r WHERE r.id = :n",
        "SELECT r.day + :n AS x FROM NEW reports r WHERE r.id = 1",
        "SELECT r.kind RLIKE CAST(:n AS STRING) AS x FROM NEW reports r WHERE r.id = 1",
        r"SELECT r.id FROM NEW reports r WHERE r.id = :n AND r.kind LIKE 'a\\b'",
        "SELECT date_format(r.at, r.kind) AS x FROM NEW reports r WHERE r.id = :n",
    ],
)
def test_other_parts_of_sql_that_run_read_or_fail_are_refused(body: str) -> None:
    refusal(body)


@pytest.mark.parametrize(
    "body",
    [
        "SELECT r.id, max(r.day) AS last FROM NEW reports r WHERE r.id = :n GROUP BY r.id HAVING count(*) > 1",
        "SELECT r.*, row_number() OVER (PARTITION BY r.kind ORDER BY r.id) AS place FROM NEW reports r WHERE r.id = :n",
        "SELECT r.id, t.tag FROM NEW reports r LATERAL VIEW explode(r.tags) t AS tag WHERE r.id = :n",
        "SELECT r.id FROM NEW reports r WHERE r.id = :n AND r.id > (SELECT avg(id) FROM reports)",
        "SELECT r.id FROM NEW reports r WHERE r.id = :n AND EXISTS (SELECT 1 FROM reports o WHERE o.id = r.id)",
        "SELECT r.id FROM NEW reports r WHERE r.id = :n AND r.at > now() - INTERVAL 10 MINUTES",
        "SELECT upper(trim(r.kind)) || '!' AS x, split(r.kind, ',')[0] AS y FROM NEW reports r WHERE r.id = :n",
        "WITH big AS (SELECT id FROM reports WHERE id > 5) SELECT r.id FROM NEW reports r JOIN big ON big.id = :n",
    ],
)
def test_ordinary_sql_is_not(body: str) -> None:
    bind(parse_channel(HEADER + body), SCHEMAS)
