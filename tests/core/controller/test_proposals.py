"""The planner and the execution of proposals alone: when a policy is asked, and that all of it is done or nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from parts import COMMITS, JOINING, LEAVING, MEMBERS, RENTED, TERM, Surroundings, broker, calls, journal_of, resting

from nearcast.core.controller.departures import Departures
from nearcast.core.controller.distances import Distances
from nearcast.core.controller.effects import Questions
from nearcast.core.controller.planner import REPORT_S, Planner, PlanningSettings, ProposalExecutor
from nearcast.core.controller.planning_input import LoadWindow, PlanningInput
from nearcast.core.model.bounds import Bound
from nearcast.core.model.distances import Candidate, TopicDistances
from nearcast.core.model.journal import Journal, MoveEntry, Pace, Phase, TopicEntry
from nearcast.core.model.logs import Log
from nearcast.core.model.placement import Mode, single
from nearcast.core.model.planning import AddBroker, Cause, KeepBroker, PlaceTopic, Proposal, Reason, RemoveBroker
from nearcast.core.model.reports import Report
from nearcast.core.wire import bus

REASON = Reason(Cause.HIGH_LOAD, "load ratio of b1", 0.95, 0.8)


def place(topic: str, *brokers: str) -> PlaceTopic:
    return PlaceTopic(topic, Mode.SINGLE, brokers, REASON)


# --- executing


class Doing:
    """Stands in for the moves, the requests, the departures and the provisioning: notes what each is asked to do."""

    def __init__(self, impossible: Collection[str] = ()) -> None:
        self.impossible = impossible  # brokers
        self.done: list[Any] = []
        self.waiting = 0
        self.directories: dict[str, str] = {}  # of topics that no plan names
        self.placing: frozenset[str] = frozenset()

    def waits_for(self, topic: str) -> str:
        return self.directories.get(topic, "")

    def __len__(self) -> int:
        return self.waiting

    def problem(self, subject: str | bus.Placements, others: Collection[str] = ()) -> str:
        named = [subject] if isinstance(subject, str) else [name for _, names in subject.values() for name in names]
        return ", ".join(f"not {name}" for name in named if name in self.impossible)

    problem_of_staying = problem

    def heard(self, request: bus.MoveTopics, now_s: float) -> None:
        self.done.append(request)

    def rent(self) -> None:
        self.done.append("rent")

    def begin(self, name: str, *, by_policy: bool) -> None:
        self.done.append(("remove", name, by_policy))

    def cancel(self, name: str, *, by_policy: bool) -> None:
        self.done.append(("keep", name, by_policy))


def executor(doing: Any) -> ProposalExecutor:
    return ProposalExecutor(TERM, doing, doing, doing, doing)


def test_all_of_a_proposal_is_carried_out_and_its_topics_in_one_request() -> None:
    doing = Doing()
    changes = (place("t", "b1"), RemoveBroker("b3", REASON), place("u", "b2"), AddBroker(REASON, 2))
    executor(doing).carry_out(Proposal("test", (*changes, KeepBroker("b4", REASON))), 0.0)
    request, *others = doing.done
    assert request.placements == {"t": (Mode.SINGLE, ("b1",)), "u": (Mode.SINGLE, ("b2",))}
    assert others == [("remove", "b3", True), "rent", "rent", ("keep", "b4", True)]


@pytest.mark.parametrize(("topics", "pace"), [(1, Pace.EAGER), (2, Pace.LAZY)])
def test_several_topics_do_not_move_all_at_once(topics: int, pace: Pace) -> None:
    doing = Doing()
    executor(doing).carry_out(Proposal("test", tuple(place(f"t{number}", "b1") for number in range(topics))), 0.0)
    assert doing.done[0].pace is pace


def test_topics_that_are_judged_apart_wait_for_no_directory_but_their_own() -> None:
    doing = Doing()
    doing.directories = {"u": "b2", "v": "b3", "w": "b2"}
    changes = tuple(place(topic, "b1") for topic in "tuvwx")
    ProposalExecutor(TERM, doing, doing, doing, doing, apart=True).carry_out(Proposal("test", changes), 0.0)  # type: ignore[arg-type]
    assert [list(request.placements) for request in doing.done] == [["t", "x"], ["u", "w"], ["v"]]
    assert {request.pace for request in doing.done} == {Pace.LAZY}
    assert len({request.request for request in doing.done}) == 3
    executor(doing).carry_out(Proposal("test", changes), 0.0)
    assert list(doing.done[-1].placements) == list("tuvwx"), "not apart: as a whole"


def test_no_two_requests_of_policies_have_the_same_name() -> None:
    doing = Doing()
    for term in (TERM, TERM, TERM + 1):
        one = ProposalExecutor(term, doing, doing, doing, doing)  # type: ignore[arg-type]
        for _ in range(2):
            one.carry_out(Proposal("test", (place("t", "b1"),)), 0.0)
    names = [request.request for request in doing.done]
    assert all(name.startswith(".") for name in names)
    assert len(set(names)) == 4, "the second executor has the same term as the first"


@pytest.mark.parametrize("change", [place("u", "b9"), RemoveBroker("b9", REASON), KeepBroker("b9", REASON)])
def test_a_proposal_with_one_impossible_change_has_a_problem(change: Any) -> None:
    one = executor(Doing({"b9"}))
    assert one.problem(Proposal("test", (place("t", "b1"), AddBroker(REASON)))) == ""
    assert one.problem(Proposal("test", (place("t", "b1"), change))) == "not b9"


def test_brokers_that_one_proposal_removes_are_not_each_others_reason_to_go() -> None:
    around, doing = Surroundings(journal_of("b1", "b2", "b3")), Doing()
    departures = Departures(around.office, around.roster, doing, doing, lambda *_: False)  # type: ignore[arg-type]
    one = ProposalExecutor(TERM, doing, doing, departures, doing)  # type: ignore[arg-type]
    names = ("b1", "b2", "b3")
    two, all_of_them = (Proposal("test", tuple(RemoveBroker(name, REASON) for name in names[:n])) for n in (2, 3))
    assert "is the last member" in one.problem(all_of_them)
    assert one.problem(two) == ""
    one.carry_out(two, 0.0)
    assert around.commit().keys() == {"broker/b1", "broker/b2"}


def test_who_moves_or_waits_to_move_is_busy() -> None:
    moves, requests = Doing(), Doing()
    one = ProposalExecutor(TERM, moves, requests, moves, moves)  # type: ignore[arg-type]
    assert not one.busy
    moves.waiting = 1
    assert one.busy
    moves.waiting, requests.waiting = 0, 1
    assert one.busy


# --- the planner


class Silent:
    """A policy that is not run here: the tests answer for it."""

    name = "silent"

    def propose(self, snapshot: Any, plan: Any) -> Proposal:
        raise AssertionError


PLANNING = PlanningSettings(check_s=0.5, wait_s=10.0, brokers_max=5, policy=Silent())


class Planned(Surroundings):
    def __init__(self, journal: Journal, settings: PlanningSettings | None = PLANNING) -> None:
        super().__init__(journal)
        self.load, self.questions, self.doing = LoadWindow(), Questions(TERM), Doing({"b9"})
        members: Any = self.doing
        self.distances = Distances(self.office, self.roster, members)
        self.planner = Planner(
            self.office,
            self.roster,
            self.load,
            self.distances,
            self.questions,
            executor(self.doing),
            settings,
            now_s=0.0,
        )

    def report(self, now_s: float, *brokers: str) -> None:
        for name in brokers:
            self.load.add(Report(name, now_s, 1.0, 5.0, 0.0, 1, 1, 0.0, 0.0), now_s)

    def asked(self, now_s: float) -> Any:
        """Everybody has just reported: the question that is asked now, if there is one."""
        self.report(now_s, *self.journal.brokers)
        self.planner.tick(now_s)
        questions = self.questions.take()
        assert len(questions) <= 1
        return questions[0] if questions else None

    def answer(self, asked: Any, now_s: float, *changes: Any, problem: str = "") -> None:
        self.questions.answered(asked.number, Proposal("test", changes, problem=problem), now_s)


def planned() -> Planned:
    return Planned(journal_of("b1", "b2"))


def test_a_new_leader_waits_and_then_asks_every_now_and_then() -> None:
    one = planned()
    assert one.asked(9.9) is None
    asked = one.asked(10.0)
    assert asked.decider.name == "policy silent"
    assert one.asked(11.0) is None, "the policy has not answered"
    one.answer(asked, 11.0)
    assert one.asked(11.1) is not None
    assert one.asked(11.2) is None


def test_nobody_is_asked_more_often_than_the_settings_say() -> None:
    one = planned()
    one.answer(one.asked(10.0), 10.1)
    assert one.asked(10.4) is None
    assert one.asked(10.5) is not None


@pytest.mark.parametrize("settings", [None, PlanningSettings()])
def test_without_a_policy_nobody_is_asked(settings: PlanningSettings | None) -> None:
    assert Planned(journal_of("b1", "b2"), settings).asked(20.0) is None


def test_the_policy_does_not_judge_before_every_broker_has_reported() -> None:
    one = planned()
    one.report(10.0, "b1")
    one.planner.tick(10.0)
    assert one.questions.take() == []
    one.report(10.1, "b2")
    one.planner.tick(10.1)
    assert len(one.questions.take()) == 1


def test_reports_of_seconds_in_which_topics_moved_do_not_count() -> None:
    one = planned()
    one.doing.waiting = 1
    one.report(20.0, "b1", "b2")
    assert one.asked(20.0) is None
    one.doing.waiting = 0
    assert one.asked(20.0 + REPORT_S - 0.01) is None
    assert one.asked(20.0 + REPORT_S).view.windows.keys() == {"b1", "b2"}


def test_what_the_policy_sees() -> None:
    journal = journal_of("b1", "b2", topics=resting(2, "b1"), b3=LEAVING, b4=JOINING, b5=RENTED)
    view = Planned(journal).asked(10.0).view
    assert isinstance(view, PlanningInput)
    assert view.brokers.keys() == {"b1", "b2", "b3"}
    assert (view.version, view.members, view.coming, view.spare) == (COMMITS, MEMBERS, 2, 0)
    assert view.topics == journal.topics
    assert view.topics is not journal.topics, "the journal goes on while the policy thinks"


def test_a_proposal_is_carried_out_and_written_down_and_then_the_load_settles() -> None:
    one = planned()
    one.answer(one.asked(10.0), 10.2, AddBroker(REASON), problem="too few brokers")
    assert one.doing.done == ["rent"]
    assert one.decisions == [
        "test: too few brokers",
        "test: add 1 broker (high_load: load ratio of b1 0.95, threshold 0.8)",
    ]
    assert one.asked(20.1) is None
    assert one.asked(20.2) is not None


def test_a_proposal_that_cannot_be_carried_out_is_refused_as_a_whole() -> None:
    one = planned()
    one.answer(one.asked(10.0), 10.0, AddBroker(REASON), RemoveBroker("b9", REASON))
    assert one.doing.done == []
    assert one.decisions == ["test: a proposal was refused as a whole: not b9"]
    assert one.asked(11.0) is None, "nor is the policy asked again at once"


def test_an_answer_counts_once_and_a_late_one_not_at_all() -> None:
    one = planned()
    asked = one.asked(10.0)
    one.questions.answered(asked.number, None, 10.1)  # the policy failed
    one.answer(asked, 10.2, AddBroker(REASON))
    assert one.doing.done == []
    assert one.asked(10.5) is not None


def test_the_same_problem_is_written_down_once() -> None:
    one = planned()
    for now_s in (10.0, 10.5, 11.0):
        one.answer(one.asked(now_s), now_s, problem="too few brokers")
    assert one.decisions == ["test: too few brokers"]


def test_a_broker_that_has_just_joined_is_shown_at_once_and_until_the_policy_has_seen_it() -> None:
    one = planned()
    one.answer(one.asked(10.0), 10.0, AddBroker(REASON))
    assert one.asked(11.0) is None
    one.ledger.write_broker("b3", broker("b3"))
    one.commit()
    asked = one.asked(11.5)
    assert asked.view.fresh == {"b3"}
    one.ledger.write_broker("b4", broker("b4"))
    one.commit()
    one.answer(asked, 12.0)
    assert one.asked(12.1).view.fresh == {"b4"}, "it joined while the policy was thinking"


def test_a_question_costs_no_more_with_many_topics() -> None:
    many = Planned(journal_of("b1", "b2", topics=resting(20_000, "b1")))
    many.report(10.0, "b1", "b2")
    assert calls(many.planner.tick, 10.0) < 100
    assert len(many.questions.take()) == 1


# --- policies that judge topics one by one


PER_TOPIC = msgspec.structs.replace(PLANNING, per_topic=True, topic_wait_s=5.0)


def test_one_topics_move_does_not_hold_up_another() -> None:
    one = Planned(journal_of("b1", "b2"), PER_TOPIC)
    first = one.asked(10.0)
    one.answer(first, 10.0, place("t", "b2"))
    one.doing.waiting = 1
    second = one.asked(11.0)
    assert second is not None, "neither the move nor the change is waited for"
    assert second.view.settling == {"t"}
    one.answer(second, 11.0)
    assert one.asked(14.0).view.settling == {"t"}


def test_a_topic_settles_after_its_move_has_ended() -> None:
    moving = TopicEntry(single(MEMBERS, "b1", MEMBERS), MoveEntry(Phase.PREPARE, single(MEMBERS + 1, "b2", MEMBERS)))
    one = Planned(journal_of("b1", "b2", topics={"t": moving}), PER_TOPIC)
    one.answer(one.asked(10.0), 10.0, place("t", "b2"))
    asked = one.asked(20.0)
    assert asked.view.settling == {"t"}, "it still moves"
    one.answer(asked, 20.0)
    one.journal.topics["t"] = TopicEntry(single(MEMBERS + 1, "b2", MEMBERS))
    asked = one.asked(24.0)
    assert asked.view.settling == {"t"}
    one.answer(asked, 24.0)
    assert one.asked(26.0).view.settling == frozenset()


def test_a_topic_whose_directory_has_not_answered_is_not_proposed_again() -> None:
    one = Planned(journal_of("b1", "b2"), PER_TOPIC)
    one.doing.placing = frozenset(("t",))
    assert one.asked(10.0).view.settling == {"t"}


def test_a_topic_that_somebody_moves_is_shown_as_settling() -> None:
    moving = TopicEntry(single(MEMBERS, "b1", MEMBERS), MoveEntry(Phase.PREPARE, single(MEMBERS + 1, "b2", MEMBERS)))
    one = Planned(journal_of("b1", "b2", topics={"t": moving}), PER_TOPIC)
    snapshot, _ = one.asked(10.0).view.snapshot()
    assert snapshot.settling == {"t"}


def test_a_topic_whose_clients_measure_distances_is_shown_as_settling() -> None:
    journal = journal_of("b1", "b2", topics={"t": TopicEntry(single(MEMBERS, "b1", MEMBERS))})
    one = Planned(journal, PER_TOPIC)
    for measuring, settling in ((True, {"t"}), (False, set())):
        near = TopicDistances(Candidate("b1", 0.01, 0.02, 0.03), measuring=measuring)
        one.distances.heard(Report("b1", 9.0, 1.0, 5.0, 0.0, 1, 50, 0.0, 0.0, distances={"t": near}), 9.0)
        assert one.planner._view(PER_TOPIC, 10.0).settling == settling


def test_policies_see_bounds_distances_and_quorums() -> None:
    journal = journal_of("b1", "b2", topics={"t": TopicEntry(single(MEMBERS, "b1", MEMBERS))})
    journal.membership = msgspec.structs.replace(
        journal.membership, bounds={"t*": Bound(0.04)}, logs=(Log("kept", 1, ("t",), 60.0, 1 << 20, 2),)
    )
    one = Planned(journal, PER_TOPIC)
    near = TopicDistances(Candidate("b1", 0.01, 0.02, 0.03))
    found = Report("b1", 9.0, 1.0, 5.0, 0.0, 1, 50, 0.0, 0.0, memory_max_bytes=100, distances={"t": near})
    one.distances.heard(found, 9.0)
    one.load.add(found, 9.5)
    snapshot, plan = one.asked(10.0).view.snapshot()
    assert snapshot.distances == {"t": near}
    assert snapshot.bounds == {"t": Bound(0.04)}
    assert snapshot.quorums == {"t": 2}
    assert plan.topics["t"].brokers == ("b1",), "it is quiet, and still planned"


def test_what_was_predicted_is_compared_with_what_clients_measure() -> None:
    one = Planned(journal_of("b1", "b2", topics={"t": TopicEntry(single(MEMBERS, "b2", MEMBERS))}), PER_TOPIC)
    change = msgspec.structs.replace(place("t", "b2"), predicted_s=0.0123)
    one.answer(one.asked(10.0), 10.0, change)
    found = {"t": TopicDistances(Candidate("b2", 0.01, 0.004, 0.012))}
    one.distances.heard(Report("b2", 1.0, 1.0, 0.0, 0.0, 1, 1, 0.0, 0.0, distances=found), 11.0)
    one.answer(one.asked(11.0), 11.0)
    assert one.decisions[-1] == "t is on b2: worst 14.0 ms, 90 % within 12.0 ms; predicted 12.3 ms"
    one.asked(12.0)
    assert sum("predicted" in text for text in one.decisions) == 1


def test_a_topic_that_keeps_moving_for_little_is_shown_as_restless() -> None:
    one = Planned(journal_of("b1", "b2"), PER_TOPIC)
    little = Reason(Cause.BOUND, "worst_s", 0.041, 0.040)
    for now_s in (10.0, 20.0, 30.0):
        asked = one.asked(now_s)
        assert asked.view.snapshot()[0].restless == frozenset()
        one.answer(asked, now_s, PlaceTopic("t", Mode.SINGLE, ("b2",), little, predicted_s=0.039))
    assert one.asked(40.0).view.snapshot()[0].restless == {"t"}
    assert one.decisions[-1] == "t keeps moving for little: from now on only for more"


@pytest.mark.parametrize("reason", [Reason(Cause.BOUND, "worst_s", 0.080, 0.040), REASON])
def test_who_moves_for_much_or_for_another_reason_is_not_restless(reason: Reason) -> None:
    one = Planned(journal_of("b1", "b2"), PER_TOPIC)
    for now_s in (10.0, 20.0, 30.0):
        one.answer(one.asked(now_s), now_s, PlaceTopic("t", Mode.SINGLE, ("b2",), reason, predicted_s=0.039))
    assert one.asked(40.0).view.restless == frozenset()
