"""The agreement on timers alone: which a leader writes down, and how long it waits for those of the one before."""

from __future__ import annotations

import msgspec
import pytest
from parts import MEMBERS, Surroundings, journal_of

from nearcast.core.controller.timers import Agreement
from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.settings import Agreed, Timing

BRISK = Timing(heartbeat_s=0.25, lease_s=1.2, dead_s=1.5, leader_s=0.7)
PATIENT = Timing(heartbeat_s=0.8, lease_s=4.0, dead_s=5.0, leader_s=1.5)
BETWEEN = msgspec.structs.replace(BRISK.agreed, dead_s=PATIENT.dead_s)


class Agreeing(Surroundings):
    """A leader with its timers, after one that had written others down."""

    def __init__(self, ours: Timing, before: Agreed | None) -> None:
        super().__init__(journal_of("b1"), ours)
        self.write(before)
        self.agreement = Agreement(self.office)
        self.informed = False

    def write(self, timers: Agreed | None) -> None:
        membership = self.journal.membership
        changed = msgspec.structs.replace(membership, version=membership.version + 1, timers=timers)
        self.ledger.write({MEMBERSHIP_KEY: changed})
        self.commit()

    def due(self, now_s: float) -> Agreed | None:
        return self.agreement.due(lambda: self.informed, now_s)


def test_timers_that_are_agreed_are_not_written_again() -> None:
    one = Agreeing(BRISK, BRISK.agreed)
    assert one.due(0.0) is None
    assert (one.agreement.dead_s, one.agreement.lease_over_s) == (1.5, pytest.approx(1.1 * 1.2))


def test_longer_timers_are_written_at_once() -> None:
    one = Agreeing(PATIENT, BRISK.agreed)
    assert one.agreement.dead_s == 5.0
    assert one.due(0.0) == PATIENT.agreed


def test_shorter_ones_keep_the_longer_dead_s_until_it_has_passed_with_all_informed() -> None:
    one = Agreeing(BRISK, PATIENT.agreed)
    assert one.due(0.0) == BETWEEN
    one.write(BETWEEN)
    assert (one.agreement.dead_s, one.agreement.lease_over_s) == (5.0, 5.0)
    assert one.due(10.0) is None
    one.informed = True
    assert [one.due(now_s) for now_s in (11.0, 16.0)] == [None, None]
    assert one.due(16.1) == BRISK.agreed
    one.write(BRISK.agreed)
    assert one.due(16.2) is None
    assert one.agreement.dead_s == 1.5


def test_the_time_counts_again_from_when_all_are_informed_again() -> None:
    one = Agreeing(BRISK, BETWEEN)
    one.informed = True
    one.due(0.0)
    one.informed = False  # there is a newer membership
    one.due(4.0)
    one.informed = True
    one.due(4.5)
    assert one.due(9.4) is None
    assert one.due(9.6) == BRISK.agreed


def test_nothing_is_written_over_a_membership_that_is_being_written() -> None:
    one = Agreeing(PATIENT, BRISK.agreed)
    one.ledger.write({MEMBERSHIP_KEY: one.journal.membership})
    assert one.due(0.0) is None
    one.commit()
    assert one.due(0.0) == PATIENT.agreed


def test_a_membership_without_timers_is_of_a_leader_with_the_defaults() -> None:
    one = Agreeing(BRISK, None)
    assert one.due(0.0) == msgspec.structs.replace(BRISK.agreed, dead_s=Agreed().dead_s)


def test_a_cluster_that_nobody_has_heard_of_has_no_timers_of_before() -> None:
    one = Agreeing(BRISK, PATIENT.agreed)
    one.journal.membership = msgspec.structs.replace(one.journal.membership, version=0, timers=None)
    assert one.due(0.0) is None, "the first membership has them anyway"
    assert one.agreement.dead_s == BRISK.dead_s
    assert one.agreement.after(one.journal.membership) == BRISK.agreed
    assert one.ledger.version > MEMBERS
