"""Equalities with parameters become one 64-bit key, where that is right."""

from __future__ import annotations

import pytest

from nearcast.pipeline.channels.language import parse_channel
from nearcast.pipeline.channels.rewrite import rewrite

SCHEMAS = {"reports": {"kind": "STRING", "district": "INT", "number": "BIGINT", "lat": "DOUBLE"}}


def joined(parameters: str, condition: str) -> str:
    text = f"CREATE CHANNEL c({parameters}) PERIOD 1 SECONDS AS SELECT r.number FROM NEW reports AS r WHERE {condition}"
    return " ".join(rewrite(parse_channel(text), SCHEMAS).sql().replace("`", "").split())


def test_a_text_and_a_number_are_one_key_and_both_are_checked() -> None:
    sql = joined("kind STRING, district INT", "r.kind = :kind AND :district = r.district")
    one, other = (
        f"XXHASH64(TRY_CAST({name}.kind AS STRING), TRY_CAST({name}.district AS BIGINT))"
        for name in ("r", "_parameters")
    )
    assert f"ON {one} = {other} " in sql
    assert "r.kind BETWEEN _parameters.kind AND _parameters.kind" in sql
    assert "r.district BETWEEN _parameters.district AND _parameters.district" in sql


def test_other_conditions_stay() -> None:
    sql = joined("kind STRING, low DOUBLE", "r.kind = :kind AND r.lat > :low")
    assert "XXHASH64(TRY_CAST(r.kind AS STRING)) = XXHASH64(TRY_CAST(_parameters.kind AS STRING))" in sql
    assert "r.lat > _parameters.low" in sql


@pytest.mark.parametrize(
    ("parameters", "condition"),
    [
        ("district INT", "r.district = :district"),  # one number is a key as it is
        ("lat DOUBLE, district INT", "r.lat = :lat AND r.district = :district"),  # 0.0 and -0.0 are equal
        ("number INT, kind2 INT", "r.number = :number AND r.number + 1 = :kind2"),  # hashes of other types differ
    ],
)
def test_where_it_would_be_of_no_use_or_wrong_the_equality_stays(parameters: str, condition: str) -> None:
    assert "XXHASH64" not in joined(parameters, condition)


def test_numbers_of_different_sizes_are_hashed_as_one_type() -> None:
    sql = joined("kind STRING, n BIGINT", "r.kind = :kind AND r.district = :n")
    assert "TRY_CAST(r.district AS BIGINT)" in sql
    assert "TRY_CAST(_parameters.n AS BIGINT)" in sql


def test_result_columns_keep_their_case() -> None:
    text = (
        "CREATE CHANNEL c(k STRING) PERIOD 1 SECONDS AS SELECT r.*, r.LAT AS North FROM NEW reports r WHERE r.kind = :k"
    )
    schemas = {"reports": {"kind": "STRING", "lastSeen": "STRING", "lat": "DOUBLE"}}
    rewritten = rewrite(parse_channel(text), schemas)
    assert rewritten.columns == ("kind", "lastSeen", "lat", "North")
    assert "`_matches`.`lastseen` AS `lastSeen`" in rewritten.sql().replace("_matches.", "`_matches`.")
