"""A client lets go of topics that nobody uses, and nobody is harmed when one is used again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nearcast.core.client import upkeep
from nearcast.core.model.message import Gap, Interrupted, Message
from nearcast.core.model.names import CONTROL
from nearcast.core.model.settings import Limits, Timing
from nearcast.core.wire.effects import Failed
from nearcast.core.wire.frames import encode_ask
from nearcast.errors import LimitReached, PublishBufferFull, Unavailable

T = b"t"
TIMING = Timing(idle_s=3.0)
ENDED_S = 2 * TIMING.idle_s + 0.5  # a topic ends at the second look


def numbers(mailbox: Any) -> list[Any]:
    """Numbers of messages; what else came stands as it is."""
    return [event.sequence if isinstance(event, Message) else event for event in mailbox.take()]


# --- publishers


def test_a_topic_that_is_not_published_on_ends_and_its_control_channel_is_given_back(rig: Any) -> None:
    world = rig("b1")
    client = world.client(timing=TIMING)
    client.publish(T, b"a")
    assert CONTROL + T in world.channels("b1")
    world.run(ENDED_S)
    assert client.machine.topic_publishers == {}
    assert client.machine.ended == [T]
    assert CONTROL + T not in world.channels("b1")
    (link,) = client.machine.links.all_up()
    assert (link.control.keys() & {CONTROL + T}, link.users) == (set(), {})


def test_a_topic_in_use_does_not_end(rig: Any) -> None:
    world = rig("b1")
    client = world.client(timing=TIMING)
    for _ in range(10):
        client.publish(T, b"a")
        world.run(TIMING.idle_s - 0.5)
    assert list(client.machine.topic_publishers) == [T]


def test_a_subscriber_of_the_same_client_keeps_the_control_channel(rig: Any) -> None:
    world = rig("b1")
    client = world.client(timing=TIMING)
    client.subscribe(T)
    client.publish(T, b"a")
    world.run(ENDED_S)
    assert client.machine.topic_publishers == {}
    assert CONTROL + T in world.channels("b1")


def test_numbers_go_on_above_all_that_were_used_and_subscribers_see_no_gap(rig: Any) -> None:
    world = rig("b1")
    reader, client = world.client(2, timing=TIMING), world.client(timing=TIMING)
    mailbox = reader.subscribe(T)
    client.publish(b"other", *[b"x"] * 5)
    client.publish(T, b"a", b"b")
    assert numbers(mailbox) == [1, 2]
    world.run(ENDED_S)
    client.publish(T, b"c", b"d")
    assert numbers(mailbox) == [6, 7]
    world.run(5.0)
    assert numbers(mailbox) == []


def test_a_first_message_that_is_given_up_leaves_no_hole(rig: Any) -> None:
    world = rig("b1")
    reader, client = world.client(2, timing=TIMING), world.client(timing=TIMING)
    mailbox = reader.subscribe(T)
    client.publish(T, b"a")
    world.run(ENDED_S)
    world.silent.add("b1")
    client.publish(T, b"b")
    client.machine.give_up(T, 2)
    world.speak("b1")
    client.publish(T, b"c")
    assert numbers(mailbox) == [1, 3]


def test_a_topic_does_not_end_while_a_message_waits_and_the_message_fails(rig: Any) -> None:
    world = rig("b1")
    client = world.client(timing=TIMING)
    client.publish(T, b"a")
    world.silent.add("b1")
    client.publish(T, b"b")
    world.run(TIMING.idle_s)
    assert not [effect for effect in client.effects if isinstance(effect, Failed)]
    world.run(TIMING.idle_s + 0.5)
    (failed,) = [effect for effect in client.effects if isinstance(effect, Failed)]
    assert failed.token == b"b"
    assert isinstance(failed.error, Unavailable)
    assert str(failed.error) == "topic 't': no acknowledgement for 3 s; the message may have arrived"
    assert list(client.machine.topic_publishers) == [T]
    world.speak("b1")
    client.publish(T, b"c")
    world.run(2.0)
    assert client.acked == [b"a", b"c"]


def test_a_topic_publisher_that_has_ended_cannot_publish(rig: Any) -> None:
    world = rig("b1")
    client = world.client(timing=TIMING)
    topic_publisher = client.machine.topic_publisher(T, world.now_s)
    world.run(ENDED_S)
    with pytest.raises(PublishBufferFull):
        topic_publisher.publish(b"a", 0, None)
    assert topic_publisher.has_room  # nobody waits for it


def test_a_request_for_repair_that_comes_before_the_first_message_is_answered_with_nothing(rig: Any) -> None:
    """Not with a mark: numbers of other topics are no hole in this one."""
    world = rig("b1")
    reader, client = world.client(2, timing=TIMING), world.client(timing=TIMING)
    mailbox = reader.subscribe(T)
    client.publish(b"other", *[b"x"] * 5)
    client.publish(T, b"a")
    world.run(ENDED_S)
    client.machine.topic_publisher(T, world.now_s)
    (link,) = client.machine.links.all_up()
    client.machine.inbox(link, encode_ask(T, reader.machine.client_id, 1), world.now_s)
    world.run(TIMING.gap_s * 2)
    client.publish(T, b"b")
    assert numbers(mailbox) == [1, 6]


def test_at_the_limit_of_topics_the_oldest_on_which_nothing_waits_makes_room(rig: Any) -> None:
    world = rig("b1")
    client = world.client(limits=Limits(topics=3))
    for topic in (b"a", b"b", b"c"):
        client.publish(topic, b"x")
    world.silent.add("b1")
    client.publish(b"a", b"waits")
    client.publish(b"d", b"x")
    assert list(client.machine.topic_publishers) == [b"a", b"c", b"d"]
    client.publish(b"e", b"x")
    with pytest.raises(LimitReached, match="this client uses 3 topics"):
        client.publish(b"f", b"x")


# --- subscribers


def test_publishers_that_are_silent_for_long_are_forgotten(rig: Any) -> None:
    world = rig("b1")
    reader = world.client(99, timing=TIMING)
    mailbox = reader.subscribe(T)
    for number in range(1, 6):
        world.client(number, timing=TIMING).publish(T, b"a")
    reception = reader.machine.topic_subscribers[T].reception
    world.run(TIMING.idle_s * upkeep.LINES_ROUNDS)
    assert len(reception.lines.last) == 5  # their publishers may still repeat
    world.run(TIMING.idle_s * upkeep.LINES_ROUNDS + 1)
    assert reader.machine.topic_subscribers[T].reception is None
    assert len(numbers(mailbox)) == 5


def test_a_forgotten_publisher_goes_on_where_it_was(rig: Any) -> None:
    world = rig("b1")
    reader, client = world.client(2, timing=TIMING), world.client(timing=Timing(idle_s=1000.0))
    mailbox = reader.subscribe(T)
    client.publish(T, b"a", b"b")
    world.run(2 * TIMING.idle_s * upkeep.LINES_ROUNDS + 1)
    assert reader.machine.topic_subscribers[T].reception is None
    client.publish(T, b"c", b"d")
    assert numbers(mailbox) == [1, 2, 3, 4]


def test_topics_of_a_pattern_are_forgotten_too(rig: Any) -> None:
    world = rig("b1", "b2")
    reader, client = world.client(2, timing=TIMING), world.client(timing=TIMING)
    mailbox = reader.subscribe(b"unrelated")
    reader.machine.psubscribe(b"r*", mailbox, mailbox, world.now_s)
    world.settle()
    topics = [b"r%d" % number for number in range(20)]
    for topic in topics:
        client.publish(topic, b"a")
    (flow,) = reader.machine.patterns.values()
    assert sorted(flow.topics()) == sorted(topics)
    world.run(2 * TIMING.idle_s * upkeep.LINES_ROUNDS + 1)
    assert flow.topics() == []
    client.publish(topics[0], b"b")
    assert [type(event) for event in mailbox.take() if isinstance(event, (Gap, Interrupted))] == []


def test_time_in_which_a_process_did_not_run_is_nobodys_silence(rig: Any) -> None:
    world = rig("b1")
    reader, client = world.client(2, timing=TIMING), world.client(timing=TIMING)
    reader.subscribe(T)
    client.publish(T, b"a")
    world.run(1.0)
    for _ in range(3):
        world.now_s += 3600.0
        world.run(0.1)
    assert client.machine.client_id in reader.machine.topic_subscribers[T].reception.lines.last


def test_a_round_begins_sooner_when_the_cluster_goes_by_a_shorter_t_idle(rig: Any) -> None:
    world = rig("b1")
    client = world.client(timing=Timing(idle_s=1000.0))
    client.publish(T, b"a")
    world.run(1.0)
    world.membership = msgspec.structs.replace(world.membership, version=2, timers=TIMING.agreed)
    world.prepare("b1")
    world.run(2.5 * TIMING.idle_s)
    assert not client.machine.topic_publishers
