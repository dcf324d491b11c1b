"""Brokers that leave in good order: emptied first, out of the ring, and nobody is interrupted."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import msgspec
import pytest
from parts import DEAD, JOINING, LEAVING, LEFT, MEMBERS, Surroundings, broker, calls, journal_of, resting

from nearcast.core.client.mailbox import Mailbox, Overflow
from nearcast.core.controller.departures import LOOK_S, MOVES_AT_ONCE, Departures
from nearcast.core.model.journal import BrokerState, Entry, Journal, MoveEntry, Pace, Phase, TopicEntry
from nearcast.core.model.logs import FormerLife, Log, PartLoad
from nearcast.core.model.membership import BrokerInfo, Membership
from nearcast.core.model.message import Message
from nearcast.core.model.placement import Mode, single
from nearcast.core.model.settings import DEFAULT_TIMING
from nearcast.core.wire import bus


def drain(cluster: Any, broker: str, *, cancel: bool = False) -> str:
    return cluster.ask(bus.Drain("me.1", broker, cancel)).problem


def test_a_drained_broker_leaves_without_its_topics(cluster: Any) -> None:
    topics = [b"t%d" % number for number in range(30)]
    client = cluster.rig.client(9)
    for topic in topics:
        client.publish(topic, topic + b" 1")
    cluster.move("t0", Mode.SINGLE, "b2")
    cluster.run(1.0)
    assert drain(cluster, "b2") == ""
    cluster.run(4.0)
    assert cluster.states()["b2"] is BrokerState.LEFT
    assert "b2" not in cluster.journal.membership.brokers
    assert cluster.journal.membership.ring == ("b1", "b3")
    assert not any("b2" in entry.placement.brokers for entry in cluster.journal.topics.values())
    for topic in topics:
        client.publish(topic, topic + b" 2")
    assert len(client.acked) == 60


def test_topics_that_nobody_placed_move_too(cluster: Any) -> None:
    """The journal hears of them when the ring changes."""
    client = cluster.rig.client(9)
    there = next(b"t%d" % n for n in range(100) if cluster.journal.membership.directory(b"t%d" % n) == "b2")
    client.publish(there, b"1")
    assert there.decode() not in cluster.journal.topics
    drain(cluster, "b2")
    cluster.run(4.0)
    assert cluster.journal.topics[there.decode()].placement.brokers != ("b2",)
    client.publish(there, b"2")
    assert client.acked == [b"1", b"2"]


def test_replicas_shrink_to_the_brokers_that_stay(cluster: Any) -> None:
    cluster.move("t", Mode.ALL_SUBSCRIBERS, "b1", "b2", "b3")
    cluster.run(1.0)
    cluster.ask(bus.MoveTopics("me.2", {"u": (Mode.ALL_PUBLISHERS, ("b2", "b3"))}))
    cluster.run(1.0)
    drain(cluster, "b2")
    cluster.run(4.0)
    topics = cluster.journal.topics
    assert (topics["t"].placement.mode, topics["t"].placement.brokers) == (Mode.ALL_SUBSCRIBERS, ("b1", "b3"))
    assert (topics["u"].placement.mode, topics["u"].placement.brokers) == (Mode.SINGLE, ("b3",))


def pattern_subscriber(cluster: Any) -> tuple[Any, Mailbox]:
    subscriber = cluster.rig.client(7)
    mailbox = Mailbox(1000, 1 << 20, Overflow.DROP_OLDEST, accept_foreign=False)
    subscriber.machine.psubscribe(b"t*", mailbox, mailbox, cluster.rig.now_s)
    cluster.move("t", Mode.SINGLE, "b2")
    cluster.run(1.0)
    return subscriber, mailbox


def test_a_pattern_subscriber_holds_on_to_a_leaving_broker_until_it_has_heard_all(cluster: Any) -> None:
    subscriber, mailbox = pattern_subscriber(cluster)
    publisher = cluster.rig.client(9)
    subscriber.deaf.add("b2")  # its words are on their way
    publisher.publish(b"t", b"1")
    drain(cluster, "b2")
    cluster.run(2.0)
    assert cluster.journal.membership.brokers["b2"].leaving
    subscriber.deaf.clear()
    subscriber.hear()
    cluster.run(1.0)
    assert cluster.states()["b2"] is BrokerState.LEFT
    assert [event.payload for event in mailbox.take()] == [b"1"]


def test_pattern_subscribers_are_not_interrupted(cluster: Any) -> None:
    _, mailbox = pattern_subscriber(cluster)
    publisher = cluster.rig.client(9)
    publisher.publish(b"t", b"1")
    drain(cluster, "b2")
    cluster.run(4.0)
    assert cluster.states()["b2"] is BrokerState.LEFT
    publisher.publish(b"t", b"2")
    events = mailbox.take()
    assert [event.payload for event in events if isinstance(event, Message)] == [b"1", b"2"]
    assert len(events) == 2


def test_a_broker_may_stay_after_all(cluster: Any) -> None:
    client = cluster.rig.client(9)
    client.publish(b"t", b"1")
    cluster.move("t", Mode.SINGLE, "b2")
    cluster.run(1.0)
    leader = cluster.leader.leading
    leader.heard(bus.Drain("me.1", "b2"), cluster.rig.now_s)
    cluster.run(0.1)
    assert drain(cluster, "b2", cancel=True) == ""
    cluster.run(3.0)
    assert cluster.states()["b2"] is BrokerState.MEMBER
    assert cluster.journal.membership.ring == ("b1", "b2", "b3")


def test_a_broker_that_has_left_is_not_taken_back_until_somebody_says_so(cluster: Any) -> None:
    drain(cluster, "b2")
    cluster.run(6.0)
    assert cluster.states()["b2"] is BrokerState.LEFT  # although its agent goes on saying hello
    drain(cluster, "b2", cancel=True)
    cluster.run(4.0)
    assert cluster.states()["b2"] is BrokerState.MEMBER


def test_the_last_member_cannot_leave(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2")
    cluster.run(3.0)
    assert drain(cluster, "b1") == ""
    cluster.run(4.0)
    assert "is the last member: add another one first" in drain(cluster, "b2")
    assert "no broker 'b9'; the cluster has: b1, b2" in drain(cluster, "b9")
    assert "only a member can leave" in drain(cluster, "b1")


def test_topics_are_not_placed_on_a_broker_that_leaves(cluster: Any) -> None:
    cluster.leader.leading.heard(bus.Drain("me.1", "b2"), cluster.rig.now_s)
    cluster.run(0.1)
    assert "broker 'b2' is leaving" in cluster.move("t", Mode.SINGLE, "b2").problem


def test_a_leaving_broker_that_dies_is_given_up(cluster: Any) -> None:
    cluster.move("t", Mode.SINGLE, "b2")
    cluster.run(1.0)
    cluster.leader.leading.heard(bus.Drain("me.1", "b2"), cluster.rig.now_s)
    cluster.run(0.1)
    cluster.kill("b2")
    cluster.run(4.0)
    assert cluster.states()["b2"] is BrokerState.DEAD
    assert "b2" not in cluster.journal.topics["t"].placement.brokers


def test_a_new_leader_goes_on_with_a_departure(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2", "b3", controllers=2)
    cluster.run(3.0)
    first = cluster.leader
    first.leading.heard(bus.Drain("me.1", "b2"), cluster.rig.now_s)
    cluster.run(0.1)
    cluster.stopped.add(first)
    cluster.rig.wired = [wired for wired in cluster.rig.wired if wired.machine is not first]
    cluster.run(6.0)
    assert cluster.leader is not first
    assert cluster.states()["b2"] is BrokerState.LEFT


def test_a_new_leader_saves_topics_that_the_last_one_left_on_a_dead_broker(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2", "b3", controllers=2)
    cluster.run(3.0)
    first = cluster.leader
    cluster.move("t", Mode.SINGLE, "b2")
    cluster.run(1.0)
    first.leading.moves.evacuate = lambda broker: cluster.stopped.add(first)  # it goes between the two steps
    cluster.kill("b2")
    cluster.run(0.5)
    assert first in cluster.stopped
    cluster.rig.wired = [wired for wired in cluster.rig.wired if wired.machine is not first]
    cluster.run(4.0)
    assert "b2" not in cluster.journal.topics["t"].placement.brokers


@pytest.mark.parametrize("bytes_per_s", [0.0, -1.0, float("nan")])
def test_a_capacity_must_be_one(cluster: Any, bytes_per_s: float) -> None:
    assert "must be above 0" in cluster.ask(bus.SetCapacity("me.1", "b1", bytes_per_s)).problem


def test_a_capacity_is_written_down(cluster: Any) -> None:
    state = cluster.ask(bus.SetCapacity("me.1", "b1", 5e6))
    assert state.brokers["b1"].capacity_bytes_per_s == 5e6
    assert "no broker 'b9'" in cluster.ask(bus.SetCapacity("me.2", "b9", 5e6)).problem


@pytest.mark.parametrize("per_s", [-1.0, float("nan"), float("inf")])
def test_a_limit_of_messages_must_be_one(cluster: Any, per_s: float) -> None:
    assert "must be above 0, or 0 for" in cluster.ask(bus.SetMessagesHigh("me.1", "b1", per_s)).problem


def test_a_limit_of_messages_is_written_down_and_can_be_taken_back(cluster: Any) -> None:
    cluster.ask(bus.SetCapacity("me.1", "b1", 5e6))
    view = cluster.ask(bus.SetMessagesHigh("me.2", "b1", 2e5)).brokers["b1"]
    assert (view.messages_high_per_s, view.capacity_bytes_per_s) == (2e5, 5e6)
    assert cluster.journal.brokers["b1"].messages_high_per_s == 2e5
    assert cluster.ask(bus.SetMessagesHigh("me.3", "b1", 0.0)).brokers["b1"].messages_high_per_s == 0.0
    assert "no broker 'b9'" in cluster.ask(bus.SetMessagesHigh("me.4", "b9", 5e6)).problem


def test_a_leaving_broker_stays_if_the_last_other_one_dies(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2")
    cluster.run(3.0)
    client = cluster.rig.client(9)
    client.publish(b"t", b"1")
    cluster.leader.leading.heard(bus.Drain("me.1", "b2"), cluster.rig.now_s)
    cluster.run(0.05)
    cluster.kill("b1")
    cluster.run(5.0)
    assert cluster.states() == {"b1": BrokerState.DEAD, "b2": BrokerState.MEMBER}
    assert cluster.journal.membership.ring == ("b2",)
    client.publish(b"t", b"2")
    cluster.run(1.0)
    assert client.acked == [b"1", b"2"]


def test_a_broker_that_stays_takes_over_although_it_is_not_in_the_ring_yet(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2")
    cluster.run(3.0)
    cluster.leader.leading.heard(bus.Drain("me.1", "b2"), cluster.rig.now_s)
    cluster.run(0.2)
    assert cluster.journal.membership.ring == ("b1",)
    assert cluster.leader.leading.departures.cancel("b2") == ""
    assert cluster.states()["b2"] is BrokerState.LEAVING, "it has not left yet"
    cluster.run(0.05)
    cluster.kill("b1")
    cluster.run(5.0)
    assert cluster.journal.membership.ring == ("b2",)


# --- the part alone


class Members:
    """Stands in for the members: which brokers have the newest membership, and what follows it."""

    def __init__(self) -> None:
        self.informed: set[str] = {"b1", "b2", "b3"}
        self.gone: list[str] = []
        self.departed = self.gone.append

    def next_membership(self, now: Membership, brokers: dict[str, BrokerInfo], ring: tuple[str, ...]) -> Membership:
        return msgspec.structs.replace(now, version=now.version + 1, brokers=brokers, ring=ring)


class Leaving(Surroundings):
    """b2 leaves a cluster; its moves begin, and end when the test says so."""

    def __init__(self, journal: Journal, looked_after: Container[str] = ()) -> None:
        super().__init__(journal)
        self.members = Members()
        self.roster.informed = self.members.informed.__contains__  # type: ignore[method-assign]
        self.begun: list[str] = []
        self.departures = Departures(
            self.office,
            self.roster,
            self.members,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            lambda name, topic: topic in looked_after,
        )

    def began(self, topic: str, pace: Pace, now_s: float) -> None:
        self.begun.append(topic)

    def step(self, now_s: float) -> dict[str, Entry]:
        self.departures.tick(now_s)
        return self.commit(now_s)

    def end_moves(self) -> None:
        for topic, entry in self.journal.topics.items():
            if entry.move is not None:
                self.journal.topics[topic] = TopicEntry(entry.move.target)


def leaving(*topics: str, number: int = 1, by_policy: bool = False, looked_after: Container[str] = ()) -> Leaving:
    """The ring without b2 is open, and b2 still carries topics."""
    held = {name: TopicEntry(single(6, "b2", 5)) for name in topics} if topics else resting(number, "b2")
    journal = journal_of("b1", "b3", topics=held, b2=LEAVING)
    journal.brokers["b2"] = broker("b2", LEAVING, by_policy=by_policy)
    return Leaving(journal, looked_after)


def test_who_leaves_is_emptied_then_marked_then_let_go() -> None:
    one = leaving("t")
    directory = one.roster.directory("t")
    assert directory is not None
    moved = TopicEntry(single(6, "b2", 5), MoveEntry(Phase.PREPARE, single(7, directory, MEMBERS)))
    assert one.step(0.0) == {"topic/t": moved}
    assert one.begun == ["t"]
    assert one.step(0.2) == {}, "it is moving"
    one.end_moves()
    marked = one.step(0.4)["membership"]
    assert isinstance(marked, Membership)
    assert marked.brokers["b2"].leaving
    assert one.step(0.5) == {}
    count = one.order()
    one.answer("b2", count, 0.6, counts={"": (0, 0)})
    left = one.step(0.7)
    assert left["broker/b2"] == broker("b2", LEFT)
    assert "b2" not in one.journal.membership.brokers
    assert one.members.gone == ["b2"]


@pytest.mark.parametrize("ring", [("b1", "b2", "b3"), ("b1", "b3")], ids=["in the ring", "closed"])
def test_nobody_is_emptied_before_the_ring_without_it_is_open(ring: tuple[str, ...]) -> None:
    closed_from = ("b1", "b2", "b3") if "b2" not in ring else None
    one = Leaving(journal_of("b1", "b3", ring=ring, closed_from=closed_from, topics=resting(3, "b2"), b2=LEAVING))
    assert one.step(0.0) == {}


def marked() -> Leaving:
    one = leaving("t")
    one.journal.topics.clear()
    one.step(0.0)
    return one


def test_pattern_subscribers_are_counted_again_until_they_have_let_go() -> None:
    one = marked()
    for now_s, holders in ((0.1, 2), (0.2, 1), (0.3, 0)):
        assert one.step(now_s) == {}
        one.answer("b2", one.order(), now_s, counts={"": (holders, 0)})
    assert "broker/b2" in one.step(0.4)


def test_pattern_subscribers_that_hold_on_are_not_waited_for_longer_than_ready_s() -> None:
    one = marked()
    one.step(0.1)
    assert one.step(0.1 + DEFAULT_TIMING.ready_s) == {}
    assert "broker/b2" in one.step(0.11 + DEFAULT_TIMING.ready_s)


def test_nobody_leaves_before_every_broker_has_told_its_clients() -> None:
    one = marked()
    one.members.informed.discard("b3")
    for now_s in (0.1, 2 * DEFAULT_TIMING.ready_s):
        assert one.step(now_s) == {}
    assert one.orders() == []
    one.members.informed.add("b3")
    assert "broker/b2" in one.step(2 * DEFAULT_TIMING.ready_s)


def test_a_count_that_comes_after_it_was_given_up_does_not_count_the_next_time() -> None:
    one = marked()
    one.step(0.1)
    count = one.order()
    one.ledger.write_broker("b2", broker("b2", DEAD))
    one.commit()
    one.step(0.2)
    one.answer("b2", count, 0.3, counts={"": (0, 0)})
    one.ledger.write_broker("b2", broker("b2", LEAVING))
    one.commit()
    assert one.step(0.4) == {}


@pytest.mark.parametrize("state", [JOINING, LEFT, DEAD])
def test_only_a_member_can_begin_to_leave(state: BrokerState) -> None:
    one = Leaving(journal_of("b1", "b3", b2=state))
    assert "only a member can leave" in one.departures.begin("b2")
    assert one.commit() == {}


def test_two_brokers_that_leave_at_once_do_not_leave_the_topics_alone() -> None:
    one = Leaving(journal_of("b1", "b2"))
    assert one.departures.begin("b1") == ""
    assert "is the last member" in one.departures.begin("b2")
    assert one.commit() == {"broker/b1": broker("b1", LEAVING)}


def test_a_departure_that_was_asked_for_twice_is_one() -> None:
    one = Leaving(journal_of("b1", "b2"))
    one.departures.begin("b2")
    assert "is just changing its state" in one.departures.begin("b2")
    one.commit()
    assert one.departures.begin("b2") == ""
    assert one.commit() == {}


@pytest.mark.parametrize(("by_policy", "stays"), [(True, True), (False, False)])
def test_a_policy_calls_off_only_what_a_policy_began(by_policy: bool, stays: bool) -> None:
    one = leaving(by_policy=by_policy)
    one.departures.cancel("b2", by_policy=True)
    assert ("broker/b2" in one.commit()) is stays


def test_who_is_marked_as_empty_cannot_stay() -> None:
    one = marked()
    assert "no longer carries topics" in one.departures.cancel("b2")
    assert one.commit() == {}


def test_many_topics_leave_a_part_at_a_time_and_all_of_them() -> None:
    one = leaving(number=20_000)
    costs, now_s = [], 0.0
    for _ in range(20_000 // MOVES_AT_ONCE):
        now_s += 2 * LOOK_S
        costs.append(calls(one.departures.tick, now_s))
        assert len(one.commit()) <= MOVES_AT_ONCE
        moving = [topic for topic, entry in one.journal.topics.items() if entry.move is not None]
        assert len(moving) <= MOVES_AT_ONCE
        one.end_moves()
    assert not one.roster.names("b2")
    assert max(costs) < 40_000, max(costs)


def test_a_part_that_has_not_ended_is_waited_for() -> None:
    one = leaving(number=1_000)
    assert len(one.step(0.0)) == MOVES_AT_ONCE
    assert one.step(0.2) == {}
    ended = next(iter(one.begun))
    one.journal.topics[ended] = TopicEntry(single(7, "b1", MEMBERS))
    assert len(one.step(0.4)) == 1


def test_topics_are_looked_at_a_few_times_a_second() -> None:
    one = leaving(number=20_000)
    one.departures.tick(0.0)
    assert calls(one.departures.tick, LOOK_S / 2) < 100


def test_the_policy_moves_what_it_looks_after() -> None:
    one = leaving("t", "u", by_policy=True, looked_after={"t"})
    assert one.step(0.0).keys() == {"topic/u"}
    asked = leaving("t", "u", by_policy=False, looked_after={"t"})
    assert asked.step(0.0).keys() == {"topic/t", "topic/u"}, "a person's request is not the policy's"


# --- what a leaving broker keeps


LOG = Log("orders", 3, ("order.*",), 3600.0, 1 << 20)


def leaving_with_a_log(abandon: bool = False) -> Leaving:
    """b2 carries nothing any more and is marked so; no pattern subscriber holds it."""
    one = Leaving(journal_of("b1", b2=LEAVING))
    marked = {**one.journal.membership.brokers, "b2": BrokerInfo("redis://b2", joined=1, leaving=True)}
    one.journal.membership = msgspec.structs.replace(
        one.journal.membership, brokers=marked, ring=("b1",), logs=(LOG,), former=(FormerLife("b2@0", 8),)
    )
    one.journal.brokers["b2"] = broker("b2", LEAVING, abandon=abandon)
    one.departures.tick(0.0)
    ((name, order),) = one.orders()
    one.answer(name, order, 0.0, counts={"": (0, 0)})
    return one


def asked_how_much(one: Leaving, now_s: float) -> bus.Order:
    one.departures.tick(now_s)
    ((name, order),) = one.orders()
    assert (name, type(order)) == ("b2", bus.CountParts)
    return order


@pytest.mark.parametrize(
    "load",
    [PartLoad(9, 4, 900, {}), PartLoad(9, 4, 900, {"billing": 2}), PartLoad(9, 4, 900, {"billing": 0, "other": 1})],
    ids=["nobody reads it", "not all of it is read", "one group has not read all of it"],
)
def test_a_broker_stays_while_what_it_keeps_is_wanted(load: PartLoad) -> None:
    one = leaving_with_a_log()
    one.answer("b2", asked_how_much(one, 0.1), 0.1, life="b2@0", parts={LOG.key: load})
    one.departures.tick(0.2)
    assert one.commit() == {}
    assert one.departures.keeps["b2"] == {LOG.key: load}
    one.answer("b2", asked_how_much(one, 1.2), 1.2, life="b2@0", parts={LOG.key: PartLoad(9, 0, 900, load.groups)})
    one.departures.tick(1.3)
    assert one.commit()["broker/b2"].state is LEFT, "the rest has expired"


@pytest.mark.parametrize(
    ("load", "abandon"),
    [(PartLoad(9, 4, 900, {"billing": 0}), False), (PartLoad(9, 4, 900, {"billing": 5}), True)],
    ids=["all of it is read", "it is abandoned"],
)
def test_what_a_broker_had_kept_is_noted_when_it_leaves(load: PartLoad, abandon: bool) -> None:
    one = leaving_with_a_log(abandon)
    one.answer("b2", asked_how_much(one, 0.1), 0.1, life="b2@0", parts={LOG.key: load})
    one.departures.tick(0.2)
    entries = one.commit()
    assert entries["broker/b2"].state is LEFT
    assert entries["membership"].former == (FormerLife("b2@0", 8, counts={LOG.key: 9}, unread={LOG.key: load.groups}),)


def test_an_answer_about_another_life_or_other_logs_does_not_count() -> None:
    one = leaving_with_a_log()
    read = PartLoad(9, 0, 900)
    one.answer("b2", asked_how_much(one, 0.1), 0.1, life="b2@7", parts={LOG.key: read})
    one.answer("b2", asked_how_much(one, 1.2), 1.2, life="b2@0", parts={})
    one.departures.tick(1.3)
    assert one.commit() == {}
