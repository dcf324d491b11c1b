"""Who writes where, who reads where, and what is wrong with a placement somebody asked for."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.model.placement import Mode, Placement, problems, single

THREE = ("b1", "b2", "b3")
clients = st.integers(0, 2**64 - 1)


@given(clients)
def test_single_is_one_broker_for_everybody(client: int) -> None:
    placement = Placement(1, Mode.SINGLE, ("b1",))
    assert placement.writers(client) == placement.readers(client) == ("b1",)


@given(clients)
def test_all_subscribers_writes_to_one_and_reads_from_all(client: int) -> None:
    placement = Placement(1, Mode.ALL_SUBSCRIBERS, THREE)
    assert placement.readers(client) == THREE
    assert len(placement.writers(client)) == 1
    assert set(placement.writers(client)) <= set(THREE)


@given(clients)
def test_all_publishers_writes_to_all_and_reads_from_one(client: int) -> None:
    placement = Placement(1, Mode.ALL_PUBLISHERS, THREE)
    assert placement.writers(client) == THREE
    assert len(placement.readers(client)) == 1
    assert set(placement.readers(client)) <= set(THREE)


@pytest.mark.parametrize("mode", [Mode.SINGLE, Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS])
@given(writer=clients, reader=clients)
def test_every_reader_reads_where_every_writer_writes(mode: Mode, writer: int, reader: int) -> None:
    brokers = THREE[:1] if mode is Mode.SINGLE else THREE
    placement = Placement(1, mode, brokers)
    assert set(placement.writers(writer)) & set(placement.readers(reader))


@given(clients, st.sampled_from([Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS]))
def test_the_choice_of_a_client_is_the_same_for_a_whole_epoch(client: int, mode: Mode) -> None:
    one, two = Placement(4, mode, THREE), Placement(4, mode, THREE)
    assert one.writers(client) == two.writers(client)
    assert one.readers(client) == two.readers(client)


@pytest.mark.parametrize("brokers", [2, 3, 5])
def test_clients_spread_evenly_over_the_brokers(brokers: int) -> None:
    rng, count = Random(1), 6000
    names = tuple(f"b{number}" for number in range(brokers))
    ids = [rng.getrandbits(64) for _ in range(count)]
    for mode, choice in ((Mode.ALL_SUBSCRIBERS, Placement.writers), (Mode.ALL_PUBLISHERS, Placement.readers)):
        shares = Counter(choice(Placement(1, mode, names), client)[0] for client in ids)
        assert set(shares) == set(names)
        assert max(shares.values()) < 1.1 * count / brokers
        assert min(shares.values()) > 0.9 * count / brokers


def test_where_a_client_writes_says_nothing_of_where_it_reads() -> None:
    rng, count = Random(2), 6000
    pairs = Counter(
        (
            Placement(1, Mode.ALL_SUBSCRIBERS, THREE).writers(client)[0],
            Placement(1, Mode.ALL_PUBLISHERS, THREE).readers(client)[0],
        )
        for client in (rng.getrandbits(64) for _ in range(count))
    )
    assert len(pairs) == 9
    assert max(pairs.values()) < 1.25 * count / 9


def test_the_same_place_in_another_epoch_is_the_same_place() -> None:
    placement = Placement(1, Mode.ALL_PUBLISHERS, ("b1", "b2"))
    assert placement.same_place(Placement(9, Mode.ALL_PUBLISHERS, ("b1", "b2"), 4))
    assert not placement.same_place(Placement(1, Mode.ALL_SUBSCRIBERS, ("b1", "b2")))
    assert not placement.same_place(Placement(1, Mode.ALL_PUBLISHERS, ("b1", "b3")))


@pytest.mark.parametrize(
    ("placement", "unplaced"),
    [
        (single(4, "b1", 4), True),
        (single(5, "b1", 4), False),
        (Placement(4, Mode.ALL_PUBLISHERS, ("b1", "b2"), 4), False),
    ],
)
def test_a_first_use_has_the_epoch_of_the_membership(placement: Placement, unplaced: bool) -> None:
    assert placement.unplaced is unplaced


@pytest.mark.parametrize(
    ("mode", "brokers", "says"),
    [
        (Mode.SINGLE, ("b1",), []),
        (Mode.ALL_PUBLISHERS, ("b1", "b2"), []),
        (Mode.ALL_SUBSCRIBERS, ("b1",), []),
        (Mode.SINGLE, (), ["names no broker"]),
        (Mode.ALL_SUBSCRIBERS, ("b1", "b1"), ["names a broker twice"]),
        (
            Mode.SINGLE,
            ("b1", "b2"),
            ["mode single takes one broker; choose all_subscribers or all_publishers for several"],
        ),
        (
            Mode.HOMES,
            ("b1",),
            ["mode homes is not available yet; choose single, all_subscribers or all_publishers"],
        ),
        (Mode.SINGLE, ("b9",), ["unknown broker 'b9'; the cluster has: b1, b2, b3"]),
        (Mode.ALL_PUBLISHERS, ("b9", "b8"), ["unknown broker 'b9', 'b8'; the cluster has: b1, b2, b3"]),
    ],
)
def test_problems_are_told_with_a_remedy(mode: Mode, brokers: tuple[str, ...], says: list[str]) -> None:
    assert problems(Placement(1, mode, brokers), frozenset(THREE)) == says


def test_a_cluster_without_brokers_says_so() -> None:
    assert problems(single(1, "b1", 0), frozenset()) == ["unknown broker 'b1'; the cluster has: none"]
