"""Schemas as people write them: what is accepted, and what is said to the rest."""

from __future__ import annotations

import pytest

from nearcast.errors import UsageError
from nearcast.pipeline.storage import Column, checked_dataset_name, checked_key, ddl_of, grown, parse_schema


def test_columns_come_out_as_spark_writes_them() -> None:
    columns = parse_schema("user_id STRING NOT NULL, lat double, n LONG, tags ARRAY<STRING>, d DECIMAL(10,2)")
    assert columns == (
        Column("user_id", "STRING", required=True),
        Column("lat", "DOUBLE"),
        Column("n", "BIGINT"),
        Column("tags", "ARRAY<STRING>"),
        Column("d", "DECIMAL(10, 2)"),
    )
    assert parse_schema(ddl_of(columns)) == columns


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("", "has no columns|cannot be read"),
        ("a", "'a' in the schema is not a column with a type"),
        ("a FOO", "cannot be read"),
        ("a VARCHAR(3)", "column a is of type VARCHAR"),
        ("a INT, A STRING", "names a twice"),
        ("_topic STRING", "bad column name '_topic': use"),
        ("`a b` INT", "bad column name 'a b': use"),
        ("a INT COMMENT 'x'", "more than a type and NOT NULL"),
        ("a INT, PRIMARY KEY (a)", "not a column with a type"),
        ("a INT) AS SELECT (1", "not a list of columns"),
    ],
)
def test_a_wrong_schema_is_refused_with_its_place(ddl: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_schema(ddl)


def test_a_schema_grows_by_columns_that_may_be_null() -> None:
    before = parse_schema("a INT NOT NULL, b STRING")
    assert grown("d", before, parse_schema("severity INT")) == (*before, Column("severity", "INT"))
    assert grown("d", before, parse_schema("b STRING")) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("b INT", "has the column b STRING, which cannot become b INT"),
        ("B STRING", "which cannot become B STRING"),
        ("c INT NOT NULL", "new column c is NOT NULL"),
    ],
)
def test_another_change_is_refused(change: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        grown("d", parse_schema("a INT, b STRING"), parse_schema(change))


def test_keys_and_names_are_checked() -> None:
    columns = parse_schema("User STRING, tags ARRAY<STRING>")
    assert checked_key("user", columns) == "User"
    assert checked_key("", columns) == ""
    with pytest.raises(UsageError, match="key 'id' is not a column of the schema: use one of User, tags"):
        checked_key("id", columns)
    with pytest.raises(UsageError, match="use a column of a plain type"):
        checked_key("tags", columns)
    for wrong in ("", "Reports", "a-b", "1a", "a" * 65):
        with pytest.raises(UsageError, match="lower-case letters"):
            checked_dataset_name(wrong)
    with pytest.raises(UsageError, match="does not end in __new"):
        checked_dataset_name("reports__new")
