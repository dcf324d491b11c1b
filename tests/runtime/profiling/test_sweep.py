"""The sweep: seeded, balanced, evenly spread over the rates, and within the limits."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from nearcast.errors import UsageError
from nearcast.runtime.profiling.configuration import MESSAGES_MIN, Configuration
from nearcast.runtime.profiling.profile import ProfileSettings
from nearcast.runtime.profiling.sweep import HIGHEST_SHARE, LOWEST_SHARE, Space, draw


def test_a_seed_gives_the_same_sweep() -> None:
    assert draw(Space(), 20, Random(3)) == draw(Space(), 20, Random(3))
    assert draw(Space(), 20, Random(3)) != draw(Space(), 20, Random(4))


def test_every_value_is_used_equally_often_and_rates_are_spread_evenly() -> None:
    planned = draw(Space(), 24, Random(0))
    assert set(Counter(one.topics for one in planned).values()) == {8}
    assert set(Counter(one.publishers for one in planned).values()) == {8}
    assert set(Counter(one.subscribers for one in planned).values()) == {6}
    assert set(Counter(one.payload_bytes for one in planned).values()) == {8}
    shares = sorted(one.share for one in planned)
    assert (shares[0], shares[-1]) == pytest.approx((LOWEST_SHARE, HIGHEST_SHARE))
    steps = [after / before for before, after in pairwise(shares)]
    assert max(steps) == pytest.approx(min(steps))
    assert shares != [one.share for one in planned]  # not in order


@pytest.mark.parametrize("runs", [0, 1, 2])
def test_few_runs_are_possible(runs: int) -> None:
    assert len(draw(Space(), runs, Random(0))) == runs


def test_the_rate_per_topic_follows_from_the_share() -> None:
    for one in draw(Space(), 24, Random(0)):
        configuration = one.at(1e6, 2.0)
        assert configuration.rate_per_s is not None
        assert configuration.rate_per_s * configuration.deliveries == pytest.approx(one.share * 1e6)
        slowest = one.at(1.0, 2.0)
        assert slowest.rate_per_s is not None
        assert slowest.rate_per_s * slowest.topics * 2.0 == pytest.approx(MESSAGES_MIN)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topics": ()}, "no value of topics"),
        ({"topics": (0, 1)}, "with 0 topics"),
        ({"topics": (100,)}, "need 1,200 connections"),
        ({"payload_bytes": (1 << 21,)}, "bytes: use 1 to"),
    ],
)
def test_a_space_has_limits(change: dict[str, tuple[int, ...]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Space(**change)


@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, float("nan")])
def test_a_rate_must_be_one(rate_per_s: float) -> None:
    with pytest.raises(UsageError, match="use more than 0"):
        Configuration(topics=1, publishers=1, subscribers=1, payload_bytes=1, rate_per_s=rate_per_s)


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 0.1},
        {"seconds": float("nan")},
        {"runs": -1},
        {"runs": 1001},
        {"highest_per_s": float("inf")},
        {"highest_per_s": float("nan")},
        {"highest_per_s": -5.0},
        {"factor": 1.0},
        {"factor": float("inf")},
        {"limit_s": 0.0},
        {"limit_s": float("nan")},
    ],
)
def test_settings_have_limits(change: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="cannot profile with"):
        ProfileSettings(**change)  # type: ignore[arg-type]
