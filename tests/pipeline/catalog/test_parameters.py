"""Canonical parameters: equal ones become one subscription, wrong ones are refused with the reason."""

from __future__ import annotations

import pytest

from nearcast.pipeline.catalog.channels import bound, canonical, channel_of, subscription_id
from nearcast.pipeline.catalog.database import WrongParameters


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("STRING", "fire", "fire"),
        ("BOOLEAN", "True", True),
        ("BOOLEAN", False, False),
        ("INT", 5.0, 5),
        ("INT", "5", 5),
        ("BIGINT", -(1 << 63), -(1 << 63)),
        ("DOUBLE", 5, 5.0),
        ("DOUBLE", "-0.0", 0.0),
        ("FLOAT", 0.1, 0.10000000149011612),
        ("DECIMAL(10, 2)", 1.5, "1.50"),
        ("DECIMAL", "7", "7"),
        ("DECIMAL(10, 2)", "-0", "0.00"),
        ("DATE", "2026-01-31", "2026-01-31"),
        ("TIMESTAMP", "2026-01-31T12:00:00+02:00", "2026-01-31 10:00:00.000000"),
        ("TIMESTAMP", "2026-01-31 10:00:00Z", "2026-01-31 10:00:00.000000"),
    ],
)
def test_values_take_the_declared_type(kind, given, expected):
    found = canonical({"p": kind}, {"P": given})["p"]
    assert found == expected
    assert type(found) is type(expected)
    assert canonical({"p": kind}, {"p": found}) == {"p": found}, "canonical values are their own canonical form"


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("STRING", 5),
        ("STRING", "\ud800"),
        ("BOOLEAN", 1),
        ("BOOLEAN", "yes"),
        ("INT", 5.5),
        ("INT", True),
        ("INT", 1 << 31),
        ("TINYINT", 128),
        ("INT", "five"),
        ("DOUBLE", "nan"),
        ("DOUBLE", True),
        ("DOUBLE", [1.0]),
        ("FLOAT", 1e39),
        ("DECIMAL(4, 2)", "1.234"),
        ("DECIMAL(4, 2)", "123.45"),
        ("DECIMAL(4, 2)", "NaN"),
        ("DECIMAL(4, 2)", "-nan7"),
        ("DECIMAL(4, 2)", "Infinity"),
        ("DATE", "31.1.2026"),
        ("DATE", 20260131),
        ("TIMESTAMP", "yesterday"),
    ],
)
def test_other_values_are_refused_with_the_type(kind, given):
    with pytest.raises(WrongParameters, match="parameter p is") as refused:
        canonical({"p": kind}, {"p": given})
    assert kind in refused.value.hint


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"kind": "a", "lat": 1.0, "lot": 2.0}, "unknown parameter lot"),
        ({"kind": "a"}, "parameter lat is missing"),
        ({"kind": "a", "lat": None}, "parameter lat is missing"),
        ({"kind": "a" * 5000, "lat": 1.0}, "too long"),
    ],
)
def test_names_and_length_are_checked(given, problem):
    with pytest.raises(WrongParameters, match=problem):
        canonical({"kind": "STRING", "lat": "DOUBLE"}, given)


def test_ids_tell_parameters_apart_and_name_the_channel():
    declared = {"kind": "STRING", "lat": "DOUBLE"}
    one = subscription_id("near_me", canonical(declared, {"kind": "fire", "lat": 1}))
    assert one == subscription_id("near_me", canonical(declared, {"LAT": "1.0", "kind": "fire"}))
    assert one != subscription_id("near_me", canonical(declared, {"kind": "fire", "lat": 1.0000001}))
    assert channel_of(one) == "near_me"


OF_A_USER = {"kind": "STRING", "user": "STRING"}


def test_the_user_is_filled_in_where_the_channel_declares_it():
    assert bound({"kind": "STRING"}, {"kind": "fire"}, "ann") == {"kind": "fire"}
    for given in ({"kind": "fire"}, {"kind": "fire", "user": "ann"}, {"kind": "fire", "USER": "ann"}):
        assert bound(OF_A_USER, given, "ann") == {"kind": "fire", "user": "ann"}


@pytest.mark.parametrize("given", ["bob", "Ann", "", None, 7, ["ann"], {"ann": 1}])
def test_another_user_than_the_login_is_refused(given):
    with pytest.raises(WrongParameters, match='the login is "ann"') as refused:
        bound(OF_A_USER, {"kind": "fire", "user": given}, "ann")
    assert "leave user out" in refused.value.hint


def test_without_a_login_a_channel_of_users_is_refused():
    with pytest.raises(WrongParameters, match="is not logged in") as refused:
        bound(OF_A_USER, {"kind": "fire", "user": "ann"}, "")
    assert "through a gateway" in refused.value.hint
