"""Refusals: a topic that may not be used fails by itself, says why, and touches nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.core.client.mailbox import Mailbox, Overflow
from nearcast.core.client.news import Refusals, summed_up
from nearcast.core.model.message import Interrupted, Message
from nearcast.core.model.names import CONTROL, PATTERNS, READINESS, RECORDS
from nearcast.core.model.placement import prepare, settled, single
from nearcast.core.wire.backend import Credentials
from nearcast.core.wire.effects import Done, Failed
from nearcast.core.wire.frames import encode_record
from nearcast.errors import AccessDenied, ClusterError, Unavailable, Unsupported
from nearcast.sim.valkey.replies import User, deny

GOOD, SECRET = b"good", b"secret"


class Limited:
    """A rig whose clients are a user with limited rights on every server."""

    def __init__(self, rig: Any, *brokers: str) -> None:
        self.rig = rig(*brokers)
        self.user = User(b"x")
        for server in self.rig.servers.values():
            server.users[b"app"] = self.user

    def client(self, number: int = 1) -> Any:
        return self.rig.client(number, credentials=Credentials("app", "x"))

    def deny(self, *channels: bytes) -> None:
        for server in self.rig.servers.values():
            deny(server, self.user, *channels)

    def connections(self) -> int:
        return sum(server.connections for server in self.rig.servers.values())


@pytest.fixture
def limited(rig: Any) -> Limited:
    return Limited(rig, "b1")


@pytest.fixture
def limited_pair(rig: Any) -> Limited:
    return Limited(rig, "b1", "b2")


def failures(client: Any) -> list[tuple[object, ClusterError]]:
    return [(effect.token, effect.error) for effect in client.effects if isinstance(effect, Failed)]


def interruptions(mailbox: Mailbox) -> list[Interrupted]:
    return [event for event in mailbox.take() if isinstance(event, Interrupted)]


DENIED = [(SECRET,), (CONTROL + SECRET,), (SECRET, CONTROL + SECRET)]
IDS = ["topic", "control channel", "both"]


@pytest.mark.parametrize("denied", DENIED, ids=IDS)
def test_a_refused_subscribe_fails_and_leaves_the_other_topics_alone(limited: Limited, denied: tuple[bytes]) -> None:
    limited.deny(*denied)
    client = limited.client()
    good = client.subscribe(GOOD)
    limited.rig.run(0.5)
    before = limited.connections()
    secret = client.subscribe(SECRET)
    limited.rig.run(5.0)
    ((token, error),) = failures(client)
    assert token is secret
    assert isinstance(error, AccessDenied)
    assert "NOPERM No permissions to access a channel: the user needs" in str(error)
    assert limited.connections() == before
    client.publish(GOOD, b"1")
    assert [event.payload for event in good.take() if isinstance(event, Message)] == [b"1"]
    assert list(client.machine.topic_subscribers) == [GOOD]


@pytest.mark.parametrize("denied", DENIED, ids=IDS)
def test_a_refused_publish_fails_and_leaves_the_other_topics_alone(limited: Limited, denied: tuple[bytes]) -> None:
    limited.deny(*denied)
    client = limited.client()
    client.publish(GOOD, b"1")
    before = limited.connections()
    client.publish(SECRET, b"2")
    limited.rig.run(5.0)
    client.publish(SECRET, b"3")
    client.machine.publish(SECRET, b"4", 0, None, limited.rig.now_s)
    limited.rig.run(1.0)
    client.publish(GOOD, b"5")
    assert [token for token, _ in failures(client)] == [b"2", b"3"]
    assert all(isinstance(error, AccessDenied) for _, error in failures(client))
    assert client.machine.refusals.take()[SECRET].count == 1
    assert client.acked == [b"1", b"5"]
    assert client.machine.topic_publishers[SECRET].unacknowledged == 0
    assert limited.connections() == before


@pytest.mark.parametrize("publishes_first", [True, False])
def test_a_publisher_keeps_the_control_channel_that_came_with_a_refused_subscription(
    limited: Limited, publishes_first: bool
) -> None:
    limited.deny(SECRET)
    client, now_s = limited.client(), limited.rig.now_s
    mailbox = Mailbox(10, 1000, Overflow.DROP_OLDEST, accept_foreign=False)
    if publishes_first:
        client.machine.publish(SECRET, b"1", 0, b"1", now_s)
    client.machine.subscribe(SECRET, mailbox, mailbox, now_s)
    if not publishes_first:
        client.machine.publish(SECRET, b"1", 0, b"1", now_s)
    limited.rig.run(1.0)
    assert {token for token, _ in failures(client)} == {mailbox, b"1"}
    assert client.machine.topic_publishers[SECRET].holds(client.machine.links.up("b1"))
    assert CONTROL + SECRET in limited.rig.channels("b1")


def test_a_refused_topic_that_nobody_publishes_to_asks_for_nothing(limited: Limited) -> None:
    limited.deny(CONTROL + SECRET)
    client = limited.client()
    client.publish(SECRET, b"1")
    limited.rig.run(1.0)
    topic_publisher = client.machine.topic_publishers[SECRET]
    assert topic_publisher not in client.machine._attention
    assert not topic_publisher.tick(limited.rig.now_s)


def test_a_topic_that_was_refused_can_be_had_when_the_rights_are_there(limited: Limited) -> None:
    limited.deny(SECRET, CONTROL + SECRET)
    client = limited.client()
    client.publish(SECRET, b"1")
    client.subscribe(SECRET)
    limited.rig.run(1.0)
    limited.user.denied.clear()
    mailbox = client.subscribe(SECRET)
    limited.rig.run(1.0)
    client.publish(SECRET, b"2")
    limited.rig.run(0.5)
    assert client.acked == [b"2"]
    assert Done(mailbox) in client.effects
    assert [(event.sequence, event.payload) for event in mailbox.take() if isinstance(event, Message)] == [(2, b"2")]


def test_who_loses_the_right_is_interrupted_with_the_reason_and_whole_when_it_is_back(limited: Limited) -> None:
    subscriber, publisher = limited.client(1), limited.rig.client(2)
    mailbox = subscriber.subscribe(SECRET)
    limited.rig.run(0.5)
    publisher.publish(SECRET, b"1")
    broker = limited.rig.membership.directory(SECRET)
    limited.deny(SECRET)
    subscriber.cut(broker)
    publisher.publish(SECRET, b"2")
    limited.rig.run(5.0)
    reasons = [event.reason for event in mailbox.take() if isinstance(event, Interrupted)]
    assert f"the connection to {broker} was lost" in reasons[0]
    assert "refused a subscription to 'secret': NOPERM" in reasons[1]
    assert len(reasons) == 2
    limited.user.denied.clear()
    limited.rig.run(5.0)
    events = mailbox.take()
    assert [event.payload for event in events if isinstance(event, Message)] == [b"2"]
    (ended,) = (event for event in events if isinstance(event, Interrupted))
    assert ended.until_s is not None


def test_without_the_right_to_say_ready_a_subscription_is_interrupted_with_the_reason(limited_pair: Limited) -> None:
    client = limited_pair.client()
    old, new = single(5, "b1", 1), single(6, "b2", 1)
    for broker in ("b1", "b2"):
        limited_pair.rig.install(broker, GOOD, settled(old, 1))
    mailbox = client.subscribe(GOOD)
    limited_pair.rig.run(0.5)
    limited_pair.deny(READINESS + GOOD + b":6")
    limited_pair.rig.install("b1", GOOD, prepare(old, new, 1))
    limited_pair.rig.run(0.5)
    assert "refused a subscription to 'good': NOPERM" in interruptions(mailbox)[0].reason


@pytest.mark.parametrize("denied", [b"s*", PATTERNS])
def test_a_refused_pattern_fails_and_leaves_the_topics_alone(limited_pair: Limited, denied: bytes) -> None:
    limited_pair.deny(denied)
    client = limited_pair.client()
    client.subscribe(GOOD)
    limited_pair.rig.run(0.5)
    before = limited_pair.connections()
    mailbox = Mailbox(10, 1000, Overflow.DROP_OLDEST, accept_foreign=False)
    client.machine.psubscribe(b"s*", mailbox, mailbox, limited_pair.rig.now_s)
    limited_pair.rig.run(5.0)
    ((token, error),) = failures(client)
    assert token is mailbox
    assert isinstance(error, AccessDenied)
    assert "the pattern 's*'" in str(error)
    assert client.machine.patterns == {}
    assert not any(server.patterns for server in limited_pair.rig.servers.values())
    assert limited_pair.connections() - before <= 1  # the link to the other broker


def test_a_pattern_that_loses_its_right_is_interrupted_until_it_is_back(limited_pair: Limited) -> None:
    client = limited_pair.client()
    mailbox = Mailbox(10, 1000, Overflow.DROP_OLDEST, accept_foreign=False)
    client.machine.psubscribe(b"s*", mailbox, mailbox, limited_pair.rig.now_s)
    limited_pair.rig.run(0.5)
    limited_pair.deny(b"s*")
    client.cut("b1")
    limited_pair.rig.run(5.0)
    assert "refused a subscription to the pattern 's*': NOPERM" in interruptions(mailbox)[-1].reason
    limited_pair.user.denied.clear()
    limited_pair.rig.run(5.0)
    assert [event.until_s is not None for event in interruptions(mailbox)] == [True]


# --- records of a newer version


def newer(world: Any, broker: str, topic: bytes) -> None:
    record = encode_record(settled(single(7, broker, 1), 1)).replace(b"single", b"unheard")
    world.ask(broker, "HSET", RECORDS, topic, record)
    world.ask(broker, "PUBLISH", CONTROL + topic, b"R" + record)


def test_a_mode_of_a_newer_version_fails_that_topic_alone(rig: Any) -> None:
    world = rig("b1")
    newer(world, "b1", SECRET)
    client = world.client()
    before = world.servers["b1"].connections
    good = client.subscribe(GOOD)
    client.subscribe(SECRET)
    client.publish(SECRET, b"1")
    client.publish(GOOD, b"2")
    world.run(3.0)
    errors = [error for _, error in failures(client)]
    assert [type(error) for error in errors] == [Unsupported, Unsupported]
    assert str(errors[0]) == "b1 has a record of 'secret' that says mode 'unheard': upgrade nearcast here"
    assert [event.payload for event in good.take() if isinstance(event, Message)] == [b"2"]
    assert world.servers["b1"].connections == before


def test_a_switch_to_a_mode_of_a_newer_version_is_a_fence(rig: Any) -> None:
    """What ran behind it must not be acknowledged, and its subscribers are told."""
    world = rig("b1")
    client = world.client()
    mailbox = client.subscribe(GOOD)
    world.run(0.5)
    client.publish(GOOD, b"1")
    world.silent.add("b1")
    newer(world, "b1", GOOD)
    client.publish(GOOD, b"2")
    world.speak("b1")
    world.run(1.0)
    assert client.acked == [b"1"]
    assert [token for token, _ in failures(client)] == [b"2"]
    assert "mode 'unheard': upgrade" in interruptions(mailbox)[0].reason


# --- notes


def test_many_refusals_are_one_error() -> None:
    refusals = Refusals()
    refusals.note(b"a", AccessDenied("no"), 3)
    refusals.note(b"a", Unavailable("never"))
    refusals.note(b"b", Unavailable("never"), 2)
    error = summed_up(refusals.take())
    assert isinstance(error, AccessDenied)
    assert str(error) == "4 messages on 'a' refused: no (and 2 messages on 1 more topics)"
    assert refusals.count == 6
