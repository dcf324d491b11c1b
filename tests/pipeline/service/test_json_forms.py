"""Every type that a channel may select is delivered in its JSON form, nested ones too; the others are refused."""

from __future__ import annotations

import msgspec
import pytest

from nearcast.pipeline import storage
from nearcast.pipeline.channels.analysis import analyse
from nearcast.pipeline.channels.execution import schemas_of
from nearcast.pipeline.channels.language import InvalidChannel, parse_channel
from nearcast.pipeline.service.results import Results, measured

# Spark's literal -> its form in JSON.
FORMS = {
    "CAST(NULL AS STRING)": "null",
    "'fire \"1\"'": '"fire \\"1\\""',
    "CAST(X'ff41' AS STRING)": '"�A"',
    "true": "true",
    "CAST(1 AS TINYINT)": "1",
    "CAST(-2 AS SMALLINT)": "-2",
    "3": "3",
    "9223372036854775807L": "9223372036854775807",
    "CAST(0.5 AS FLOAT)": "0.5",
    "CAST(0.1 AS DOUBLE)": "0.1",
    "CAST('NaN' AS DOUBLE)": "null",
    "CAST('Infinity' AS FLOAT)": "null",
    "CAST(12.50 AS DECIMAL(10,2))": '"12.50"',
    "CAST(0 AS DECIMAL(38,18))": '"0.000000000000000000"',
    "X'ff00'": '"/wA="',
    "DATE '2026-01-31'": '"2026-01-31"',
    "DATE '+12026-01-31'": "null",
    "TIMESTAMP '2026-01-31 12:00:00.5'": '"2026-01-31T12:00:00.500000Z"',
    "TIMESTAMP '0001-01-01 00:00:00'": '"0001-01-01T00:00:00.000000Z"',
    "TIMESTAMP '+12026-01-31 12:00:00'": "null",
    "TIMESTAMP_NTZ '2026-01-31 12:00:00'": '"2026-01-31T12:00:00.000000"',
}
NESTED = {
    "array({0}, NULL)": "[{0},null]",
    "map('k', {0}, 'none', NULL)": '{{"k":{0},"none":null}}',
    "named_struct('A', {0}, 'b', NULL)": '{{"A":{0},"b":null}}',
    "array(named_struct('m', map('k', array({0}))))": '[{{"m":{{"k":[{0}]}}}}]',
}
REFUSED = ["parse_json('1')", "INTERVAL '1' DAY", "INTERVAL '1' YEAR", "TIME '10:00:00'", "map(1, 2)"]


def test_every_type_is_delivered_in_its_form(spark, tmp_path):
    wanted = list(FORMS.items())
    for shape, form in NESTED.items():
        wanted += [(shape.format(literal), form.format(shown)) for literal, shown in FORMS.items()]
    columns = ", ".join(f"{literal} AS c{index}" for index, (literal, _) in enumerate(wanted))
    storage.write(spark.sql(f"SELECT 's' AS subscription_id, {columns}"), tmp_path)
    (row,) = Results(lambda channel, number: tmp_path).rows("c", 1, ["s"])["s"]
    found = [msgspec.json.encode(value).decode() for value in row.values()]
    assert found == [shown for _, shown in wanted]
    assert measured(tmp_path)["s"].rows == 1


@pytest.mark.parametrize("literal", REFUSED)
@pytest.mark.parametrize("shape", ["{0}", "array({0})", "named_struct('a', {0})"])
def test_every_other_type_is_refused_when_the_channel_is_created(spark, literal, shape):
    reports = spark.sql(f"SELECT 1 AS id, {shape.format(literal)} AS odd")
    text = "CREATE CHANNEL c(n INT) PERIOD 10 SECONDS AS\nSELECT id, odd FROM NEW reports WHERE id = :n"
    with pytest.raises(InvalidChannel) as refused:
        analyse(spark, parse_channel(text), schemas_of({"reports": reports}))
    assert (refused.value.line, refused.value.column) == (2, 12)


def test_a_column_without_any_type_is_refused(spark):
    text = "CREATE CHANNEL c(n INT) PERIOD 10 SECONDS AS\nSELECT id, NULL AS odd FROM NEW reports WHERE id = :n"
    with pytest.raises(InvalidChannel, match="of type VOID"):
        analyse(spark, parse_channel(text), {"reports": {"id": "INT"}})
