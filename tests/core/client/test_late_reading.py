"""A program that was stopped reads old bytes: what it says must not depend on when it read them."""

from __future__ import annotations

from typing import Any

import msgspec

from nearcast.core.client.mailbox import Mailbox, Overflow
from nearcast.core.model.membership import BrokerInfo
from nearcast.core.model.message import Interrupted
from nearcast.core.wire.effects import Done

ASLEEP_S = 4.0


def interrupted(mailbox: Mailbox) -> list[Interrupted]:
    return [event for event in mailbox.take() if isinstance(event, Interrupted)]


def test_an_interruption_begins_when_the_server_was_last_asked_and_not_when_it_was_last_read(rig: Any) -> None:
    world = rig("b1")
    client, publisher = world.client(1), world.client(2)
    mailbox = client.subscribe(b"t")
    world.run(1.0)
    stopped_s = world.now_s
    client.deaf.add("b1")
    publisher.publish(b"t", b"waits in the socket")
    world.now_s += ASLEEP_S
    client.deaf.clear()
    client.hear()
    client.cut("b1")
    (said,) = interrupted(mailbox)
    assert stopped_s - client.machine.timing.lease_s < said.since_s <= stopped_s


def test_a_pattern_subscriber_that_reads_of_a_new_broker_late_is_told_since_when(rig: Any) -> None:
    world = rig("b1", "b2")
    whole = world.membership
    world.membership = msgspec.structs.replace(whole, brokers={"b1": BrokerInfo("redis://b1")}, ring=("b1",))
    world.prepare("b1")
    world.servers["b1"].keys.clear()
    world.prepare("b1")
    client = world.client()
    mailbox = Mailbox(100, 1 << 20, Overflow.DROP_OLDEST, accept_foreign=False)
    client.machine.psubscribe(b"t*", mailbox, mailbox, world.now_s)
    world.run(1.0)
    assert Done(mailbox) in client.effects
    stopped_s = world.now_s
    client.deaf.add("b1")
    world.membership = msgspec.structs.replace(whole, version=2)
    world.prepare("b1")
    world.prepare("b2")
    world.now_s += ASLEEP_S
    client.deaf.clear()
    client.hear()
    world.run(1.0)
    assert min(said.since_s for said in interrupted(mailbox)) <= stopped_s


def test_a_subscription_is_not_attached_where_its_broker_was_forgotten_meanwhile(rig: Any) -> None:
    world = rig("b1", "b2")
    client = world.client()
    mailbox = Mailbox(100, 1 << 20, Overflow.DROP_OLDEST, accept_foreign=False)
    topic = next(b"t%d" % n for n in range(99) if world.membership.directory(b"t%d" % n) == "b2")
    client.machine.subscribe(topic, mailbox, mailbox, world.now_s)
    world.settle()
    topic_subscriber = client.machine.topic_subscribers[topic]
    assert topic_subscriber.whole
    topic_subscriber.whole = False
    topic_subscriber._check_whole(world.now_s)
    verification = topic_subscriber.verification
    assert verification is not None
    topic_subscriber.forget("b2", world.now_s)
    topic_subscriber.verified(verification, world.now_s)
    assert not topic_subscriber.whole
