"""Bounds, and which of them a topic has."""

from __future__ import annotations

import msgspec
import pytest

from nearcast.core.model.bounds import Bound, BoundsOfTopics
from nearcast.errors import UsageError

A, B, C = Bound(0.01), Bound(0.02), Bound(0.03, 90.0)


@pytest.mark.parametrize(
    ("bounds", "topic", "found"),
    [
        ({}, "t", None),
        ({"t": A}, "t", A),
        ({"t": A}, "u", None),
        ({"*": A, "t": B}, "t", B),
        ({"*": A, "game.*": B, "game.eu.*": C}, "game.eu.1", C),
        ({"*": A, "game.*": B, "game.eu.*": C}, "game.us.1", B),
        ({"*": A, "game.*": B}, "chat", A),
        ({"a?": A, "?b": B}, "ab", A),
        ({"[a]": B}, "a", B),
    ],
)
def test_a_topics_own_bound_counts_and_then_the_longest_pattern(
    bounds: dict[str, Bound], topic: str, found: Bound | None
) -> None:
    assert BoundsOfTopics(bounds).of(topic) == found


@pytest.mark.parametrize("seconds", [0.0, -1.0, 61.0, float("nan"), float("inf"), 1e-9])
def test_a_bound_must_be_possible(seconds: float) -> None:
    with pytest.raises(UsageError, match=r"between 0\.1 ms and 60 s"):
        Bound(seconds)


@pytest.mark.parametrize("percentile", [0.0, 100.0, -5.0, float("nan")])
def test_a_percentile_must_be_possible(percentile: float) -> None:
    with pytest.raises(UsageError, match="leave it out for the worst pair"):
        Bound(0.1, percentile)


def test_what_is_no_bound_cannot_be_read() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"seconds":-1}', type=Bound)


def test_bounds_in_words() -> None:
    assert (str(A), str(C)) == ("10 ms", "30 ms for 90 % of the pairs")
