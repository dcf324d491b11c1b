"""Members alone: who is granted a lease, who is refused, how a broker joins, and when one is given up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from parts import DEAD, JOINING, LEAVING, LEFT, MEMBER, MEMBERS, TERM, Surroundings, broker, calls, journal_of, resting

from nearcast.core.controller.members import UNHEARD_STEP, Members
from nearcast.core.model.journal import BrokerState, Journal, Known, LossEntry, TopicEntry
from nearcast.core.model.membership import BrokerInfo, Membership
from nearcast.core.model.placement import single
from nearcast.core.model.settings import DEFAULT_TIMING
from nearcast.core.wire import bus

LEASE_S, DEAD_S, READY_S = DEFAULT_TIMING.lease_s, DEFAULT_TIMING.dead_s, DEFAULT_TIMING.ready_s


class Topics:
    """Stands in for the moves: notes what it is told."""

    def __init__(self) -> None:
        self.evacuated: list[str] = []
        self.forgot: list[str] = []
        self.evacuate, self.forget = self.evacuated.append, self.forgot.append


class Joining(Surroundings):
    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.moves = Topics()
        self.members = Members(self.office, self.roster, self.moves, now_s=0.0)  # type: ignore[arg-type]

    def hello(self, name: str, now_s: float = 0.0, agent: int = 1, **changes: Any) -> list[Any]:
        """A broker says hello; returns what its agent is told."""
        known = bus.Hello(name, agent, 40, f"redis://{name}", "local", f"run-{name}", answering=True)
        self.members.hello(msgspec.structs.replace(known, **changes), now_s)
        return self.said()

    def grants(self, name: str, now_s: float = 0.0, **changes: Any) -> bool:
        return any(isinstance(told, bus.Grant) for told in self.hello(name, now_s, **changes))

    def refusal(self, name: str, now_s: float = 0.0, **changes: Any) -> bus.Refusal:
        (told,) = self.hello(name, now_s, **changes)
        assert isinstance(told, bus.Refusal)
        return told

    def step(self, now_s: float) -> tuple[list[str], dict[str, Any]]:
        """One tick with agents that obey and a store that answers; returns the orders and the entries."""
        self.members.tick(now_s)
        orders = [f"{type(order).__name__} {name}" for name, order in self.obey(now_s)]
        return orders, self.commit(now_s)

    def settle(self, *names: str, now_s: float = 0.0) -> None:
        """Brokers that are ready are heard, and told the membership."""
        for name in names:
            self.hello(name, now_s, ready=True)
        for _ in range(3):
            self.step(now_s)

    def state(self, name: str) -> BrokerState:
        return self.journal.brokers[name].state


# --- hellos


@pytest.mark.parametrize(("answering", "granted"), [(True, True), (False, False)])
def test_a_member_whose_server_answers_is_granted_its_beat(answering: bool, granted: bool) -> None:
    one = Joining(journal_of("b1"))
    told = one.hello("b1", answering=answering)
    assert told == ([bus.Grant(TERM, 40, "run-b1", journal=(0, 50))] if granted else [])
    assert one.members.granted_lately("b1", LEASE_S - 0.1)


def test_a_grant_counts_from_the_hello() -> None:
    one = Joining(journal_of("b1"))
    one.hello("b1", 1.0)
    assert one.members.granted_lately("b1", 1.0 + LEASE_S - 0.1)
    assert not one.members.granted_lately("b1", 1.0 + LEASE_S)
    assert not one.members.granted_lately("b9", 1.0)


def test_orders_go_to_the_agent_that_was_heard_last() -> None:
    one = Joining(journal_of("b1"))
    assert one.members.agent_of("b1") is None
    one.hello("b1", agent=5)
    one.hello("b1", agent=6)  # the server is the same: agents take turns by themselves
    assert one.members.agent_of("b1") == 6


def test_a_leader_has_heard_all_when_the_living_have_spoken_or_time_is_up() -> None:
    one = Joining(journal_of("b1", b2=LEAVING, b3=DEAD))
    one.hello("b1")
    assert not one.members.all_heard(DEAD_S)
    assert one.members.all_heard(DEAD_S + 0.01)
    one.hello("b2")
    assert one.members.all_heard(0.0)


@pytest.mark.parametrize(
    ("changes", "final"),
    [({"run_id": "run-b1"}, True), ({"url": "redis://b1"}, False)],
    ids=["the same run", "the same address"],
)
def test_the_server_of_another_broker_is_refused(changes: dict[str, str], final: bool) -> None:
    one = Joining(journal_of("b1"))
    refusal = one.refusal("b2", **changes)
    assert "belongs to broker b1" in refusal.reason
    assert (refusal.final, refusal.other_heard) == (final, False)
    one.hello("b1")
    assert one.refusal("b2", **changes).other_heard
    assert one.step(0.0)[1] == {}, "it does not join"


def test_the_server_of_a_broker_that_was_given_up_may_be_used() -> None:
    one = Joining(journal_of("b1", b3=DEAD))
    assert one.hello("b2", url="redis://b3") == []
    assert one.commit().keys() == {"broker/b2"}


@pytest.mark.parametrize(
    ("changes", "silent_s"),
    [({"url": "redis://elsewhere", "run_id": "new"}, DEAD_S), ({"run_id": "new"}, 1.1 * LEASE_S)],
    ids=["another server", "another run of the server"],
)
def test_a_second_agent_replaces_the_first_when_that_has_been_silent_for_long(
    changes: dict[str, str], silent_s: float
) -> None:
    one = Joining(journal_of("b1", "b2"))
    one.hello("b1", 1.0, agent=1)
    assert "has another agent" in one.refusal("b1", 1.0 + silent_s, agent=2, **changes).reason
    assert one.hello("b1", 1.01 + silent_s, agent=2, **changes) == []
    assert one.commit()["broker/b1"] == broker("b1", **changes)


def test_the_server_of_another_cluster_is_refused() -> None:
    one = Joining(journal_of("b1"))
    theirs = Known("theirs", members=3, term=1, store="redis://other")
    assert "belongs to another cluster (theirs)" in one.refusal("b2", known=theirs).reason
    assert one.hello("b2", known=msgspec.structs.replace(theirs, store="redis://store")) == []


# --- joining


class Newcomer(Joining):
    """b2 says hello to a cluster whose member b1 obeys."""

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal or journal_of("b1"))
        self.settle("b1")
        self.now_s, self.ready = 0.0, False

    def go(self, seconds: float = 0.1, **changes: Any) -> list[tuple[list[str], list[str]]]:
        """The orders and the keys of the entries of each step."""
        seen = []
        for _ in range(round(seconds / 0.1)):
            self.now_s += 0.1
            self.hello("b1", self.now_s, ready=True)
            self.hello("b2", self.now_s, ready=self.ready, **changes)
            orders, entries = self.step(self.now_s)
            self.ready = self.ready or "MarkReady b2" in orders
            seen.append((orders, sorted(entries)))
        return seen


def test_a_broker_joins_step_by_step() -> None:
    both = ["InstallMembers b1", "InstallMembers b2"]
    assert Newcomer().go(1.3) == [
        ([], ["broker/b2"]),
        (["Reset b2"], []),
        ([], ["membership"]),  # clients hear of it
        (both, []),
        ([], []),  # there are no records
        (["MarkReady b2"], []),
        (["Count b1"], []),  # pattern subscribers
        ([], ["broker/b2", "membership"]),  # a member, and in the ring, which is closed
        (both, []),
        (["Collect b1"], []),
        ([], ["membership"]),  # the ring is open
        (both, []),
        ([], []),
    ]


def test_a_broker_that_joins_gets_no_grant_before_its_own_server_says_that_it_is_new() -> None:
    one = Newcomer()
    one.go(0.3)
    assert not one.grants("b2", one.now_s)
    one.go(0.1)
    assert one.grants("b2", one.now_s)


def test_a_broker_that_is_not_ready_carries_nothing() -> None:
    one = Newcomer()
    one.go(0.5)
    for _ in range(100):
        one.ready = False  # its server has not set the key
        one.go()
    assert one.state("b2") is JOINING


@pytest.mark.parametrize(("attached", "waits"), [(2, False), (1, True)])
def test_a_broker_carries_topics_when_pattern_subscribers_are_there_or_time_is_up(attached: int, waits: bool) -> None:
    one = Newcomer()
    one.go(0.6)
    one.hello("b2", 0.7, ready=True)
    one.members.tick(0.7)
    count = one.order()
    assert count.epochs == {"": MEMBERS + 1}, "those that hold the version it joined with"
    one.answer("b1", count, 0.7, counts={"": (2, attached)})
    one.members.tick(0.71)
    assert bool(one.commit()) is not waits
    one.hello("b2", 0.71 + READY_S, ready=True)
    one.members.tick(0.71 + READY_S)
    one.commit()
    assert one.state("b2") is MEMBER


def test_a_name_that_topics_still_mean_is_not_carried_again() -> None:
    entry = TopicEntry(single(6, "b2", 5))
    one = Newcomer(journal_of("b1", topics={"t": entry}, b2=DEAD))
    one.go(9.0)
    assert one.state("b2") is JOINING
    one.ledger.write_topic("t", TopicEntry(single(8, "b1", 8)))
    one.commit()
    one.go(1.0)
    assert one.state("b2") is MEMBER


@pytest.mark.parametrize(
    ("state", "run_id", "comes_back"),
    [(DEAD, "run-b2", True), (LEFT, "run-b2", False), (LEFT, "another", True)],
)
def test_who_has_left_comes_back_in_another_run_only(state: BrokerState, run_id: str, comes_back: bool) -> None:
    one = Joining(journal_of("b1", b2=state))
    one.hello("b2", run_id=run_id)
    assert (one.commit().keys() == {"broker/b2"}) is comes_back


def test_who_comes_back_keeps_its_figures_and_that_it_was_rented() -> None:
    journal = journal_of("b1")
    journal.brokers["b2"] = broker("b2", DEAD, capacity_bytes_per_s=5.0, messages_high_per_s=7.0, rented=True)
    one = Joining(journal)
    one.hello("b2")
    entry = broker("b2", JOINING, capacity_bytes_per_s=5.0, messages_high_per_s=7.0, rented=True)
    assert one.commit()["broker/b2"] == entry


def test_a_step_without_an_answer_is_asked_for_again_and_answers_count_once() -> None:
    one = Joining(journal_of("b1"))
    one.hello("b2")
    one.commit()
    for now_s in (0.0, 0.1, 0.31):
        one.members.tick(now_s)
    resets = [order for name, order in one.orders() if name == "b2"]
    assert len(resets) == 2
    for order in (*resets, resets[0]):
        one.answer("b2", order, 0.4)
    one.members.tick(0.4)
    assert one.commit().keys() == {"membership"}


def test_an_answer_from_before_it_was_given_up_does_not_save_it_the_reset() -> None:
    one = Joining(journal_of("b1", "b3", b2=JOINING))
    one.hello("b2")
    one.members.tick(0.0)
    one.members.tick(0.31)
    first, late = (order for _, order in one.orders())
    one.answer("b2", first, 0.4)
    one.hello("b2", 0.5, answering=False, dead=True)
    one.commit()
    assert one.state("b2") is DEAD
    one.answer("b2", late, 0.6)
    one.hello("b2", 0.7)
    one.commit()
    assert one.step(0.8)[0] == ["Reset b2"]


def test_what_a_hello_said_before_the_reset_is_not_believed() -> None:
    one = Joining(journal_of("b1", b2=JOINING))
    one.hello("b2", ready=True)  # in its former life it was
    one.step(0.0)
    orders = [order for now_s in (0.1, 0.2, 0.3) for order in one.step(now_s)[0]]
    assert orders == ["InstallMembers b2", "MarkReady b2"]


# --- a server that was restarted


def test_a_restarted_server_gets_its_membership_and_records_back() -> None:
    one = Joining(journal_of("b1", "b2", topics=resting(1_200, "b2")))
    one.settle("b1", "b2")
    assert one.hello("b2", 0.1, run_id="second") == [], "no grant: what it had is gone"
    assert one.commit() == {"broker/b2": broker("b2", run_id="second")}
    assert one.moves.forgot == ["b2"]
    orders = []
    for step in range(2, 7):
        one.hello("b2", step / 10, run_id="second")
        orders += [order for order in one.step(step / 10)[0] if order.endswith("b2")]
    assert orders == ["InstallMembers b2", "Install b2", "Install b2", "Install b2", "MarkReady b2"]


@pytest.mark.parametrize("written", [False, True])
def test_an_answer_from_before_a_restart_says_nothing_about_the_server_now(written: bool) -> None:
    one = Joining(journal_of("b1", "b2"))
    one.hello("b2", ready=True)
    one.members.tick(0.0)
    one.members.tick(0.31)
    first, late = (order for _, order in one.orders())
    one.answer("b2", first, 0.4, versions={"": MEMBERS})
    one.hello("b2", 0.5, run_id="second")
    if written:
        one.commit()
    one.answer("b2", late, 0.6, versions={"": MEMBERS})
    one.commit()
    one.hello("b2", 0.7, run_id="second")
    assert one.step(0.7)[0] == ["InstallMembers b2"]


def test_a_server_that_was_restarted_elsewhere_is_announced() -> None:
    one = Joining(journal_of("b1", "b2"))
    one.settle("b1", "b2")
    one.hello("b2", 0.1 + DEAD_S, run_id="second", url="redis://new")
    entries = one.commit()
    assert entries["broker/b2"] == broker("b2", run_id="second", url="redis://new")
    membership = entries["membership"]
    assert isinstance(membership, Membership)
    assert membership.brokers["b2"] == BrokerInfo("redis://new", joined=1, began=MEMBERS + 1)


# --- giving up


def test_a_broker_is_given_up_after_dead_s_without_a_grant() -> None:
    one = Joining(journal_of("b1", "b2", "b3"))
    one.settle("b1", "b2", "b3")
    for name in ("b1", "b3"):
        one.hello(name, DEAD_S, ready=True)
    one.members.tick(DEAD_S)
    assert one.commit() == {}
    one.members.tick(DEAD_S + 0.01)
    entries = one.commit()
    assert entries["broker/b2"] == broker("b2", DEAD)
    membership = entries["membership"]
    assert isinstance(membership, Membership)
    assert (membership.version, membership.ring, membership.previous_ring) == (
        MEMBERS + 1,
        ("b1", "b3"),
        ("b1", "b2", "b3"),
    )
    assert one.moves.evacuated == ["b2"]


def test_topics_are_moved_only_when_the_store_has_given_the_broker_up() -> None:
    one = Joining(journal_of("b1", "b2"))
    one.settle("b1", "b2")
    one.hello("b2", 0.1, dead=True)
    one.ledger.commit(0.1)
    assert one.moves.evacuated == []
    one.ledger.committed(0.2)
    assert one.moves.evacuated == ["b2"]


@pytest.mark.parametrize(("run_id", "given_up"), [("run-b2", True), ("earlier", False)])
def test_a_process_that_was_seen_to_end_is_given_up_at_once(run_id: str, given_up: bool) -> None:
    one = Joining(journal_of("b1", "b2"))
    one.settle("b1", "b2")
    one.hello("b2", 0.1, answering=False, dead=True, run_id=run_id)
    assert ("broker/b2" in one.commit()) is given_up


def test_the_last_broker_is_not_given_up_and_one_that_leaves_stays_for_it() -> None:
    one = Joining(journal_of("b1"))
    one.settle("b1")
    assert one.step(2 * DEAD_S) == ([], {})
    two = Joining(journal_of("b1", b2=LEAVING))
    two.settle("b2")
    two.hello("b2", 2 * DEAD_S, ready=True)
    two.members.tick(2 * DEAD_S)
    entries = two.commit()
    assert (entries["broker/b1"], entries["broker/b2"]) == (broker("b1", DEAD), broker("b2", MEMBER))
    assert two.journal.membership.ring == ("b2",)


def test_a_broker_that_was_never_heard_may_know_what_the_store_has_lost() -> None:
    one = Joining(journal_of("b1", "b2"))
    one.hello("b1", DEAD_S, ready=True)
    one.members.tick(DEAD_S + 0.01)
    one.commit()
    assert one.journal.membership.version == MEMBERS + UNHEARD_STEP


# --- after a loss of the store


def test_every_broker_is_given_its_records_once_more_and_then_that_is_written_down() -> None:
    journal = journal_of("b1", "b2", topics=resting(2, "b1", "b2"))
    journal.loss = LossEntry(0.0, TERM, "some")
    one = Joining(journal)
    seen = []
    for step in range(4):
        for name in ("b1", "b2"):
            one.hello(name, step / 10, ready=True)
        seen.append(one.step(step / 10))
    assert seen == [
        (["InstallMembers b1", "InstallMembers b2"], {}),
        (["Install b1", "Install b2"], {}),
        ([], {"loss": LossEntry(0.0, TERM, "some", verified=True)}),
        ([], {}),
    ]


# --- very many topics


def test_a_tick_with_many_topics_looks_at_a_part_of_them() -> None:
    one = Joining(journal_of("b1", topics=resting(20_000, "b1"), b2=LEAVING))
    one.settle("b1", "b2")
    one.hello("b2", 0.1, run_id="second")
    one.commit()
    costs, orders, now_s = [], list[str](), 0.1
    while "MarkReady" not in orders:
        now_s += 0.1
        assert now_s < 3.0
        one.hello("b1", now_s, ready=True)
        one.hello("b2", now_s, run_id="second")
        costs.append(calls(one.members.tick, now_s))
        orders += [type(order).__name__ for _, order in one.obey(now_s)]
    assert orders == ["InstallMembers", "MarkReady"], "no topic concerns it"
    assert max(costs) < 60_000, max(costs)
