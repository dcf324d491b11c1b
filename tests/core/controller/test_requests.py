"""Requests alone: what people ask for is checked, begun as a whole or refused as a whole, and answered once."""

from __future__ import annotations

from typing import Any

import pytest
from parts import COMMITS, LEAVING, MEMBERS, TERM, Surroundings, broker, calls, journal_of, resting

from nearcast.core.controller.distances import Distances
from nearcast.core.controller.planning_input import LoadWindow
from nearcast.core.controller.requests import LOOKUPS_AT_ONCE, REQUEST_S, Requests
from nearcast.core.model.counters import TopicCounters
from nearcast.core.model.journal import Journal, LossEntry, MoveEntry, Pace, Phase, TopicEntry
from nearcast.core.model.logs import PartLoad
from nearcast.core.model.placement import Mode, first_use, single
from nearcast.core.model.reports import Report
from nearcast.core.wire import bus

SINGLE = Mode.SINGLE


class Others:
    """Stands in for the members, the moves and the departures."""

    def __init__(self) -> None:
        self.stages: dict[str, str] = {}
        self.begun: list[tuple[str, Pace]] = []
        self.left: list[tuple[str, str]] = []
        self.problem = ""
        self.stage = self.stages.get
        self.keeps: dict[str, dict[str, PartLoad]] = {}

    def granted_lately(self, name: str, now_s: float) -> bool:
        return name == "b1"

    def began(self, topic: str, pace: Pace, now_s: float) -> None:
        self.begun.append((topic, pace))

    def begin(self, name: str, *, abandon: bool) -> str:
        self.left.append(("abandon" if abandon else "begin", name))
        return self.problem

    def cancel(self, name: str) -> str:
        self.left.append(("cancel", name))
        return self.problem


class Asked(Surroundings):
    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.others, self.load = Others(), LoadWindow()
        others: Any = self.others
        self.distances = Distances(self.office, self.roster, others)
        self.requests = Requests(self.office, self.roster, others, others, others, self.load, self.distances)

    def move(self, number: int, now_s: float = 0.0, pace: Pace = Pace.EAGER, **brokers: str) -> None:
        """Ask to place topics, each on one broker."""
        self.place(number, {topic: (SINGLE, (name,)) for topic, name in brokers.items()}, now_s, pace)

    def place(self, number: int, wanted: bus.Placements, now_s: float = 0.0, pace: Pace = Pace.EAGER) -> None:
        self.requests.heard(bus.MoveTopics(f"me.{number}", wanted, pace), now_s)

    def problem(self) -> str:
        """Of the only answer."""
        (state,) = self.said()
        return state.problem


def asked(**topics: str) -> Asked:
    """Topics that the journal names, each on one broker."""
    entries = {topic: TopicEntry(single(6, name, 5)) for topic, name in topics.items()}
    return Asked(journal_of("b1", "b2", "b3", topics=entries))


# --- placing topics


def test_all_topics_of_a_request_begin_in_one_commit_and_then_it_is_answered() -> None:
    one = asked(t="b1", u="b2")
    one.move(1, pace=Pace.LAZY, t="b3", u="b3")
    assert one.said() == []
    assert one.others.begun == []
    assert one.commit() == {
        "topic/t": TopicEntry(single(6, "b1", 5), MoveEntry(Phase.PREPARE, single(7, "b3", MEMBERS))),
        "topic/u": TopicEntry(single(6, "b2", 5), MoveEntry(Phase.PREPARE, single(7, "b3", MEMBERS))),
    }
    assert one.others.begun == [("t", Pace.LAZY), ("u", Pace.LAZY)]
    (state,) = one.said()
    assert (state.request, state.problem, state.version) == ("me.1", "", COMMITS + 1)
    assert state.topics["t"].target == single(7, "b3", MEMBERS)
    assert len(one.requests) == 0


@pytest.mark.parametrize(
    ("topic", "mode", "brokers", "problem"),
    [
        ("u", SINGLE, ("b9",), "unknown broker 'b9'"),
        ("u", SINGLE, ("b4",), "broker 'b4' is leaving; the members are: b1, b2, b3"),
        ("u", SINGLE, ("b1", "b2"), "mode single takes one broker"),
        ("u", Mode.ALL_SUBSCRIBERS, ("b1", "b1"), "names a broker twice"),
        ("u", SINGLE, (), "names no broker"),
        ("nc:u", SINGLE, ("b1",), "nc:"),
    ],
)
def test_a_request_with_one_fault_is_refused_as_a_whole(
    topic: str, mode: Mode, brokers: tuple[str, ...], problem: str
) -> None:
    one = asked(t="b1")
    one.journal.brokers["b4"] = broker("b4", LEAVING)
    one.place(1, {"t": (SINGLE, ("b3",)), topic: (mode, brokers)})
    assert problem in one.problem()
    assert one.commit() == {}
    assert one.orders() == []
    assert len(one.requests) == 0


def test_a_topic_nobody_has_placed_is_looked_up_at_its_directory_once() -> None:
    one = asked(t="b1")
    directory = one.roster.directory("new")
    assert directory is not None
    one.move(1, t="b3", new="b2" if directory != "b2" else "b3")
    ((name, lookup),) = one.orders()
    assert (name, lookup.topic, lookup.term) == (directory, "new", TERM)
    for now_s in (0.1, 0.2):
        one.requests.tick(now_s)
    assert one.orders() == []
    assert one.commit() == {}, "nothing of it begins before all of it can"
    one.answer(directory, lookup, 0.25, records={"new": first_use(MEMBERS, directory)})
    one.requests.tick(0.3)
    entries = one.commit()
    assert entries.keys() == {"topic/t", "topic/new"}
    assert entries["topic/new"].placement == single(MEMBERS, directory, MEMBERS)  # type: ignore[union-attr]


def test_what_a_directory_said_before_it_was_restarted_does_not_count() -> None:
    one = asked()
    directory = one.roster.directory("new")
    assert directory is not None
    one.move(1, new="b3")
    lookup = one.order()
    one.ledger.write_broker(directory, broker(directory, run_id="second"))
    one.commit()
    one.answer(directory, lookup, 0.1, records={"new": first_use(MEMBERS, directory)})
    one.requests.tick(0.2)
    assert one.commit() == {}
    assert [type(order).__name__ for _, order in one.orders()] == ["Lookup"]


def test_a_topic_whose_directory_is_changing_is_not_looked_up() -> None:
    one = Asked(journal_of("b1", "b2", "b3", closed_from=("b1",)))
    topic = next(name for name in resting(100, "b1") if one.journal.membership.directory(name.encode()) is None)
    one.move(1, **{topic: "b1"})
    assert one.orders() == []
    assert len(one.requests) == 1


def test_a_request_waits_while_one_of_its_topics_moves_and_begins_afterwards() -> None:
    one = asked(t="b1", u="b2")
    one.others.stages["u"] = "ready"
    one.move(1, t="b3", u="b3")
    one.requests.tick(1.0)
    assert one.commit() == {}
    one.others.stages.clear()
    one.requests.tick(1.1)
    assert one.commit().keys() == {"topic/t", "topic/u"}


def test_a_request_that_cannot_begin_for_long_is_refused() -> None:
    one = asked(t="b1")
    one.others.stages["t"] = "ready"
    one.move(1, t="b3")
    one.requests.tick(REQUEST_S)
    assert one.said() == []
    one.requests.tick(REQUEST_S + 0.1)
    assert "kept moving" in one.problem()
    one.others.stages.clear()
    one.requests.tick(REQUEST_S + 0.2)
    assert one.commit() == {}


def test_a_broker_that_dies_while_a_request_waits_for_it_refuses_it() -> None:
    one = asked(t="b1")
    one.others.stages["t"] = "ready"
    one.move(1, t="b3")
    one.ledger.write_broker("b3", broker("b3", LEAVING))
    one.commit()
    one.requests.tick(0.1)
    assert "broker 'b3' is leaving" in one.problem()
    assert len(one.requests) == 0


def test_a_request_that_is_heard_twice_is_answered_once_and_one_that_is_done_changes_nothing() -> None:
    one = asked(t="b1")
    one.others.stages["t"] = "ready"
    one.move(1, t="b3")
    one.move(1, t="b3")
    one.others.stages.clear()
    one.requests.tick(0.1)
    one.commit()
    assert len(one.said()) == 1
    one.journal.topics["t"] = TopicEntry(single(7, "b3", MEMBERS))
    one.move(1, t="b3")
    assert one.commit() == {}
    assert one.problem() == ""


def test_what_a_person_places_where_it_is_stays_there() -> None:
    one = asked()
    directory = one.roster.directory("new")
    assert directory is not None
    one.move(1, new=directory)
    one.answer(directory, one.order(), 0.0, records={"new": first_use(MEMBERS, directory)})
    one.requests.tick(0.1)
    assert one.commit() == {"topic/new": TopicEntry(single(MEMBERS, directory, MEMBERS))}


def test_what_a_policy_places_where_it_is_is_not_written_down_and_a_policy_is_not_answered() -> None:
    one = asked()
    directory = one.roster.directory("new")
    assert directory is not None
    one.requests.heard(bus.MoveTopics(".1", {"new": (SINGLE, (directory,))}), 0.0)
    one.answer(directory, one.order(), 0.0, records={"new": first_use(MEMBERS, directory)})
    one.requests.tick(0.1)
    assert one.commit() == {}
    one.requests.heard(bus.MoveTopics(".2", {"new": (SINGLE, ("b9",))}), 0.0)
    assert one.said() == []
    assert "a proposal was refused" in one.office.notes[-1]


def test_requests_that_wait_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearcast.core.controller.requests.REQUESTS_MAX", 3)
    one = asked(t="b1")
    one.others.stages["t"] = "ready"
    for number in range(3):
        one.move(number, t="b3")
    assert one.said() == []
    one.move(3, t="b3")
    assert "requests waiting" in one.problem()


def test_a_request_for_many_topics_costs_as_much_as_it_has_topics() -> None:
    one = Asked(journal_of("b1", "b2", "b3", topics=resting(20_000, "b1")))
    few = dict.fromkeys(list(one.journal.topics)[:100], (SINGLE, ("b2",)))
    assert calls(one.place, 1, few) < 10_000, "the others are not looked at"
    assert len(one.commit()) == 100


def test_many_topics_that_nobody_has_placed_are_looked_up_some_at_a_time() -> None:
    """Their directories are slower than orders are repeated: the orders of all at once would displace each other."""
    one = asked()
    one.place(1, dict.fromkeys(resting(6000, "b1"), (SINGLE, ("b1",))))
    slow: list[list[tuple[str, Any]]] = [[], [], [], []]
    for step in range(1, 200):
        given = one.orders()
        assert len(given) <= LOOKUPS_AT_ONCE
        slow.append(given)
        for name, lookup in slow.pop(0):
            one.answer(name, lookup, step / 10, records={lookup.topic: first_use(MEMBERS, name)})
        one.requests.tick(step / 10)
        if one.commit(step / 10):
            break
    assert one.problem() == ""
    assert len(one.journal.topics) == 6_000


# --- brokers


@pytest.mark.parametrize(
    ("how", "begun"), [({}, "begin"), ({"cancel": True}, "cancel"), ({"abandon": True}, "abandon")]
)
def test_a_departure_is_passed_on_and_answered_when_it_is_written(how: dict[str, bool], begun: str) -> None:
    one = asked()
    one.requests.heard(bus.Drain("me.1", "b2", **how), 0.0)
    assert one.others.left == [(begun, "b2")]
    assert one.said() == []
    one.commit()
    assert one.problem() == ""
    one.others.problem = "no"
    one.requests.heard(bus.Drain("me.2", "b2", **how), 0.0)
    assert one.problem() == "no"


@pytest.mark.parametrize(
    ("request_", "figure"),
    [(bus.SetCapacity, "capacity_bytes_per_s"), (bus.SetMessagesHigh, "messages_high_per_s")],
)
def test_a_figure_is_not_written_over_a_state_that_changes_this_moment(request_: Any, figure: str) -> None:
    one = asked()
    one.ledger.write_broker("b2", broker("b2", LEAVING))
    one.requests.heard(request_("me.1", "b2", 5e6), 0.0)
    assert "is just changing its state" in one.problem()
    one.commit()
    one.requests.heard(request_("me.2", "b2", 5e6), 0.0)
    assert one.commit() == {"broker/b2": broker("b2", LEAVING, **{figure: 5e6})}


def test_a_loss_is_acknowledged_when_nobody_else_writes_it() -> None:
    one = asked()
    one.requests.heard(bus.AcknowledgeLoss("me.1"), 0.0)
    assert "no data loss of the store is known" in one.problem()
    one.journal.loss = LossEntry(0.0, TERM, "some")
    one.ledger.write({"loss": LossEntry(0.0, TERM, "some", verified=True)})
    one.requests.heard(bus.AcknowledgeLoss("me.2"), 0.0)
    assert "entry of the loss is just being changed" in one.problem()
    one.commit()
    one.requests.heard(bus.AcknowledgeLoss("me.3"), 0.0)
    assert one.commit() == {"loss": LossEntry(0.0, TERM, "some", verified=True, acknowledged=True)}


# --- answers


def test_the_state_shows_who_responds_their_load_and_where_topics_are_going() -> None:
    one = asked(t="b1")
    one.ledger.write_topic("t", TopicEntry(single(6, "b1", 5), MoveEntry(Phase.PREPARE, single(7, "b2", 5))))
    one.commit()
    one.others.stages["t"] = "ready"
    report = Report("b1", 0.0, 1.0, 5.0, 0.0, 1, 1, 0.0, 0.0, {"t": TopicCounters(subscribers=1)})
    one.load.add(report, 0.0)
    one.office.decided("something", 0.0)
    one.requests.heard(bus.Show("me.1", ("t", "new")), 0.0)
    (state,) = one.said()
    assert {name: view.alive for name, view in state.brokers.items()} == {"b1": True, "b2": False, "b3": False}
    assert state.brokers["b1"].report.topics == {}
    assert (state.topics["t"].stage, state.topics["t"].target) == ("ready", single(7, "b2", 5))
    assert not state.topics["new"].planned
    assert [decision.text for decision in state.decisions] == ["something"]


def test_many_topics_are_shown_a_part_at_a_time() -> None:
    one = Asked(journal_of("b1", topics=resting(20_000, "b1")))
    for start in (0, 19_500):
        assert calls(one.requests.heard, bus.Show("me.1", start=start), 0.0) < 20 * bus.SHOWN_MAX
    first, last = one.said()
    assert (len(first.topics), first.next_start) == (bus.SHOWN_MAX, bus.SHOWN_MAX)
    assert (len(last.topics), last.next_start) == (500, 0)
