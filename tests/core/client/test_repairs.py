"""Repairs between a subscriber and a publisher: who is asked, how often, and how much is sent at once."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.core.client.attachment import Reception
from nearcast.core.client.repairs import BURST_BYTES, BYTES_PER_S, SLICE_BYTES, WAITING_MAX
from nearcast.core.model.message import Message
from nearcast.core.model.names import INBOX, inbox_channel
from nearcast.core.model.settings import RateLimit
from nearcast.core.wire.frames import encode_ask

T = b"t"


class Heard:
    """Every message on an inbox of a server, and how many heard it."""

    def __init__(self, rig: Any, broker: str) -> None:
        self.messages: list[tuple[bytes, int, int]] = []  # channel, bytes, receivers
        rig.servers[broker].observers.append(self)

    def published(self, server: Any, channel: bytes, payload: bytes, receivers: Any) -> None:
        if channel.startswith(INBOX):
            self.messages.append((channel, len(payload), len(receivers)))

    def installed(self, *what: Any) -> None:
        pass

    def wiped(self, *what: Any) -> None:
        pass

    def bytes_to(self, client: int) -> int:
        return sum(size for channel, size, _ in self.messages if channel == inbox_channel(client))


def full_ring(rig: Any) -> tuple[Any, Any, Heard]:
    """A publisher whose ring holds 4 MB, and what is sent to inboxes."""
    world = rig("b1")
    publisher = world.client(1)
    publisher.publish(T, *(b"%04d" % number + b"x" * 4000 for number in range(1000)))
    return world, publisher, Heard(world, "b1")


def ask(world: Any, asker: int, have: int = 0) -> None:
    world.ask("b1", "PUBLISH", inbox_channel(1), encode_ask(T, asker, have))


def test_a_request_reaches_its_publisher_alone_however_many_subscribe(rig: Any) -> None:
    world = rig("b1")
    publishers = [world.client(number) for number in (1, 2)]
    subscribers = [world.client(number) for number in range(10, 20)]
    boxes = [subscriber.subscribe(T) for subscriber in subscribers]
    world.run(0.5)
    for publisher in publishers:
        publisher.publish(T, b"before")
    heard = Heard(world, "b1")
    for subscriber in subscribers:
        subscriber.cut("b1")
    publishers[0].publish(T, b"missed")
    world.run(5.0)
    asked = [receivers for channel, _, receivers in heard.messages if channel in (inbox_channel(1), inbox_channel(2))]
    assert set(asked) == {1}
    assert len(asked) == 2 * 2 * len(subscribers)  # two answers of each publisher are wanted after an interruption
    for box in boxes:
        got = [event.payload for event in box.take() if isinstance(event, Message)]
        assert sorted(got) == [b"before", b"before", b"missed"]


def test_many_requests_at_once_are_answered_at_a_limited_rate(rig: Any) -> None:
    world, _, heard = full_ring(rig)
    for asker in range(100, 125):
        ask(world, asker)
    at_once = sum(size for channel, size, _ in heard.messages if channel != inbox_channel(1))
    assert at_once <= BURST_BYTES + SLICE_BYTES + 8000
    world.run(2.0)
    sent = sum(size for channel, size, _ in heard.messages if channel != inbox_channel(1))
    assert sent <= BURST_BYTES + 2.1 * BYTES_PER_S
    world.run(20.0)
    assert all(heard.bytes_to(asker) > 4_000_000 for asker in range(100, 125))


def test_who_asks_again_while_the_answer_is_under_way_is_sent_nothing_twice(rig: Any) -> None:
    world, _, heard = full_ring(rig)
    for _ in range(4):
        ask(world, 100)
    world.run(3.0)
    assert heard.bytes_to(100) < 4_200_000


def test_answers_that_wait_are_limited(rig: Any) -> None:
    world, publisher, _ = full_ring(rig)
    for asker in range(100, 110 + WAITING_MAX):
        ask(world, asker)
    answers = publisher.machine.answers
    assert len(answers._waiting) <= WAITING_MAX
    assert answers.turned_away > 0


def test_an_answer_ends_with_its_link(rig: Any) -> None:
    world, publisher, heard = full_ring(rig)
    ask(world, 100)
    publisher.cut("b1")
    sent = heard.bytes_to(100)
    world.run(3.0)
    assert heard.bytes_to(100) == sent
    assert not publisher.machine.answers._waiting


def test_a_repair_that_takes_longer_than_the_gap_timer_is_waited_for_while_it_arrives(rig: Any) -> None:
    world, _, _ = full_ring(rig)
    subscriber = world.client(2)
    subscriber.subscribe(T)
    world.run(0.5)
    topic_subscriber = subscriber.machine.topic_subscribers[T]
    topic_subscriber.reception = Reception(topic_subscriber)
    lines = topic_subscriber.reception.lines
    lines.last[1] = 100
    for asker in range(100, 110):
        ask(world, asker)
    subscriber.cut("b1")
    world.run(10.0)
    assert lines.last[1] == 1000
    assert lines.counters.gaps == 0


@pytest.mark.parametrize(("after_s", "room"), [(0.0, -5.0), (1.0, 5.0), (9.0, 20.0)])
def test_a_rate_limit_is_paid_back_by_waiting(after_s: float, room: float) -> None:
    limit = RateLimit(per_s=10.0, burst=20.0)
    assert limit.room(100.0) == 20.0
    limit.spend(25.0)
    assert limit.room(100.0 + after_s) == room


@pytest.mark.parametrize("have", [10**6, 2**63, 2**64 - 1])
def test_who_says_it_has_more_than_there_is_gets_nothing_and_harms_nobody(rig: Any, have: int) -> None:
    """Anybody may write to an inbox."""
    world, publisher, heard = full_ring(rig)
    link = publisher.machine.links.up("b1")
    ask(world, 7, have)
    world.run(1.0)
    assert publisher.machine.links.up("b1") is link
    assert 0 < heard.bytes_to(7) < 100  # the mark alone
