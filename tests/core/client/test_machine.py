"""The client machine: subscribing, receiving across a move, garbage, and limits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nearcast.core.client.mailbox import Mailbox, Overflow
from nearcast.core.client.turns import TURN_S, TURNS
from nearcast.core.model.message import Gap, Interrupted, Message
from nearcast.core.model.names import CONTROL, COUNTERS, FIRST_USES, PATTERNS, RECORDS, inbox_channel, readiness_channel
from nearcast.core.model.placement import Mode, Placement, prepare, settled, single, switch
from nearcast.core.model.settings import DEFAULT_TIMING, Limits
from nearcast.core.wire.effects import Done, Failed
from nearcast.core.wire.frames import DATA, HEADER, encode_record
from nearcast.errors import Closed, InvalidTopic, LimitReached, PayloadTooLarge

T = b"t"


def said(events: list[Any]) -> list[Any]:
    """Payloads of messages, and the other events as they are."""
    return [event.payload if isinstance(event, Message) else event for event in events]


def plan(rig: Any, *brokers: str, mode: Mode = Mode.SINGLE, epoch: int = 5) -> Placement:
    placement = Placement(epoch, mode, brokers, 1)
    for broker in rig.servers:
        rig.install(broker, T, settled(placement, term=1))
    return placement


# --- subscribing


def test_subscribe_is_done_when_nothing_can_be_missed_any_more(rig: Any) -> None:
    world = rig("b1")
    publisher, subscriber = world.client(1), world.client(2)
    publisher.publish(T, b"before")
    world.silent.add("b1")
    mailbox = subscriber.subscribe(T)
    assert subscriber.effects == []
    world.speak("b1")
    world.run(0.1)
    assert subscriber.effects == [Done(mailbox)]
    publisher.publish(T, b"after")
    assert said(mailbox.take()) == [b"after"]


def test_a_second_subscription_of_a_topic_is_done_at_once_and_gets_the_same(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    one = client.subscribe(T)
    world.run(0.1)
    two = client.subscribe(T)
    assert Done(two) in client.effects
    client.publish(T, b"a")
    assert said(one.take()) == said(two.take()) == [b"a"]


def test_nothing_is_left_at_the_server_after_the_last_subscription_is_gone(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    before = world.channels("b1")
    one, two = client.subscribe(T), client.subscribe(T)
    world.run(0.1)
    assert {T, CONTROL + T} <= world.channels("b1")
    for mailbox in (one, two):
        client.machine.unsubscribe(T, mailbox, world.now_s)
    client.settle()
    assert world.channels("b1") == before


def test_a_subscription_given_up_before_it_was_attached_fails(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    world.silent.add("b1")
    mailbox = client.subscribe(T)
    client.machine.unsubscribe(T, mailbox, world.now_s)
    world.settle()
    (failed,) = client.effects
    assert isinstance(failed, Failed)
    assert failed.token is mailbox
    assert isinstance(failed.error, Closed)
    world.speak("b1")


@pytest.mark.parametrize("mode", [Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS])
def test_every_mode_delivers_every_message_once(rig: Any, mode: Mode) -> None:
    world = rig("b1", "b2", "b3")
    plan(world, "b1", "b2", "b3", mode=mode)
    publishers = [world.client(number) for number in range(1, 5)]
    subscribers = [world.client(number << 32) for number in range(1, 5)]
    mailboxes = [subscriber.subscribe(T) for subscriber in subscribers]
    world.run(0.2)
    for publisher in publishers:
        publisher.publish(T, b"%d" % publisher.machine.client_id)
    assert [sorted(said(mailbox.take())) for mailbox in mailboxes] == [[b"1", b"2", b"3", b"4"]] * 4


# --- a move, step by step


def test_a_move_is_invisible_to_a_subscriber(rig: Any) -> None:
    world = rig("b1", "b2")
    old, new = plan(world, "b1"), single(6, "b2", 1)
    publisher, subscriber = world.client(1), world.client(2)
    mailbox = subscriber.subscribe(T)
    world.run(0.2)
    publisher.publish(T, b"1")
    world.install("b1", T, prepare(old, new, term=1))
    assert T in world.channels("b2")
    assert readiness_channel(T, 6) in world.channels("b1")
    publisher.publish(T, b"2")
    world.install("b1", T, switch(old, new, term=1, forced=False))
    publisher.publish(T, b"3")
    for broker in ("b1", "b2"):
        world.install(broker, T, settled(new, term=1))
    publisher.publish(T, b"4")
    world.run(DEFAULT_TIMING.linger_s + 0.2)
    assert said(mailbox.take()) == [b"1", b"2", b"3", b"4"]
    assert T not in world.channels("b1")
    assert readiness_channel(T, 6) not in world.channels("b1") | world.channels("b2")


def test_frames_of_the_new_place_wait_for_the_fence_of_the_old_one(rig: Any) -> None:
    world = rig("b1", "b2")
    old, new = plan(world, "b1"), single(6, "b2", 1)
    publisher, subscriber = world.client(1), world.client(2)
    mailbox = subscriber.subscribe(T)
    world.run(0.2)
    publisher.publish(T, b"1")
    world.install("b1", T, prepare(old, new, term=1))
    subscriber.deaf.add("b1")
    publisher.publish(T, b"2")
    world.install("b1", T, switch(old, new, term=1, forced=False))
    publisher.publish(T, b"3")
    assert publisher.acked == [b"1", b"2", b"3"]
    assert said(mailbox.take()) == [b"1"]
    subscriber.deaf.clear()
    subscriber.hear()
    assert said(mailbox.take()) == [b"2", b"3"]


def test_a_lost_connection_is_repaired_and_told(rig: Any) -> None:
    world = rig("b1")
    publisher, subscriber = world.client(1), world.client(2)
    mailbox = subscriber.subscribe(T)
    world.run(0.2)
    publisher.publish(T, b"1")
    world.down.add("b1")
    subscriber.cut("b1")
    publisher.publish(T, b"2")
    world.down.clear()
    world.run(3.0)
    publisher.publish(T, b"3")
    events = mailbox.take()
    assert [event.payload for event in events if isinstance(event, Message)] == [b"1", b"2", b"3"]
    begun, ended = (event for event in events if isinstance(event, Interrupted))
    assert begun.until_s is None
    assert "connection to b1 was lost" in begun.reason
    assert ended.since_s == begun.since_s
    assert ended.until_s is not None
    assert ended.until_s > begun.since_s


def test_a_subscriber_that_has_no_record_of_a_placement_is_interrupted_and_joins_it(rig: Any) -> None:
    world = rig("b1")
    world.install("b1", b"t", settled(single(5, "b1", 1), 1))
    subscriber, publisher = world.client(), world.client(2)
    mailbox = subscriber.subscribe(b"t")
    world.run(0.5)
    world.servers["b1"].keys.clear()  # all that was known of the topic is lost, and nobody is told
    world.prepare("b1")
    world.ask("b1", "HSET", RECORDS, b"t", encode_record(settled(single(900, "b1", 1), 0)))
    publisher.publish(b"t", b"unheard of")
    world.run(4.0)
    publisher.publish(b"t", b"after")
    world.run(0.5)
    events = mailbox.take()
    interrupted = [event for event in events if isinstance(event, Interrupted)]
    assert [event.until_s is None for event in interrupted] == [True, False]
    assert "has no record of" in interrupted[0].reason
    assert [event.payload for event in events if isinstance(event, Message)] == [b"after"]


def test_a_subscriber_that_hears_of_a_placement_just_after_a_message_of_it_is_interrupted(rig: Any) -> None:
    world = rig("b1")
    world.install("b1", b"t", settled(single(5, "b1", 1), 1))
    subscriber, publisher = world.client(), world.client(2)
    mailbox = subscriber.subscribe(b"t")
    world.run(0.5)
    world.servers["b1"].keys.clear()
    world.prepare("b1")
    record = settled(single(900, "b1", 1), 0)
    world.ask("b1", "HSET", RECORDS, b"t", encode_record(record))
    subscriber.deaf.add("b1")
    publisher.publish(b"t", b"unheard of")
    subscriber.deaf.clear()
    held, subscriber._held = subscriber._held, []
    for session, data in held:
        assert session is subscriber.sessions["b1"]
        subscriber.machine.received("b1", data, world.now_s)  # it drops the message, and asks for the record
    subscriber.machine.found("b1", b"t", record, world.now_s)  # but a directory says it first
    world.run(2.0)
    publisher.publish(b"t", b"after")
    world.run(0.5)
    events = mailbox.take()
    assert [event.until_s is None for event in events if isinstance(event, Interrupted)] == [True, False]
    assert [event.payload for event in events if isinstance(event, Message)] == [b"after"]


def test_what_no_ring_holds_any_more_becomes_a_gap(rig: Any) -> None:
    world = rig("b1")
    publisher, subscriber = world.client(1, limits=Limits(ring=1)), world.client(2)
    mailbox = subscriber.subscribe(T)
    world.run(0.2)
    publisher.publish(T, b"1")
    world.down.add("b1")
    subscriber.cut("b1")
    publisher.publish(T, b"2", b"3", b"4")
    world.down.clear()
    world.run(5.0)
    events = [event for event in mailbox.take() if not isinstance(event, Interrupted)]
    assert said(events) == [b"1", Gap("t", 1, 2, 3, "not repaired in time"), b"4"]


# --- patterns


def test_a_pattern_hears_all_topics_that_match_on_all_brokers(rig: Any) -> None:
    world = rig("b1", "b2", "b3")
    publisher, subscriber = world.client(1), world.client(2)
    mailbox = Mailbox(1000, 1 << 20, Overflow.DROP_OLDEST, accept_foreign=False)
    subscriber.machine.psubscribe(b"room/*", mailbox, mailbox, world.now_s)
    subscriber.settle()
    assert subscriber.effects == [Done(mailbox)]
    topics = [b"room/%d" % number for number in range(12)]
    for topic in [*topics, b"other"]:
        publisher.publish(topic, b"in " + topic)
    events = mailbox.take()
    assert sorted(said(events)) == sorted(b"in " + topic for topic in topics)
    assert {event.pattern for event in events if isinstance(event, Message)} == {"room/*"}
    assert len({world.membership.directory(topic) for topic in topics}) == 3


def test_a_pattern_that_is_closed_before_its_links_are_up_stays_closed(rig: Any) -> None:
    world = rig("b1", "b2")
    subscriber = world.client()
    mailbox = Mailbox(1000, 1 << 20, Overflow.DROP_OLDEST, accept_foreign=False)
    subscriber.machine.psubscribe(b"room/*", mailbox, mailbox, world.now_s)
    subscriber.machine.punsubscribe(b"room/*", mailbox, world.now_s)
    world.run(3.0)
    assert subscriber.machine.patterns == {}
    for server in world.servers.values():
        assert server.patterns == {}
        assert PATTERNS not in server.channels


# --- garbage


@pytest.mark.parametrize("payload", [b"", b"R", b"S", b"R{}", b"S[]", b"x" * 1000, b"\xff" * 40, b'S[1,{"a":"b"}]'])
def test_garbage_on_our_channels_changes_nothing(rig: Any, payload: bytes) -> None:
    world = rig("b1")
    client = world.client()
    mailbox = client.subscribe(T)
    world.run(0.2)
    client.publish(T, b"1")
    for channel in (CONTROL + T, inbox_channel(1), COUNTERS):
        world.ask("b1", "PUBLISH", channel, payload)
    client.publish(T, b"2")
    assert said(mailbox.take()) == [b"1", b"2"]
    assert client.acked == [b"1", b"2"]
    assert list(client.sessions) == ["b1"]


def test_a_repair_of_a_topic_nobody_subscribed_is_ignored(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    frame = HEADER.pack(DATA, 1, 9, 1, 0) + b"x"
    world.ask("b1", "PUBLISH", inbox_channel(1), b"\0\5other" + frame)
    assert list(client.sessions) == ["b1"]


# --- limits and life


def test_a_payload_over_the_limit_is_refused_with_the_limit(rig: Any) -> None:
    client = rig("b1").client(limits=Limits(payload_bytes=10))
    client.publish(T, b"x" * 10)
    with pytest.raises(PayloadTooLarge, match=r"payload of 11 bytes: the limit is 10; send it in parts, or raise"):
        client.publish(T, b"x" * 11)
    assert client.machine.topic_publishers[T].sequence == 1


def test_topics_are_limited(rig: Any) -> None:
    client = rig("b1").client(limits=Limits(topics=2))
    client.publish(b"a", b"x")
    client.subscribe(b"b")
    with pytest.raises(LimitReached, match=r"uses 2 topics: raise Limits\.topics or use more clients"):
        client.subscribe(b"c")
    client.publish(b"a", b"y")
    client.publish(b"c", b"x")  # instead of a: nothing waits there
    client.subscribe(b"b")


def test_a_reserved_topic_is_refused_by_the_machine_too(rig: Any) -> None:
    with pytest.raises(InvalidTopic):
        rig("b1").client().publish(b"nc:c:t", b"x")


def test_a_closed_client_fails_what_waits(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    world.silent.add("b1")
    client.publish(T, b"a")
    mailbox = client.subscribe(b"u")
    client.machine.close(world.now_s)
    client.settle()
    assert {effect.token for effect in client.effects if isinstance(effect, Failed)} == {b"a", mailbox}
    assert all(isinstance(effect.error, Closed) for effect in client.effects)
    with pytest.raises(Closed, match="closed: connect a new one"):
        client.subscribe(b"v")


def test_counters_are_told_to_the_agent_once_a_second(rig: Any) -> None:
    world = rig("b1")
    heard: list[Any] = []

    class Observer:
        def published(self, server: Any, channel: bytes, payload: bytes, receivers: Any) -> None:
            if channel == COUNTERS:
                heard.append(msgspec.json.decode(payload))

        def installed(self, server: Any, topic: bytes, record: bytes) -> None: ...

    client = world.client()
    mailbox = client.subscribe(T)
    world.run(1.2)
    world.servers["b1"].observers.append(Observer())
    client.publish(T, b"abc")
    world.run(1.1)
    assert mailbox.take()
    (topic,) = (report["topics"]["t"] for report in heard if report["topics"])
    assert (topic["published"], topic["published_bytes"], topic["received"]) == (1, 3, 1)
    assert (topic["publishers"], topic["subscribers"]) == (1, 1)
    assert sum(topic["latencies"].values()) == 1
    heard.clear()
    world.run(4 * TURNS * TURN_S)
    silent = [report["topics"]["t"] for report in heard if report["topics"]]
    assert len(silent) == 4, "what is silent has its turn every few seconds"
    assert sum(topic["subscribers"] for topic in silent) == 4 * TURNS, "and counts for each of them"
    assert heard[1]["topics"]["t"]["received"] == 0


def test_two_clients_that_use_a_topic_first_agree_where_it_is(rig: Any) -> None:
    world = rig("b1", "b2")
    for number in (1, 2):
        world.client(number).publish(T, b"x")
    directory = world.membership.directory(T)
    first_uses = [world.ask(broker, "HLEN", FIRST_USES) for broker in ("b1", "b2")]
    assert sorted(first_uses) == [0, 1]
    assert world.ask(directory, "HLEN", FIRST_USES) == 1
