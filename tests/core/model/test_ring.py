"""The ring: the same everywhere, fair within a bound, and calm when a broker joins or leaves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.model.membership import VIRTUAL_NODES, Ring

TOPICS = [b"topic/%d" % number for number in range(20_000)]


def brokers(count: int) -> list[str]:
    return [f"b{number}" for number in range(count)]


# Pinned: another answer would send clients of two versions to two directories.
OWNERS = {
    "a": "b2",
    "b": "b3",
    "news": "b2",
    "game/1": "b3",
    "größe": "b1",
    "sensor:42": "b2",
    "chat": "b2",
    "topic with spaces": "b3",
}


@pytest.mark.parametrize(("topic", "owner"), OWNERS.items())
def test_owners_are_the_same_in_every_version_and_process(topic: str, owner: str) -> None:
    assert Ring(("b1", "b2", "b3")).owner(topic.encode()) == owner


@given(st.permutations(["b1", "b2", "b3", "b4"]), st.binary(max_size=20))
def test_the_order_and_repetition_of_brokers_do_not_matter(names: list[str], topic: bytes) -> None:
    assert Ring([*names, names[0]]).owner(topic) == Ring(sorted(names)).owner(topic)


def test_a_ring_of_one_owns_everything() -> None:
    ring = Ring(["alone"])
    assert {ring.owner(topic) for topic in TOPICS[:100]} == {"alone"}


@pytest.mark.parametrize(("count", "bound"), [(3, 0.15), (8, 0.25), (50, 0.35)])
def test_shares_are_fair(count: int, bound: float) -> None:
    """With V virtual nodes a share deviates by about 1/sqrt(V), 9 % here; the worst of fifty by some three times it."""
    assert VIRTUAL_NODES == 128
    shares = Counter(map(Ring(brokers(count)).owner, TOPICS))
    fair = len(TOPICS) / count
    assert len(shares) == count
    assert max(shares.values()) < (1 + bound) * fair
    assert min(shares.values()) > (1 - bound) * fair


@pytest.mark.parametrize("count", [3, 8, 50])
def test_a_broker_that_joins_takes_its_share_and_moves_nothing_else(count: int) -> None:
    before, after = Ring(brokers(count)), Ring(brokers(count + 1))
    changed = [topic for topic in TOPICS if before.owner(topic) != after.owner(topic)]
    assert {after.owner(topic) for topic in changed} == {f"b{count}"}
    assert 0.65 < len(changed) / len(TOPICS) * (count + 1) < 1.35


def test_a_broker_that_leaves_moves_only_its_own_topics() -> None:
    before, after = Ring(brokers(8)), Ring(brokers(7))
    assert {before.owner(topic) for topic in TOPICS if before.owner(topic) != after.owner(topic)} == {"b7"}
