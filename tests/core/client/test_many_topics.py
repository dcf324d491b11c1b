"""A client with many topics: paced, batched, and of bounded cost per turn and per second."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nearcast.core.client.mailbox import Mailbox, Overflow
from nearcast.core.client.subscriber import TopicSubscriber
from nearcast.core.client.turns import TURN_S, TURNS
from nearcast.core.client.upkeep import REPORTED_MAX
from nearcast.core.model.counters import ClientReport
from nearcast.core.model.membership import Membership
from nearcast.core.model.message import Interrupted
from nearcast.core.model.names import CONTROL, COUNTERS, FIRST_USES
from nearcast.core.model.settings import Limits
from nearcast.core.wire.effects import Done
from nearcast.core.wire.scripts import FIRST_USE, READ
from nearcast.core.wire.valkey import BATCH

MANY = 3 * BATCH


def subscribe_all(client: Any, count: int, now_s: float) -> Mailbox:
    mailbox = Mailbox(1 << 20, 1 << 30, Overflow.DROP_OLDEST, accept_foreign=False)
    for number in range(count):
        client.machine.subscribe(b"t%d" % number, mailbox, number, now_s)
    return mailbox


def joined(client: Any) -> int:
    return sum(isinstance(effect, Done) for effect in client.effects)


def test_records_are_asked_for_in_batches(rig: Any) -> None:
    world = rig("b1")
    client = world.client(limits=Limits(attaching=BATCH))
    client.deaf.add("b1")
    subscribe_all(client, MANY, world.now_s)
    world.run(0.2)
    link = client.machine.links.up("b1")
    assert link.unanswered == BATCH
    client.deaf.clear()
    client.hear()
    world.run(0.1)
    assert joined(client) == MANY
    assert link.unanswered == 0


def closed(world: Any) -> Membership:
    """Give the world a ring that is being handed over; returns the same ring, open."""
    announce(world, msgspec.structs.replace(world.membership, version=2, ring=("b2",), previous_ring=("b1",)))
    return msgspec.structs.replace(world.membership, version=3, previous_ring=None)


def announce(world: Any, membership: Membership) -> None:
    world.membership = membership
    for broker in ("b2", "b1"):
        world.prepare(broker)


def test_topics_that_wait_for_the_ring_are_all_looked_up_when_it_opens(rig: Any) -> None:
    world = rig("b1", "b2")
    client = world.client(limits=Limits(attended=10))
    opened = closed(world)
    subscribe_all(client, MANY, world.now_s)
    world.run(0.3)
    assert joined(client) == 0
    announce(world, opened)
    world.run(0.2)  # far less than turns of ten topics each would take
    assert joined(client) == MANY


def test_a_topic_that_nobody_needs_any_more_does_not_wait_for_the_ring(rig: Any) -> None:
    world = rig("b1", "b2")
    client = world.client()
    opened = closed(world)
    mailbox = subscribe_all(client, 2, world.now_s)
    world.run(0.3)
    client.machine.unsubscribe(b"t0", mailbox, world.now_s)
    announce(world, opened)
    world.run(0.5)
    assert {b"t0", b"t1"} & world.channels("b2") == {b"t1"}
    assert world.servers["b2"].keys.fields(FIRST_USES).keys() == {b"t1"}


def test_many_topics_come_back_after_a_cut_without_asking_the_directory(rig: Any) -> None:
    world = rig("b1")
    client = world.client(limits=Limits(attaching=BATCH, attended=10))
    mailbox = subscribe_all(client, MANY, world.now_s)
    world.run(0.5)
    mailbox.take()
    client.cut("b1")
    said: list[bytes] = []
    outgoing = client.machine.outgoing
    client.machine.outgoing = lambda: [said.append(data) or (link, data) for link, data in outgoing()]
    world.run(3.0)
    ended = {event.topic for event in mailbox.take() if isinstance(event, Interrupted) and event.until_s is not None}
    assert len(ended) == MANY
    assert b"".join(said).count(FIRST_USE) == 0
    questions = b"".join(said).count(READ)
    assert 0 < questions <= 2 * (MANY // BATCH + 1), "one question to open, one to verify"


def test_a_topic_and_its_control_channel_are_held_by_one_command(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    world.settle()
    said: list[bytes] = []
    outgoing = client.machine.outgoing
    client.machine.outgoing = lambda: [said.append(data) or (link, data) for link, data in outgoing()]
    subscribe_all(client, 10, world.now_s)
    world.run(0.5)
    assert joined(client) == 10
    assert b"".join(said).count(b"SUBSCRIBE") == 10
    assert {CONTROL + b"t3", b"t3"} <= world.channels("b1")


def test_what_orders_messages_is_made_with_the_first_of_a_topic(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    subscribe_all(client, 10, world.now_s)
    world.run(0.5)
    client.publish(b"t3", b"hello")
    heard = [
        topic_subscriber.topic
        for topic_subscriber in client.machine.topic_subscribers.values()
        if topic_subscriber.reception is not None
    ]
    assert heard == [b"t3"]


def test_a_tick_looks_after_a_limited_number_and_nobody_is_forgotten(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = rig("b1")
    client = world.client(limits=Limits(attended=10))
    world.silent.add("b1")
    subscribe_all(client, 35, world.now_s)
    seen: list[Any] = []
    monkeypatch.setattr(TopicSubscriber, "tick", lambda flow, now_s: seen.append(flow) or True)
    for _ in range(7):
        before = len(seen)
        client.machine.tick(world.now_s)
        assert len(seen) - before == 10
    assert {seen.count(flow) for flow in client.machine.topic_subscribers.values()} == {2}


def test_topics_without_traffic_are_reported_in_turns(rig: Any) -> None:
    world = rig("b1")
    client, agent = world.client(1), world.client(2)
    heard: list[ClientReport] = []
    link = agent.machine.links.up("b1")
    link.control[COUNTERS] = lambda payload, now_s: heard.append(msgspec.json.decode(payload, type=ClientReport))
    link.subscribe(COUNTERS)
    subscribe_all(client, 2 * REPORTED_MAX + 10, world.now_s)
    world.run(0.5)
    heard.clear()
    world.run(1.0)
    assert sum(len(report.topics) for report in heard) <= REPORTED_MAX
    client.publish(b"t5", b"x")
    world.run(TURNS * TURN_S + 0.1)
    assert all(len(report.topics) <= REPORTED_MAX for report in heard)
    named = set().union(*(report.topics for report in heard))
    assert len(named) == 2 * REPORTED_MAX + 10
    assert sum(report.topics["t5"].received for report in heard if "t5" in report.topics) == 1
