"""Logs, alone: one membership for all changes that wait, answered when every broker has it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from parts import MEMBERS, Surroundings, journal_of

from nearcast.core.controller.logs import Logs
from nearcast.core.controller.members import Members
from nearcast.core.controller.moves import Moves
from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.logs import LOGS_MAX, FormerLife, Log
from nearcast.core.wire import bus

ORDERS = Log("orders", 0, ("order.*",), 3600.0, 1 << 20)


class Keeping(Surroundings):
    """The logs of a cluster with two members that have said hello."""

    def __init__(self) -> None:
        super().__init__(journal_of("b1", "b2"))
        self.members = Members(self.office, self.roster, Moves(self.office, self.roster, 0.0), 0.0)
        self.logs = Logs(self.office, self.roster, self.members)
        for name in ("b1", "b2"):
            self.members.hello(
                bus.Hello(name, 1, 1, f"redis://{name}", "local", f"run-{name}", answering=True, ready=True), 0.0
            )
        self.members.tick(0.0)
        self.obey(0.0)
        self.said()

    def ask(self, *messages: Any) -> list[Any]:
        for message in messages:
            self.logs.heard(message, 0.0)
        return [answer for answer in self.said() if isinstance(answer, bus.State)]

    def go_on(self, now_s: float = 1.0) -> list[Any]:
        """Members and logs have a tick; returns the answers."""
        self.members.tick(now_s)
        self.logs.tick(now_s)
        return [answer for answer in self.said() if isinstance(answer, bus.State)]

    @property
    def known(self) -> list[tuple[str, int]]:
        return [(log.name, log.created) for log in self.journal.membership.logs]


@pytest.fixture
def keeping() -> Keeping:
    return Keeping()


def test_a_log_is_created_by_the_next_membership_and_answered_when_all_brokers_have_it(keeping: Keeping) -> None:
    assert keeping.ask(bus.CreateLog("me.1", ORDERS)) == []
    written = keeping.commit()[MEMBERSHIP_KEY]
    assert (written.version, written.logs_version) == (MEMBERS + 1, MEMBERS + 1)
    assert keeping.known == [("orders", MEMBERS + 1)]
    assert keeping.go_on() == []
    orders = dict(keeping.orders())
    assert set(orders) == {"b1", "b2"}
    keeping.answer("b1", orders["b1"], 1.0, versions={"": MEMBERS + 1})
    assert keeping.go_on() == [], "b2 does not know yet"
    keeping.answer("b2", orders["b2"], 1.0, versions={"": MEMBERS + 1})
    (answer,) = keeping.go_on()
    assert (answer.request, answer.problem) == ("me.1", "")
    assert answer.logs == (msgspec.structs.replace(ORDERS, created=MEMBERS + 1),)


def test_changes_that_wait_together_make_one_membership(keeping: Keeping) -> None:
    first = bus.CreateLog("me.1", ORDERS)
    keeping.ask(first)
    keeping.ask(bus.CreateLog("me.2", msgspec.structs.replace(ORDERS, name="a")))
    keeping.ask(bus.CreateLog("me.3", msgspec.structs.replace(ORDERS, name="b")), bus.DropLog("me.4", "orders"))
    keeping.commit()
    keeping.logs.tick(0.1)
    assert keeping.commit()[MEMBERSHIP_KEY].version == MEMBERS + 2
    assert keeping.known == [("a", MEMBERS + 2), ("b", MEMBERS + 2)]
    keeping.members.tick(0.2)
    keeping.obey(0.2)
    assert sorted(answer.request for answer in keeping.go_on()) == ["me.1", "me.2", "me.3", "me.4"]


def test_a_request_that_is_repeated_changes_nothing(keeping: Keeping) -> None:
    keeping.ask(bus.CreateLog("me.1", ORDERS))
    keeping.commit()
    keeping.ask(bus.CreateLog("me.1", ORDERS), bus.CreateLog("me.2", ORDERS))
    assert keeping.commit() == {}
    keeping.members.tick(0.2)
    keeping.obey(0.2)
    assert sorted(answer.request for answer in keeping.go_on()) == ["me.1", "me.2"]


def test_a_drop_whose_answer_was_lost_is_answered_again(keeping: Keeping) -> None:
    keeping.ask(bus.CreateLog("me.1", ORDERS))
    keeping.commit()
    keeping.ask(bus.DropLog("me.2", "orders"))
    keeping.commit()
    keeping.members.tick(0.2)
    keeping.obey(0.2)
    assert [answer.problem for answer in keeping.go_on()] == ["", ""]
    (answer,) = keeping.ask(bus.DropLog("me.2", "orders"))
    assert (answer.problem, answer.logs) == ("", ())


def test_other_changes_of_the_membership_keep_the_logs(keeping: Keeping) -> None:
    keeping.ask(bus.CreateLog("me.1", ORDERS))
    keeping.commit()
    membership = keeping.journal.membership
    after = keeping.members.next_membership(membership, dict(membership.brokers), membership.ring)
    assert (after.version, after.logs, after.logs_version) == (MEMBERS + 2, membership.logs, MEMBERS + 1)


def test_readers_tell_before_from_after_when_directories_change_or_lives_end(keeping: Keeping) -> None:
    keeping.ask(bus.CreateLog("me.1", ORDERS))
    keeping.commit()
    membership = keeping.journal.membership
    closed = keeping.members.next_membership(membership, dict(membership.brokers), ("b1",))
    assert (closed.logs_version, closed.former) == (MEMBERS + 2, ())
    without = keeping.members.next_membership(membership, {"b1": membership.brokers["b1"]}, membership.ring)
    assert (without.logs_version, without.former) == (MEMBERS + 2, (FormerLife("b2@0", MEMBERS + 2),))


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (bus.CreateLog("me.9", msgspec.structs.replace(ORDERS, retain_s=60.0)), "there is a log 'orders' with other"),
        (bus.CreateLog("me.9", msgspec.structs.replace(ORDERS, name="no/name")), "bad log name 'no/name'"),
        (bus.DropLog("me.9", "bills"), "no log 'bills'; the cluster has: orders"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(keeping: Keeping, message: bus.AboutLogs, says: str) -> None:
    keeping.ask(bus.CreateLog("me.1", ORDERS))
    keeping.commit()
    (answer,) = keeping.ask(message)
    assert says in answer.problem
    assert keeping.commit() == {}
    assert keeping.known == [("orders", MEMBERS + 1)]


def test_without_a_broker_there_is_nothing_to_keep_at(keeping: Keeping) -> None:
    keeping.journal.membership = msgspec.structs.replace(keeping.journal.membership, ring=())
    (answer,) = keeping.ask(bus.CreateLog("me.1", ORDERS))
    assert answer.problem == "no broker carries topics yet: start one, or wait until it has joined"
    assert keeping.commit() == {}


def test_there_is_a_limit(keeping: Keeping) -> None:
    logs = [msgspec.structs.replace(ORDERS, name=f"log{number}") for number in range(LOGS_MAX + 1)]
    keeping.ask(bus.CreateLog("me.0", logs[0]))
    keeping.ask(*(bus.CreateLog(f"me.{number}", log) for number, log in enumerate(logs[1:], 1)))
    keeping.commit()
    keeping.logs.tick(0.1)
    (answer,) = [each for each in keeping.said() if isinstance(each, bus.State)]
    assert answer.problem == f"there are {LOGS_MAX} logs: drop one first"
