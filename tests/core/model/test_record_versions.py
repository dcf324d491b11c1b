"""Versions of records: they grow from step to step and from epoch to epoch, no matter who writes them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.model.placement import Mode, Placement, first_use, prepare, settled, switch

epochs = st.integers(0, 2**31)
P, Q = Placement(7, Mode.SINGLE, ("b1",)), Placement(8, Mode.SINGLE, ("b2",))


def at(epoch: int) -> Placement:
    return Placement(epoch, Mode.SINGLE, ("b1",))


@given(epochs, st.integers(1, 1000))
def test_versions_grow_along_a_move(epoch: int, step: int) -> None:
    old, new = at(epoch), at(epoch + step)
    steps = [settled(old, 1), prepare(old, new, 1), switch(old, new, 1, forced=False), settled(new, 1)]
    versions = [record.version for record in steps]
    assert versions == sorted(set(versions))


@given(epochs, epochs)
def test_whatever_belongs_to_a_later_epoch_has_a_higher_version(one: int, other: int) -> None:
    low, high = sorted((one, other))
    if low == high:
        return
    last_of_low = prepare(at(low), at(high), 9).version
    assert last_of_low < switch(at(low), at(high), 1, forced=True).version


@given(epochs, st.integers(0, 100), st.integers(0, 100), st.booleans())
def test_two_leaders_write_the_same_versions(epoch: int, term: int, other: int, forced: bool) -> None:
    old, new = at(epoch), at(epoch + 1)
    assert prepare(old, new, term).version == prepare(old, new, other).version
    assert switch(old, new, term, forced=forced).version == switch(old, new, other, forced=not forced).version
    assert settled(new, term).version == settled(new, other).version


def test_a_prepare_keeps_the_old_epoch_and_a_switch_has_the_new_one() -> None:
    announced, fence, end = prepare(P, Q, 3), switch(P, Q, 3, forced=True), settled(Q, 3)
    assert (announced.epoch, announced.placement, announced.next, announced.previous) == (7, P, Q, None)
    assert (fence.epoch, fence.placement, fence.next, fence.previous, fence.forced) == (8, Q, None, P, True)
    assert (end.epoch, end.placement, end.next, end.previous, end.forced) == (8, Q, None, None, False)
    assert {announced.term, fence.term, end.term} == {3}


def test_versions_are_the_documented_ones() -> None:
    """Pinned: servers hold records of former versions of this library."""
    versions = [prepare(P, Q, 1).version, switch(P, Q, 1, forced=False).version, settled(Q, 1).version]
    assert versions == [30, 32, 33]


def test_a_first_use_lives_on_the_directory_in_the_epoch_of_the_membership() -> None:
    record = first_use(12, "b1")
    assert record.placement == Placement(12, Mode.SINGLE, ("b1",), 12)
    assert record.placement.unplaced
    assert record.term == 0
    assert record.version < prepare(record.placement, at(13), 1).version
