"""The planner: when the policy is asked, what it sees, and how its proposals are carried out."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.core.controller.planner import PlanningSettings
from nearcast.core.model.counters import TopicCounters
from nearcast.core.model.journal import BrokerState
from nearcast.core.model.names import PROVIDER_CHANNEL
from nearcast.core.model.placement import Mode, Plan
from nearcast.core.model.planning import (
    AddBroker,
    Cause,
    KeepBroker,
    PlaceTopic,
    Proposal,
    Reason,
    RemoveBroker,
    Snapshot,
)
from nearcast.core.model.reports import Report
from nearcast.core.wire import bus
from nearcast.errors import UsageError


class Silent:
    """A policy that is not run here: the tests answer for it."""

    name = "test"

    def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal:
        raise AssertionError


PLANNING = PlanningSettings(check_s=0.5, wait_s=2.0, brokers_max=4, policy=Silent())
REASON = Reason(Cause.HIGH_LOAD, "load ratio of b1", 0.95, 0.8)


@pytest.fixture
def planned(cluster_of: Any) -> Any:
    cluster = cluster_of("b1", "b2", "b3", planning=PLANNING)
    cluster.run(4.0)
    return cluster


def question(cluster: Any, seconds: float = 3.0) -> Any:
    """The next question to the policy; one that is open is answered with nothing, since it does not know the newest."""
    for asked in cluster.leader.questions:
        cluster.leader.answered(asked.number, Proposal("test"), cluster.rig.now_s)
    cluster.leader.questions.clear()
    for _ in range(round(seconds / 0.05)):
        cluster.run(0.05)
        if cluster.leader.questions:
            return cluster.leader.questions.pop()
    return None


def answer(cluster: Any, asked: Any, *changes: Any, problem: str = "") -> None:
    cluster.leader.answered(asked.number, Proposal("test", changes, problem=problem), cluster.rig.now_s)
    cluster.run(0.05)


def report(cluster: Any, broker: str, output_bytes_per_s: float, **topics: TopicCounters) -> None:
    now_s = cluster.rig.now_s
    sent = Report(broker, now_s, 1.0, output_bytes_per_s, 0.0, 3, 1000, 0.2, 0.0, topics)
    cluster.leader.leading.heard(sent, now_s)


def test_without_a_policy_nobody_is_asked(cluster: Any) -> None:
    cluster.run(3.0)
    assert cluster.leader.questions == []


def test_the_policy_sees_loads_and_where_topics_are(planned: Any) -> None:
    planned.move("t", Mode.SINGLE, "b1")
    planned.run(1.0)
    planned.ask(bus.SetCapacity("me.1", "b1", 1000.0))
    planned.ask(bus.SetMessagesHigh("me.2", "b1", 70.0))
    answer(planned, question(planned))
    counters = TopicCounters(published=10, published_bytes=100, received=20, received_bytes=200, publishers=1)
    report(planned, "b1", 500.0, t=counters)
    report(planned, "b2", 70.0, u=counters)
    asked = question(planned, 0.6)
    snapshot, plan = asked.view.snapshot()
    load = snapshot.brokers["b1"]
    assert (load.capacity_bytes_per_s, load.messages_high_per_s) == (1000.0, 70.0)
    assert 0 < load.load_ratio < 0.6  # a mean over the last seconds, most of them quiet
    assert snapshot.brokers["b2"].capacity_bytes_per_s == PLANNING.capacity_bytes_per_s
    assert snapshot.brokers["b2"].messages_high_per_s == 0.0
    assert plan.topics["t"].brokers == ("b1",)
    assert plan.topics["u"].brokers == ("b2",)  # nobody has placed it: it lives where it is reported
    assert snapshot.topics["t"].publications_per_s > 0
    assert (snapshot.spare, snapshot.coming) == (1, 0)


def test_one_question_at_a_time(planned: Any) -> None:
    assert question(planned) is not None
    planned.run(3.0)
    assert planned.leader.questions == []


def test_after_a_change_the_policy_waits(planned: Any) -> None:
    asked = question(planned)
    answer(planned, asked, PlaceTopic("t", Mode.SINGLE, ("b3",), REASON))
    assert question(planned, PLANNING.wait_s - 0.3) is None
    assert question(planned, 1.0) is not None
    assert planned.journal.topics["t"].placement.brokers == ("b3",)


def test_without_a_change_it_does_not_wait(planned: Any) -> None:
    answer(planned, question(planned))
    assert question(planned, PLANNING.check_s + 0.2) is not None


def test_every_decision_is_written_down_with_its_reason(planned: Any) -> None:
    answer(planned, question(planned), PlaceTopic("t", Mode.SINGLE, ("b3",), REASON), problem="too few brokers")
    texts = [decision.text for decision in planned.ask(bus.Show("me.1")).decisions]
    assert texts == [
        "test: too few brokers",
        "test: t -> single on b3 (high_load: load ratio of b1 0.95, threshold 0.8)",
    ]


def test_a_proposal_that_cannot_be_carried_out_is_refused_whole(planned: Any) -> None:
    good, bad = PlaceTopic("t", Mode.SINGLE, ("b1",), REASON), PlaceTopic("u", Mode.SINGLE, ("b9",), REASON)
    answer(planned, question(planned), good, bad)
    planned.run(1.0)
    assert planned.journal.topics == {}
    assert any("a proposal was refused" in note and "b9" in note for note in planned.leader.notes)


def test_a_policy_that_failed_changes_nothing(planned: Any) -> None:
    asked = question(planned)
    planned.leader.answered(asked.number, None, planned.rig.now_s)
    assert question(planned) is not None


def test_an_answer_to_another_question_is_not_heard(planned: Any) -> None:
    asked = question(planned)
    planned.leader.answered(asked.number - 1, Proposal("test", (AddBroker(REASON),)), planned.rig.now_s)
    planned.run(0.2)
    assert set(planned.states()) == {"b1", "b2", "b3"}


# --- brokers


def told(cluster: Any) -> list[Any]:
    """What the provider heard."""
    heard: list[Any] = []
    session = cluster.rig.servers["store"].connect(lambda data: None)

    class Listener:
        def published(self, server: Any, channel: bytes, payload: bytes, receivers: Any) -> None:
            if channel == PROVIDER_CHANNEL:
                heard.append(bus.decode_for_provider(payload))

        def installed(self, *args: Any) -> None:
            pass

        def wiped(self, *args: Any) -> None:
            pass

    cluster.rig.servers["store"].observers.append(Listener())
    session.close()
    return heard


def test_a_broker_is_rented_and_asked_for_again_until_it_comes(planned: Any) -> None:
    heard = told(planned)
    answer(planned, question(planned), AddBroker(REASON))
    planned.run(2.5)
    assert planned.states()["rented-1"] is BrokerState.RENTED
    assert heard == [bus.Rent("rented-1", 1)] * 3
    asked = question(planned)
    assert (asked.view.spare, asked.view.coming) == (0, 1)


def test_a_rented_broker_that_never_comes_is_given_back(planned: Any) -> None:
    answer(planned, question(planned), AddBroker(REASON))
    planned.run(31.0)
    assert planned.states()["rented-1"] is BrokerState.LEFT
    assert any("no provider has started rented-1" in note for note in planned.leader.notes)
    answer(planned, question(planned, 40.0), AddBroker(REASON))
    planned.run(0.2)
    assert planned.states()["rented-1"] is BrokerState.RENTED  # the name is used again


def test_a_broker_that_has_just_joined_is_shown_as_fresh_at_once(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2", "b3", planning=PlanningSettings(check_s=0.5, wait_s=60.0, policy=Silent()))
    late = next(wired for wired in cluster.rig.wired if wired.machine is cluster.agents["b3"])
    cluster.rig.wired.remove(late)
    cluster.run(4.0)
    asked = cluster.leader.questions.pop()
    answer(cluster, asked, PlaceTopic("t", Mode.SINGLE, ("b1",), REASON))
    cluster.rig.wired.append(late)
    asked = question(cluster, 5.0)
    assert asked is not None  # although T_wait is not over
    fresh = {name for name, load in asked.view.snapshot()[0].brokers.items() if load.fresh}
    assert fresh == {"b3"}
    answer(cluster, asked)
    assert question(cluster, 5.0) is None


def test_a_policy_lets_a_broker_leave_and_changes_its_mind(planned: Any) -> None:
    answer(planned, question(planned), RemoveBroker("b3", REASON))
    planned.run(0.05)
    assert planned.states()["b3"] is BrokerState.LEAVING
    planned.leader.leading.executor.change(KeepBroker("b3", REASON))
    planned.run(3.0)
    assert planned.states()["b3"] is BrokerState.MEMBER


def test_a_policy_does_not_call_off_what_a_person_wants(planned: Any) -> None:
    planned.leader.leading.heard(bus.Drain("me.1", "b3"), planned.rig.now_s)
    planned.run(0.1)
    planned.leader.leading.executor.change(KeepBroker("b3", REASON))
    planned.run(5.0)
    assert planned.states()["b3"] is BrokerState.LEFT


def test_loaded_topics_of_a_leaving_broker_are_left_to_the_policy(planned: Any) -> None:
    planned.move("t", Mode.SINGLE, "b3")
    planned.run(1.0)
    planned.ask(bus.MoveTopics("me.2", {"idle": (Mode.SINGLE, ("b3",))}))
    planned.run(1.0)
    answer(planned, question(planned))
    report(planned, "b3", 500.0, t=TopicCounters(published=10, received=20, received_bytes=200))
    asked = question(planned, 0.6)
    answer(planned, asked, RemoveBroker("b3", REASON))
    planned.run(1.5)
    topics = planned.journal.topics
    assert topics["t"].placement.brokers == ("b3",)
    assert topics["idle"].placement.brokers != ("b3",)
    asked = question(planned)
    assert asked.view.snapshot()[0].brokers["b3"].draining
    answer(planned, asked, PlaceTopic("t", Mode.SINGLE, ("b1",), REASON))
    planned.run(4.0)
    assert planned.states()["b3"] is BrokerState.LEFT


def test_planning_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="check_s > 0"):
        PlanningSettings(check_s=0)


def test_a_new_leader_does_not_judge_by_what_it_has_not_heard(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2", planning=PLANNING)
    cluster.run(3.0)
    silent = next(wired for wired in cluster.rig.wired if wired.machine is cluster.agents["b2"])
    silent.machine.reporting.meter.measure = lambda *args: None  # it has nothing to report
    cluster.leader.leading._load._reports.clear()
    assert question(cluster, 3.0) is None
    del silent.machine.reporting.meter.measure
    assert question(cluster, 3.0) is not None


def test_a_new_leader_waits_before_its_first_question(cluster_of: Any) -> None:
    cluster = cluster_of("b1", controllers=2, planning=PlanningSettings(check_s=0.5, wait_s=4.0, policy=Silent()))
    cluster.run(3.0)
    first = cluster.leader
    cluster.stopped.add(first)
    cluster.rig.wired = [wired for wired in cluster.rig.wired if wired.machine is not first]
    cluster.run(2.0)
    leads_s = cluster.rig.now_s
    assert cluster.leader.questions == []
    assert question(cluster, 10.0) is not None
    assert cluster.rig.now_s - leads_s >= 2.0


def test_seconds_in_which_topics_moved_do_not_count(planned: Any) -> None:
    answer(planned, question(planned))
    report(planned, "b1", 5000.0)
    planned.move("t", Mode.SINGLE, "b1")
    planned.run(0.5)
    asked = question(planned, 4.0)
    windows = asked.view.windows["b1"]
    assert windows
    assert all(window.output_bytes_per_s < 5000.0 for window in windows)


def test_a_broker_that_joins_while_the_policy_thinks_is_still_fresh(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2", planning=PLANNING)
    late = next(wired for wired in cluster.rig.wired if wired.machine is cluster.agents["b2"])
    cluster.rig.wired.remove(late)
    cluster.run(4.0)
    thinking = question(cluster)
    assert set(thinking.view.brokers) == {"b1"}
    cluster.rig.wired.append(late)
    cluster.run(4.0)
    assert cluster.states()["b2"] is BrokerState.MEMBER
    answer(cluster, thinking)
    (asked,) = cluster.leader.questions  # at once
    assert asked.view.fresh == {"b2"}


def test_a_proposal_that_cannot_be_done_whole_is_not_begun(planned: Any) -> None:
    wrong = PlaceTopic("t", Mode.SINGLE, ("nobody",), REASON)
    answer(planned, question(planned), AddBroker(REASON), RemoveBroker("b3", REASON), wrong)
    planned.run(0.5)
    assert planned.states() == dict.fromkeys(("b1", "b2", "b3"), BrokerState.MEMBER)
    (decision,) = planned.leader.leading.office.decisions
    assert "a proposal was refused as a whole" in decision.text
    assert "unknown broker 'nobody'" in decision.text
