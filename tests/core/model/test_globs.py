"""Patterns of names. That they match what servers match is shown by tests/sim/test_server_conformance.py."""

from __future__ import annotations

import re
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.model.globs import matcher


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (b"order.*", [b"order.", b"order.eu.1"], [b"order", b"orders.1", b"xorder.1"]),
        (b"*.eu.*", [b"order.eu.1", b".eu.eu."], [b"order.us.1", b"eu.1"]),
        (b"t?", [b"t1", b"t*"], [b"t", b"t12"]),
        (b"[ab]x", [b"ax", b"bx"], [b"cx", b"abx"]),
        (b"[^a]", [b"b"], [b"a", b""]),
        (b"\\*", [b"*"], [b"a", b"\\*"]),
        (b"*", [b"anything"], [b""]),
        (b"plain", [b"plain"], [b"plain2", b""]),
    ],
)
def test_a_pattern_matches_whole_names(pattern: bytes, matching: list[bytes], other: list[bytes]) -> None:
    matches = matcher(pattern)
    assert [name for name in (*matching, *other) if matches(name)] == matching


@given(st.text(alphabet="ab*", max_size=8), st.text(alphabet="abc", max_size=12))
def test_matching_at_the_first_place_finds_whatever_backtracking_finds(pattern: str, name: str) -> None:
    expression = "(?=.)" + ".*".join(map(re.escape, pattern.split("*"))) if pattern else ""
    assert bool(matcher(pattern.encode())(name.encode())) == bool(re.fullmatch(expression, name, re.DOTALL))


def test_a_name_made_to_match_nearly_costs_little() -> None:
    began_s = perf_counter()
    assert not matcher(b"*a" * 40 + b"b")(b"a" * 500)
    assert perf_counter() - began_s < 1.0
