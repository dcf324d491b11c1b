"""When the policy is asked and what it sees, and what becomes of its proposals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nearcast.core.model.placement import Mode, Plan
from nearcast.core.model.planning import (
    AddBroker,
    Cause,
    KeepBroker,
    PlaceTopic,
    Proposal,
    ProposedChange,
    Reason,
    RemoveBroker,
    Snapshot,
)
from nearcast.errors import UsageError
from nearcast.flow.model import ChangeKind, FlowSettings, Series
from nearcast.flow.simulation import FlowSimulation
from nearcast.workloads.hot_topic import HotTopic
from nearcast.workloads.rgame import Ramp, RGame

WHY = Reason(Cause.HIGH_LOAD, "load_ratio", 1.0, 0.8)
SETTINGS = FlowSettings(brokers_max=3, start_s=4.0, wait_s=6.0, move_s=2.0)

Decide = Callable[[Snapshot, Plan], list[ProposedChange]]


class Scripted:
    """A policy that does what the test says and remembers what it saw."""

    name = "scripted"

    def __init__(self, decide: Decide) -> None:
        self.seen: list[Snapshot] = []
        self._decide = decide

    def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal:
        self.seen.append(snapshot)
        return Proposal(self.name, tuple(self._decide(snapshot, plan)))

    @property
    def asked_s(self) -> list[float]:
        return [snapshot.at_s for snapshot in self.seen]


def played(policy: Scripted, seconds: int, brokers: int = 1, settings: FlowSettings = SETTINGS) -> Series:
    game = RGame(4, 4, Ramp.steady(60), seed=2)
    return FlowSimulation(game, policy, settings, brokers=brokers).run(seconds)


def kinds(series: Series) -> list[tuple[float, ChangeKind, str]]:
    return [(change.at_s, change.kind, change.broker or change.topic) for change in series.changes]


def test_a_policy_that_changes_nothing_is_asked_every_second() -> None:
    policy = Scripted(lambda snapshot, plan: [])
    series = played(policy, 8)
    assert policy.asked_s == [0, 1, 2, 3, 4, 5, 6, 7]
    assert series.rebalancings == []
    policy = Scripted(lambda snapshot, plan: [])
    played(policy, 3, settings=FlowSettings(step_s=0.5))
    assert policy.asked_s == [0, 1, 2]


def test_after_a_change_it_is_asked_when_t_wait_is_over() -> None:
    def decide(snapshot: Snapshot, plan: Plan) -> list[ProposedChange]:
        topic = min(plan.topics)
        other = "b2" if plan.topics[topic].brokers == ("b1",) else "b1"
        return [PlaceTopic(topic, Mode.SINGLE, (other,), WHY)]

    policy = Scripted(decide)
    series = played(policy, 20, brokers=2)
    assert policy.asked_s == [0, 6, 12, 18]
    placed = [change for change in series.changes if change.kind is ChangeKind.PLACED]
    assert [(change.began_s, change.at_s) for change in placed] == [(0, 2), (6, 8), (12, 14)]
    assert series.topics_moving[:4] == [0, 1, 0, 0]  # a move takes effect two seconds later
    assert [rebalancing.at_s for rebalancing in series.rebalancings] == policy.asked_s


def test_it_is_not_asked_while_topics_move() -> None:
    settings = FlowSettings(move_s=9.0, wait_s=2.0)
    policy = Scripted(lambda snapshot, plan: [PlaceTopic(min(plan.topics), Mode.SINGLE, ("b2",), WHY)])
    played(policy, 12, brokers=2, settings=settings)
    assert policy.asked_s == [0, 9]


def test_a_rented_broker_joins_after_its_start_and_gets_topics_at_once() -> None:
    def decide(snapshot: Snapshot, plan: Plan) -> list[ProposedChange]:
        if snapshot.at_s == 0:
            return [AddBroker(WHY)]
        fresh = [name for name, broker in snapshot.brokers.items() if broker.fresh]
        return [PlaceTopic(min(plan.topics), Mode.SINGLE, (fresh[0],), WHY)] if fresh else []

    policy = Scripted(decide)
    series = played(policy, 8)
    assert policy.asked_s == [0, 4]  # T_wait would be over at 6
    assert series.brokers == [1, 1, 1, 1, 2, 2, 2, 2]
    assert kinds(series) == [(4, "joined", "b2"), (6, "placed", "tile.0.0")]
    spare_and_coming = [(snapshot.spare, snapshot.coming) for snapshot in policy.seen]
    assert spare_and_coming == [(2, 0), (1, 0)]
    assert [broker.removable for broker in policy.seen[1].brokers.values()] == [False, True]


def test_a_broker_is_fresh_once_and_those_that_are_coming_are_told() -> None:
    policy = Scripted(lambda snapshot, plan: [AddBroker(WHY, 2)] if snapshot.at_s == 0 else [])
    played(policy, 12, settings=FlowSettings(brokers_max=8, start_s=9.0, wait_s=6.0))
    assert policy.asked_s == [0, 6, 7, 8, 9, 10, 11]
    assert [snapshot.coming for snapshot in policy.seen] == [0, 2, 2, 2, 0, 0, 0]
    fresh = [sum(broker.fresh for broker in snapshot.brokers.values()) for snapshot in policy.seen]
    assert fresh == [0, 0, 0, 0, 2, 0, 0]


def test_a_drained_broker_is_released_when_its_last_topic_has_moved() -> None:
    def decide(snapshot: Snapshot, plan: Plan) -> list[ProposedChange]:
        there = [topic for topic in sorted(snapshot.topics) if plan.topics[topic].brokers == ("b2",)]
        first: list[ProposedChange] = [RemoveBroker("b2", WHY)] if snapshot.at_s == 0 else []
        return first + [PlaceTopic(topic, Mode.SINGLE, ("b1",), WHY) for topic in there[:3]]

    policy = Scripted(decide)
    series = played(policy, 40, brokers=2)
    assert kinds(series)[0] == (0, "draining", "b2")
    assert kinds(series)[-1][1:] == ("released", "b2")
    placed = [change for change in series.changes if change.kind is ChangeKind.PLACED]
    assert len(placed) >= 4
    assert series.brokers[int(placed[-1].at_s)] == 2
    assert series.brokers[-1] == 1
    assert [broker.draining for broker in policy.seen[1].brokers.values()] == [False, True]
    assert series.lost == 0


def test_idle_topics_do_not_keep_a_draining_broker() -> None:
    """Tiles that were visited once stay in the plan; nobody would move them."""
    quiet = RGame(8, 8, Ramp(((0, 64), (10, 1))), seed=1)
    policy = Scripted(lambda snapshot, plan: [RemoveBroker("b2", WHY)] if snapshot.at_s == 0 else [])
    places = {f"tile.{x}.{y}": (Mode.SINGLE, ("b1",) if x < 4 else ("b2",)) for x in range(8) for y in range(8)}
    series = FlowSimulation(quiet, policy, SETTINGS, brokers=2, placements=places).run(60)
    assert kinds(series)[-1][1:] == ("released", "b2")


def test_a_removal_can_be_called_off() -> None:
    def decide(snapshot: Snapshot, plan: Plan) -> list[ProposedChange]:
        draining = snapshot.brokers["b2"].draining
        return [KeepBroker("b2", WHY) if draining else RemoveBroker("b2", WHY)]

    series = played(Scripted(decide), 10, brokers=2)
    assert [change.kind for change in series.changes] == ["draining", "kept"]
    assert series.brokers[-1] == 2


def test_every_topic_with_load_is_in_snapshot_and_plan() -> None:
    plans: list[tuple[Snapshot, Plan]] = []
    policy = Scripted(lambda snapshot, plan: plans.append((snapshot, plan)) or [])  # type: ignore[func-returns-value]
    played(policy, 10, brokers=2)
    for snapshot, plan in plans:
        assert snapshot.topics.keys() <= plan.topics.keys()
        total = sum(load.output_bytes_per_s for load in snapshot.topics.values())
        assert total == pytest.approx(sum(broker.output_bytes_per_s for broker in snapshot.brokers.values()))
        assert sum(load.subscribers for load in snapshot.topics.values()) == pytest.approx(60)
        assert sum(load.publications_per_s for load in snapshot.topics.values()) == pytest.approx(180)


def test_a_snapshot_s_rates_are_means_over_the_window() -> None:
    game = RGame(1, 1, Ramp(((0, 0), (100, 100))))  # one more player every second
    policy = Scripted(lambda snapshot, plan: [])
    FlowSimulation(game, policy, FlowSettings(window_s=4.0)).run(11)
    assert policy.seen[-1].topics["tile.0.0"].subscribers == pytest.approx((7 + 8 + 9 + 10) / 4)
    assert policy.seen[0].topics == {}


def test_with_all_publishers_a_topic_s_input_is_counted_at_every_broker() -> None:
    policy = Scripted(lambda snapshot, plan: [])
    place = {"hot": (Mode.ALL_PUBLISHERS, ("b1", "b2"))}
    FlowSimulation(HotTopic(3, 5, message_bytes=36), policy, brokers=2, placements=place).run(2)
    load = policy.seen[-1].topics["hot"]
    assert (load.publishers, load.publications_per_s, load.subscribers) == (3, 30, 5)
    assert load.deliveries_per_s == pytest.approx(150)
    assert load.input_bytes_per_s == pytest.approx(2 * 30 * 100)
    assert load.output_bytes_per_s == pytest.approx(150 * 100)


@pytest.mark.parametrize(
    "place",
    [
        PlaceTopic("tile.0.0", Mode.SINGLE, ("b9",), WHY),
        PlaceTopic("no such tile", Mode.SINGLE, ("b1",), WHY),
    ],
)
def test_a_proposal_that_names_what_is_not_there_is_an_error(place: PlaceTopic) -> None:
    with pytest.raises(UsageError, match="policy scripted proposes"):
        played(Scripted(lambda snapshot, plan: [place]), 2)
