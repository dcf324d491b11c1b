"""The ledger: changes go out together, one commit at a time, and what follows from them waits for the store."""

from __future__ import annotations

import pytest

from nearcast.core.controller.effects import Commit
from nearcast.core.controller.ledger import Ledger
from nearcast.core.model.journal import MEMBERSHIP_KEY, BrokerEntry, BrokerState, Journal, TopicEntry, encode_entry
from nearcast.core.model.membership import Membership
from nearcast.core.model.placement import single

ONE, TWO = TopicEntry(single(1, "b1", 0)), TopicEntry(single(2, "b2", 0))


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(version=4, journal=Journal(topics={"old": ONE}), term=2)


def test_nothing_to_write_is_no_commit(ledger: Ledger) -> None:
    assert ledger.commit(0.0) is None


def test_changes_go_out_together(ledger: Ledger) -> None:
    ledger.write_topic("a", ONE)
    ledger.write_topic("b", ONE)
    ledger.write_topic("a", TWO)
    assert ledger.commit(0.0) == Commit(4, 2, {"topic/a": encode_entry(TWO), "topic/b": encode_entry(ONE)})


def test_nothing_is_sent_while_a_commit_is_on_its_way(ledger: Ledger) -> None:
    ledger.write_topic("a", ONE)
    ledger.commit(0.0)
    ledger.write_topic("b", ONE)
    assert ledger.commit(0.1) is None
    ledger.committed(0.2)
    assert ledger.commit(0.2) == Commit(5, 2, {"topic/b": encode_entry(ONE)})


def test_the_journal_changes_when_the_store_has(ledger: Ledger) -> None:
    ledger.write_topic("old", TWO)
    ledger.commit(0.0)
    assert ledger.journal.topics == {"old": ONE}
    ledger.committed(0.1)
    assert ledger.journal.topics == {"old": TWO}
    assert ledger.version == 5


def test_what_follows_is_done_after_its_own_commit(ledger: Ledger) -> None:
    done: list[tuple[str, float]] = []
    ledger.write_topic("a", ONE, lambda now_s: done.append(("a", now_s)))
    ledger.commit(0.0)
    ledger.write_topic("b", ONE, lambda now_s: done.append(("b", now_s)))
    assert done == []
    ledger.committed(0.1)
    assert done == [("a", 0.1)]
    ledger.commit(0.1)
    ledger.committed(0.2)
    assert done == [("a", 0.1), ("b", 0.2)]


def test_what_follows_sees_the_changed_journal_and_may_write_more(ledger: Ledger) -> None:
    seen: list[TopicEntry] = []

    def then(now_s: float) -> None:
        seen.append(ledger.journal.topics["a"])
        ledger.write_topic("a", TWO)

    ledger.write_topic("a", ONE, then)
    ledger.commit(0.0)
    ledger.committed(0.1)
    assert seen == [ONE]
    assert ledger.commit(0.1) == Commit(5, 2, {"topic/a": encode_entry(TWO)})


def test_what_follows_from_no_change_waits_for_the_changes_before_it(ledger: Ledger) -> None:
    done: list[float] = []
    ledger.write_topic("a", ONE)
    ledger.write({}, done.append)
    ledger.commit(0.0)
    assert done == []
    ledger.committed(0.1)
    assert done == [0.1]


def test_what_follows_from_no_change_at_all_is_done_at_once(ledger: Ledger) -> None:
    done: list[float] = []
    ledger.write({}, done.append)
    assert ledger.commit(0.5) is None
    assert done == [0.5]


def test_a_change_is_pending_until_it_is_in_the_store(ledger: Ledger) -> None:
    ledger.write_broker("b1", BrokerEntry("u", "s", "r", BrokerState.MEMBER))
    told = [ledger.pending("broker/b1")]
    ledger.commit(0.0)
    told.append(ledger.pending("broker/b1"))
    ledger.committed(0.1)
    told.append(ledger.pending("broker/b1"))
    assert told == [True, True, False]
    assert not ledger.pending("broker/b2")


def test_the_newest_membership_is_the_one_last_written(ledger: Ledger) -> None:
    def version(number: int) -> Membership:
        return Membership(version=number, term=1, brokers={})

    assert ledger.membership().version == 0
    ledger.write({MEMBERSHIP_KEY: version(1)})
    ledger.commit(0.0)
    assert ledger.membership().version == 1
    ledger.write({MEMBERSHIP_KEY: version(2)})
    assert ledger.membership().version == 2
    ledger.committed(0.1)
    assert ledger.membership().version == 2
    assert ledger.journal.membership.version == 1
