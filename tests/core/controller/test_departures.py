"""Brokers that leave in good order: emptied first, out of the ring, and nobody is interrupted."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.core.client.mailbox import Mailbox, Overflow
from nearcast.core.model.journal import BrokerState
from nearcast.core.model.message import Message
from nearcast.core.model.placement import Mode
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
