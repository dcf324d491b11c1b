"""The fleet: brokers come after their start-up time, leave when drained, and the ring follows."""

from __future__ import annotations

import pytest

from nearcast.errors import UsageError
from nearcast.flow.control import Fleet
from nearcast.flow.model import FlowSettings

SETTINGS = FlowSettings(brokers_max=4, start_s=5.0)


def test_a_rented_broker_joins_when_it_has_started() -> None:
    fleet = Fleet(1, SETTINGS)
    fleet.rent(1, now_s=10.0)
    assert (fleet.coming, fleet.spare) == (1, 2)
    assert fleet.joined(14.9) == []
    assert fleet.joined(15.0) == ["b2"]
    assert (fleet.coming, fleet.spare, sorted(fleet.rows)) == (0, 2, ["b1", "b2"])
    assert fleet.ring.brokers == ("b1", "b2")


def test_no_more_are_rented_than_there_are() -> None:
    fleet = Fleet(2, SETTINGS)
    fleet.rent(9, now_s=0.0)
    assert fleet.coming == 2
    assert fleet.spare == 0


def test_a_draining_broker_is_off_the_ring_and_may_stay_after_all() -> None:
    fleet = Fleet(2, SETTINGS)
    assert fleet.drain("b2")
    assert fleet.ring.brokers == ("b1",)
    fleet.keep("b2")
    assert fleet.ring.brokers == ("b1", "b2")


def test_the_last_broker_stays() -> None:
    fleet = Fleet(2, SETTINGS)
    assert fleet.drain("b1")
    assert not fleet.drain("b2")
    assert not fleet.drain("nobody")


def test_a_released_broker_makes_room_but_its_name_is_not_used_again() -> None:
    fleet = Fleet(2, SETTINGS)
    fleet.drain("b2")
    fleet.release("b2")
    assert fleet.spare == 3
    fleet.rent(1, now_s=0.0)
    assert fleet.joined(5.0) == ["b3"]
    assert fleet.rows == {"b1": 0, "b3": 2}


@pytest.mark.parametrize("brokers", [0, 5])
def test_a_fleet_begins_within_its_limits(brokers: int) -> None:
    with pytest.raises(UsageError, match=r"use 1 to 4 \(brokers_max\)"):
        Fleet(brokers, SETTINGS)
