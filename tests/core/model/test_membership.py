"""The membership: who may say where a topic is, also while the ring changes; and who is meant by a name."""

from __future__ import annotations

import msgspec
import pytest

from nearcast.core.model.membership import BrokerInfo, Membership, decode_membership, encode_membership, ring_of
from nearcast.core.model.placement import Mode, Placement, single

OLD, NEW = ("b1", "b2"), ("b1", "b2", "b3")
TOPICS = [b"topic/%d" % number for number in range(300)]


def membership(ring: tuple[str, ...], previous: tuple[str, ...] | None = None) -> Membership:
    return Membership(version=4, term=2, brokers={}, ring=ring, previous_ring=previous)


def test_without_a_ring_nobody_knows() -> None:
    assert membership(()).directory(b"t") is None


def test_the_directory_is_the_ring_owner() -> None:
    assert [membership(NEW).directory(topic) for topic in TOPICS] == [ring_of(NEW).owner(topic) for topic in TOPICS]


@pytest.mark.parametrize(("ring", "previous"), [(NEW, OLD), (OLD, NEW)], ids=["a broker joins", "a broker leaves"])
def test_while_the_ring_changes_only_topics_that_stay_have_a_directory(
    ring: tuple[str, ...], previous: tuple[str, ...]
) -> None:
    changing = membership(ring, previous)
    stay = {topic for topic in TOPICS if ring_of(OLD).owner(topic) == ring_of(NEW).owner(topic)}
    assert 0 < len(stay) < len(TOPICS)
    for topic in TOPICS:
        assert changing.directory(topic) == (ring_of(ring).owner(topic) if topic in stay else None)


def test_a_broker_that_joined_later_under_the_same_name_is_another_one() -> None:
    members = msgspec.structs.replace(membership(OLD), brokers={"b1": BrokerInfo("redis://b1", joined=7)})
    assert members.has("b1", single(9, "b1", 7))
    assert members.has("b1", Placement(9, Mode.SINGLE, ("b1",), 8))
    assert not members.has("b1", single(6, "b1", 6))
    assert not members.has("b2", single(9, "b2", 9))


def test_a_membership_survives_the_way_there_and_back() -> None:
    document = Membership(
        version=9,
        term=3,
        brokers={"b1": BrokerInfo("redis://b1", "paris", 2)},
        ring=NEW,
        previous_ring=OLD,
        store_url="s",
    )
    assert decode_membership(encode_membership(document)) == document


def test_a_ring_is_built_once_per_list_of_brokers() -> None:
    assert ring_of(NEW) is ring_of(NEW)
