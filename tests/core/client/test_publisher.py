"""Publishing: the window, counting over one and several lanes, resends, leases, refusals, skips and the repair ring."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hiredis import Reader
from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.client.machine import Client
from nearcast.core.client.news import summed_up
from nearcast.core.model.membership import BrokerInfo, Membership
from nearcast.core.model.names import CONTROL, FIRST_USES, inbox_channel
from nearcast.core.model.placement import Mode, Placement, prepare, settled, single, switch
from nearcast.core.model.settings import DEFAULT_TIMING, Limits
from nearcast.core.wire.effects import Failed
from nearcast.core.wire.frames import DATA, HEADER, HEADER_BYTES, MARK, SKIP, decode_repair, encode_ask
from nearcast.core.wire.link import Link, command
from nearcast.errors import PublishBufferFull, Unavailable
from nearcast.sim.valkey import server
from nearcast.sim.valkey.replies import error

T = b"t"


class Ear:
    """A plain subscriber at one server: the frames it hears, in order."""

    def __init__(self, rig: Any, broker: str, channel: bytes = T) -> None:
        self.pushes: list[bytes] = []
        session = rig.servers[broker].connect(lambda data: None)
        session.feed(command("HELLO", 3) + command("SUBSCRIBE", channel))
        session.deliver = self.pushes.append

    def payloads(self) -> list[bytes]:
        reader = Reader()
        reader.feed(b"".join(self.pushes))
        found = []
        while (push := reader.gets()) is not False:
            found.append(push[2])
        return found

    def frames(self) -> list[tuple[int, int, bytes]]:
        """(epoch, sequence, payload), a SKIP without payload."""
        return [taken_apart(payload) for payload in self.payloads()]


def taken_apart(payload: bytes) -> tuple[int, int, bytes]:
    word, epoch, _, sequence, _ = HEADER.unpack_from(payload)
    return epoch, sequence, {DATA: payload[HEADER_BYTES:], SKIP: b"<skip>", MARK: b"<mark>"}[word]


def placed(rig: Any, *brokers: str, mode: Mode = Mode.SINGLE, epoch: int = 5) -> Placement:
    """Put the topic there, as a plan would."""
    placement = Placement(epoch, mode, brokers, 1)
    for broker in rig.servers:
        rig.install(broker, T, settled(placement, term=1))
    return placement


# --- one lane


def test_a_first_use_is_published_at_the_directory_in_the_epoch_of_the_membership(rig: Any) -> None:
    world = rig("b1")
    ear, client = Ear(world, "b1"), world.client()
    client.publish(T, b"a", b"b")
    assert ear.frames() == [(1, 1, b"a"), (1, 2, b"b")]
    assert client.machine.acks == [(b"a", 1), (b"b", 1)]


def test_receivers_are_those_of_each_message(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a")
    Ear(world, "b1")
    client.publish(T, b"b")
    Ear(world, "b1")
    client.publish(T, b"c")
    assert client.machine.acks == [(b"a", 0), (b"b", 1), (b"c", 2)]


def test_nothing_is_sent_before_the_control_channel_is_held_and_the_record_read(rig: Any) -> None:
    world = rig("b1")
    ear, client = Ear(world, "b1"), world.client()
    world.silent.add("b1")
    client.publish(T, b"a")
    assert ear.frames() == []
    world.speak("b1")
    assert ear.frames() == [(1, 1, b"a")]
    assert CONTROL + T in world.channels("b1")


def test_the_window_is_what_may_wait_for_acknowledgement(rig: Any) -> None:
    world = rig("b1")
    client = world.client(limits=Limits(window=3))
    client.publish(T, b"first")
    topic_publisher = client.machine.topic_publishers[T]
    world.silent.add("b1")
    client.publish(T, b"1", b"2", b"3")
    assert not topic_publisher.has_room
    with pytest.raises(PublishBufferFull, match=r"3 messages wait for acknowledgement: await publish\(\) or drain\(\)"):
        client.publish(T, b"4")
    assert topic_publisher.sequence == 4
    world.speak("b1")
    assert topic_publisher.has_room
    client.publish(T, b"4")
    assert client.acked == [b"first", b"1", b"2", b"3", b"4"]


def test_the_window_is_limited_in_bytes_too(rig: Any) -> None:
    world = rig("b1")
    client = world.client(limits=Limits(window_bytes=100, ring_bytes=50))
    world.silent.add("b1")
    client.publish(T, b"x" * 60, b"y" * 60)
    with pytest.raises(PublishBufferFull):
        client.publish(T, b"z")
    world.speak("b1")
    client.publish(T, b"z")
    assert len(client.acked) == 3


def test_a_full_ring_leaves_room_for_ever(rig: Any) -> None:
    world = rig("b1")
    client = world.client(limits=Limits(window_bytes=1000, ring_bytes=999))
    for number in range(50):
        client.publish(T, b"%100d" % number)
    assert len(client.acked) == 50


# --- leases


def test_replies_without_a_lease_count_when_the_lease_is_back(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a")
    world.unleased.add("b1")
    world.run(DEFAULT_TIMING.lease_s + DEFAULT_TIMING.heartbeat_s + 0.1)
    client.publish(T, b"b", b"c")
    assert client.acked == [b"a"]
    world.unleased.clear()
    world.prepare("b1")
    world.run(DEFAULT_TIMING.heartbeat_s + 0.1)
    assert client.acked == [b"a", b"b", b"c"]


def test_a_lease_is_trusted_for_its_time_from_when_it_was_asked_for(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a")
    world.unleased.add("b1")
    world.run(DEFAULT_TIMING.lease_s - DEFAULT_TIMING.heartbeat_s - 0.1)
    client.publish(T, b"b")
    assert client.acked == [b"a", b"b"]


# --- refusals


@pytest.fixture
def bad_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server b1 refuses the payload `bad`, as one without memory would."""
    execute = server.execute

    def refuse(session: Any, parts: list[bytes]) -> bytes:
        if session.server.name == "b1" and parts[0] == b"PUBLISH" and parts[2][HEADER_BYTES:] == b"bad":
            return error("OOM command not allowed")
        return execute(session, parts)

    monkeypatch.setattr(server, "execute", refuse)


def failed(client: Any) -> list[tuple[object, str]]:
    return [(effect.token, str(effect.error)) for effect in client.effects if isinstance(effect, Failed)]


@pytest.mark.usefixtures("bad_refused")
def test_a_refused_message_fails_and_the_others_go_on(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a", b"bad", b"c")
    assert client.acked == [b"a", b"c"]
    assert failed(client) == [(b"bad", "b1 refused the message: OOM command not allowed")]
    assert isinstance(client.effects[0].error, Unavailable)
    assert client.machine.topic_publishers[T].unacknowledged == 0


@pytest.mark.usefixtures("bad_refused")
def test_a_refusal_behind_replies_without_a_lease_fails_its_own_message(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a")
    world.unleased.add("b1")
    world.run(DEFAULT_TIMING.lease_s + 0.6)
    client.publish(T, b"b", b"bad", b"c")
    assert [token for token, _ in failed(client)] == [b"bad"]
    world.unleased.clear()
    world.prepare("b1")
    world.run(DEFAULT_TIMING.heartbeat_s + 0.1)
    assert client.acked == [b"a", b"b", b"c"]


@pytest.mark.usefixtures("bad_refused")
def test_a_refusal_of_one_of_two_targets_fails_the_message(rig: Any) -> None:
    world = rig("b1", "b2")
    placed(world, "b1", "b2", mode=Mode.ALL_PUBLISHERS)
    client = world.client()
    client.publish(T, b"a")
    world.silent.add("b2")
    client.publish(T, b"b", b"bad", b"c")
    world.speak("b2")
    assert client.acked == [b"a", b"b", b"c"]
    assert [token for token, _ in failed(client)] == [b"bad"]


@pytest.mark.usefixtures("bad_refused")
@pytest.mark.parametrize(("payloads", "failing"), [((b"bad", b"c"), [b"bad"]), ((b"c", b"bad"), [])])
def test_a_message_refused_behind_the_fence_fails_if_a_later_one_ran_there(
    rig: Any, payloads: tuple[bytes, ...], failing: list[bytes]
) -> None:
    """Whoever hears the publisher first by the later one would drop the refused one, sent again, as an older one."""
    world = rig("b1", "b2")
    client, ear = world.client(), Ear(world, "b2")
    old = placed(world, "b1")
    client.publish(T, b"a")
    world.silent.add("b1")
    world.install("b1", T, switch(old, single(6, "b2", 1), 1, forced=False))
    client.publish(T, *payloads)
    world.silent.add("b2")
    world.speak("b1")
    world.speak("b2")
    assert [token for token, _ in failed(client)] == failing
    assert client.acked == [b"a", *(payload for payload in payloads if payload not in failing)]
    assert [number for _, number, _ in ear.frames()] == [2, 3]


@pytest.mark.usefixtures("bad_refused")
def test_a_refused_message_nobody_waits_for_is_noted(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    for payload in (b"a", b"bad", b"bad", b"c"):
        client.machine.publish(T, payload, 0, None, world.now_s)
    world.settle()
    assert client.machine.topic_publishers[T].unacknowledged == 0
    refused = client.machine.refusals.take()
    assert str(summed_up(refused)) == "2 messages on 't' refused: b1 refused the message: OOM command not allowed"
    assert client.machine.refusals.take() == {}


@pytest.mark.usefixtures("bad_refused")
def test_a_refused_message_whose_caller_has_left_is_not_noted(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    world.silent.add("b1")
    client.publish(T, b"bad")
    client.machine.give_up(T, 1)
    world.speak("b1")
    assert failed(client) == []
    assert client.machine.refusals.take() == {}


@pytest.mark.usefixtures("bad_refused")
def test_a_message_refused_by_two_targets_fails_once(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = rig("b1", "b2")
    placed(world, "b1", "b2", mode=Mode.ALL_PUBLISHERS)
    world.servers["b2"].name = "b1"
    client = world.client()
    client.publish(T, b"bad")
    assert [token for token, _ in failed(client)] == [b"bad"]
    assert client.machine.refusals.take() == {}


@pytest.mark.usefixtures("bad_refused")
def test_a_refused_message_is_repaired_with_a_skip(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a", b"bad", b"c")
    assert repairs(world, client, {1: 1}) == [(2, b"<skip>"), (3, b"c"), (3, b"<mark>")]


# --- several lanes


def test_a_message_is_acknowledged_when_all_targets_have_replied(rig: Any) -> None:
    world = rig("b1", "b2")
    placed(world, "b1", "b2", mode=Mode.ALL_PUBLISHERS)
    ears = [Ear(world, broker) for broker in ("b1", "b2")]
    client = world.client()
    client.publish(T, b"a")
    world.silent.add("b2")
    client.publish(T, b"b", b"c")
    assert client.acked == [b"a"]
    world.speak("b2")
    assert client.machine.acks == [(b"a", 2), (b"b", 2), (b"c", 2)]
    assert [ear.frames() for ear in ears] == [[(5, 1, b"a"), (5, 2, b"b"), (5, 3, b"c")]] * 2


@given(st.lists(st.sampled_from(["publish", "b1", "b2", "b3"]), max_size=25))
def test_acknowledgements_are_a_prefix_and_the_least_of_all_lanes(script: list[str]) -> None:
    brokers = ("b1", "b2", "b3")
    client = Client(1, Random(1))
    client.membership = Membership(
        version=1, term=1, brokers={name: BrokerInfo(name) for name in brokers}, ring=brokers
    )
    client.publish(T, b"0", 0, 1, 0.0)
    topic_publisher = client.topic_publishers[T]
    topic_publisher.record(settled(Placement(5, Mode.ALL_PUBLISHERS, brokers, 1), 1), 0.0)
    lanes = {lane.broker: lane for lane in topic_publisher.lanes}
    for lane in lanes.values():
        lane.link = Link(lane.broker)
        lane.link.lease_until_s = 100.0
    replied = dict.fromkeys(brokers, 0)
    for step in script:
        if step == "publish":
            client.publish(T, b"x", 0, topic_publisher.sequence + 1, 0.0)
        elif replied[step] < topic_publisher.sequence:
            replied[step] += 1
            lanes[step].replied([replied[step]], 0.0)
        assert topic_publisher.acknowledged == min(replied.values())
    assert client.acks == [(number, 3 * number) for number in range(1, min(replied.values()) + 1)]


def test_all_subscribers_writes_to_one_broker_of_the_placement(rig: Any) -> None:
    world = rig("b1", "b2")
    placement = placed(world, "b1", "b2", mode=Mode.ALL_SUBSCRIBERS)
    ears = {broker: Ear(world, broker) for broker in ("b1", "b2")}
    for client_id in (2, 3):
        client = world.client(client_id)
        client.publish(T, b"from %d" % client_id)
        (writer,) = placement.writers(client_id)
        assert ears[writer].frames() == [(5, 1, b"from %d" % client_id)]


# --- moves


def test_prepare_warms_the_new_targets_and_sends_nothing_there(rig: Any) -> None:
    world = rig("b1", "b2")
    old = placed(world, "b1")
    ear, client = Ear(world, "b2"), world.client()
    client.publish(T, b"a")
    world.install("b1", T, prepare(old, single(6, "b2", 1), term=1))
    assert CONTROL + T in world.channels("b2")
    client.publish(T, b"b")
    assert ear.frames() == []


def test_at_the_switch_what_is_not_acknowledged_is_sent_again_in_order(rig: Any) -> None:
    world = rig("b1", "b2")
    old, new = placed(world, "b1"), single(6, "b2", 1)
    ears = [Ear(world, broker) for broker in ("b1", "b2")]
    client = world.client()
    client.publish(T, b"a")
    world.silent.add("b1")
    client.publish(T, b"b", b"c")
    world.install("b1", T, switch(old, new, term=1, forced=False))
    client.publish(T, b"d")  # sent behind the fence, as the publisher does not know of it yet
    assert client.acked == [b"a"]
    world.speak("b1")
    assert ears[0].frames() == [(5, 1, b"a"), (5, 2, b"b"), (5, 3, b"c"), (5, 4, b"d")]
    # Replies before the fence count; what ran behind it is sent again.
    assert ears[1].frames() == [(6, 4, b"d")]
    assert client.acked == [b"a", b"b", b"c", b"d"]


def test_replies_to_a_retired_lane_do_not_count(rig: Any) -> None:
    world = rig("b1", "b2")
    old, new = placed(world, "b1"), single(6, "b2", 1)
    client = world.client()
    client.publish(T, b"a")
    topic_publisher = client.machine.topic_publishers[T]
    (lane,) = topic_publisher.lanes
    world.silent.update(("b1", "b2"))
    client.publish(T, b"b")
    topic_publisher.record(switch(old, new, term=1, forced=False), world.now_s)
    lane.replied([1], world.now_s)
    lane.refused("OOM", world.now_s)
    assert lane.retired
    assert topic_publisher.unacknowledged == 1
    assert failed(client) == []
    world.speak("b2")
    assert client.acked == [b"a", b"b"]


def test_an_older_record_changes_nothing(rig: Any) -> None:
    world = rig("b1", "b2")
    placed(world, "b1")
    client = world.client()
    client.publish(T, b"a")
    topic_publisher = client.machine.topic_publishers[T]
    lanes = topic_publisher.lanes
    topic_publisher.record(settled(single(4, "b2", 1), 9), world.now_s)
    assert topic_publisher.lanes is lanes


def test_a_broker_that_is_a_target_no_more_is_left_after_a_while(rig: Any) -> None:
    world = rig("b1", "b2")
    old, new = placed(world, "b1"), single(6, "b2", 1)
    client = world.client()
    client.publish(T, b"a")
    world.install("b1", T, switch(old, new, term=1, forced=False))
    assert CONTROL + T in world.channels("b1")
    world.run(DEFAULT_TIMING.linger_s + 0.2)
    assert CONTROL + T not in world.channels("b1")
    client.publish(T, b"b")
    assert client.acked == [b"a", b"b"]


# --- lost connections


def test_what_was_in_flight_is_sent_again_with_the_same_numbers(rig: Any) -> None:
    world = rig("b1")
    ear, client = Ear(world, "b1"), world.client()
    client.publish(T, b"a")
    world.silent.add("b1")
    client.publish(T, b"b", b"c")
    client.cut("b1")
    world.silent.clear()
    world.run(1.0)
    assert ear.frames() == [(1, 1, b"a"), (1, 2, b"b"), (1, 3, b"c"), (1, 2, b"b"), (1, 3, b"c")]
    assert client.acked == [b"a", b"b", b"c"]


def test_the_target_of_an_epoch_does_not_change_when_its_server_is_away(rig: Any) -> None:
    world = rig("b1", "b2")
    placed(world, "b2")
    ear, client = Ear(world, "b1"), world.client()
    client.publish(T, b"a")
    world.down.add("b2")
    client.cut("b2")
    client.publish(T, b"b")
    world.run(2.0)
    assert client.acked == [b"a"]
    assert ear.frames() == []
    world.down.clear()
    world.run(4.0)
    assert client.acked == [b"a", b"b"]


# --- giving up


def test_a_message_given_up_before_it_was_sent_becomes_a_skip(rig: Any) -> None:
    world = rig("b1")
    ear, client = Ear(world, "b1"), world.client()
    world.silent.add("b1")
    client.publish(T, b"a", b"b", b"c")
    assert client.machine.give_up(T, 2)
    world.speak("b1")
    assert ear.frames() == [(1, 1, b"a"), (1, 2, b"<skip>"), (1, 3, b"c")]
    assert client.acked == [b"a", b"c"]


def test_a_message_given_up_after_it_was_sent_stays_a_message(rig: Any) -> None:
    world = rig("b1")
    ear, client = Ear(world, "b1"), world.client()
    client.publish(T, b"first")
    world.silent.add("b1")
    client.publish(T, b"a", b"b")
    assert not client.machine.give_up(T, 2)
    client.cut("b1")
    world.silent.clear()
    world.run(1.0)
    assert ear.frames()[-2:] == [(1, 2, b"a"), (1, 3, b"b")]
    assert client.acked == [b"first", b"b"]


def test_giving_up_what_was_acknowledged_or_never_was_does_nothing(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a")
    assert not client.machine.give_up(T, 1)
    assert not client.machine.give_up(T, 7)
    assert not client.machine.give_up(b"unknown", 1)
    assert client.machine.topic_publishers[T].unacknowledged == 0


def test_a_message_that_was_sent_on_a_lost_connection_is_not_withdrawn(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"first")
    world.silent.add("b1")
    client.publish(T, b"a")
    client.cut("b1")
    client.publish(T, b"b")
    assert not client.machine.give_up(T, 2)
    assert client.machine.give_up(T, 3)


def test_topics_with_messages_in_flight_are_known(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"first")
    assert not client.machine.in_flight
    world.silent.add("b1")
    client.publish(T, b"a", b"b")
    assert list(client.machine.in_flight) == [client.machine.topic_publishers[T]]
    world.speak("b1")
    assert not client.machine.in_flight


def test_messages_of_one_turn_are_sent_together_and_in_order(rig: Any) -> None:
    world = rig("b1")
    ear, client = Ear(world, "b1"), world.client()
    client.publish(T, b"first")
    for payload in (b"a", b"b", b"c"):
        client.machine.publish(T, payload, 0, payload, world.now_s)
    assert list(client.machine.unsent) == [client.machine.topic_publishers[T]]
    ((_, written),) = client.machine.outgoing()
    assert written.count(b"PUBLISH") == 3
    assert not client.machine.unsent
    client.sessions["b1"].feed(written)
    world.settle()
    assert [payload for _, _, payload in ear.frames()] == [b"first", b"a", b"b", b"c"]
    assert client.acked == [b"first", b"a", b"b", b"c"]


def test_a_message_published_right_after_a_refusal_is_in_flight(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"first")
    topic_publisher = client.machine.topic_publishers[T]
    client.machine.publish(T, b"refused", 0, None, world.now_s)
    topic_publisher.refuse_all(Unavailable("no"))
    assert not client.machine.unsent
    client.machine.publish(T, b"later", 0, b"later", world.now_s)
    assert list(client.machine.in_flight) == list(client.machine.unsent) == [topic_publisher]
    world.run(3)
    assert b"later" in client.acked


def test_a_message_given_up_in_the_turn_it_was_published_in_is_never_sent(rig: Any) -> None:
    world = rig("b1")
    ear, client = Ear(world, "b1"), world.client()
    client.publish(T, b"first")
    client.machine.publish(T, b"never", 0, b"never", world.now_s)
    assert client.machine.give_up(T, 2)
    client.publish(T, b"second")
    assert [payload for _, _, payload in ear.frames()] == [b"first", b"<skip>", b"second"]


def test_topics_without_room_are_known(rig: Any) -> None:
    world = rig("b1")
    client = world.client(limits=Limits(window=2, window_bytes=100, ring_bytes=10))
    client.publish(T, b"first")
    client.publish(b"long", b"first")
    world.silent.add("b1")
    client.publish(T, b"a")
    client.publish(b"long", b"x" * 90)
    assert not client.machine.full
    client.publish(T, b"b")
    assert list(client.machine.full) == [client.machine.topic_publishers[T]]
    client.publish(b"long", b"y" * 9)
    assert list(client.machine.full) == [client.machine.topic_publishers[T], client.machine.topic_publishers[b"long"]]
    with pytest.raises(PublishBufferFull):
        client.publish(b"long", b"z")


# --- repair


def repairs(world: Any, client: Any, last: dict[int, int]) -> list[tuple[int, bytes]]:
    """What a subscriber that has so much of each publisher is sent."""
    ear = Ear(world, "b1", inbox_channel(99))
    for publisher, have in last.items():
        world.ask("b1", "PUBLISH", inbox_channel(publisher), encode_ask(T, 99, have))
    told = [decode_repair(payload) for payload in ear.payloads()]
    assert all(repair is not None and repair[0] == T for repair in told)
    return [taken_apart(repair[1])[1:] for repair in told if repair is not None]


@pytest.mark.parametrize(
    ("have", "sent"),
    [
        (0, [(1, b"a"), (2, b"b"), (3, b"c"), (3, b"<mark>")]),
        (2, [(3, b"c"), (3, b"<mark>")]),
        (3, [(3, b"<mark>")]),
        (9, [(3, b"<mark>")]),
    ],
)
def test_a_subscriber_is_sent_what_it_misses_and_how_far_we_are(
    rig: Any, have: int, sent: list[tuple[int, bytes]]
) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a", b"b", b"c")
    assert repairs(world, client, {1: have}) == sent


def test_a_subscriber_that_never_heard_of_us_is_sent_nothing(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a")
    assert repairs(world, client, {2: 0}) == []


def test_a_repair_does_not_contain_what_is_not_acknowledged(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a")
    world.unleased.add("b1")
    world.run(DEFAULT_TIMING.lease_s + 0.6)
    client.publish(T, b"b")
    assert repairs(world, client, {1: 0}) == [(1, b"a"), (1, b"<mark>")]


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"ring": 2}, [4, 5]),
        ({"ring": 0}, []),
        ({"ring_bytes": 25}, [4, 5]),
        ({"ring_bytes": 9}, []),
        ({"ring": 3, "ring_bytes": 25}, [4, 5]),
    ],
)
def test_the_repair_ring_keeps_the_newest_within_its_limits(rig: Any, limits: dict[str, int], kept: list[int]) -> None:
    world = rig("b1")
    client = world.client(limits=Limits(**limits))
    client.publish(T, *(b"%010d" % number for number in range(1, 6)))
    assert [sequence for sequence, payload in repairs(world, client, {1: 0}) if payload != b"<mark>"] == kept


# --- counters


def test_counters_are_told_once(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"ab", b"c")
    told = client.machine.topic_publishers[T].take_counters()
    assert told is not None
    broker, topic, counters = told
    assert (broker, topic, counters.published, counters.published_bytes, counters.publishers) == ("b1", "t", 2, 3, 1)
    assert client.machine.topic_publishers[T].take_counters() is None


def test_a_server_that_lost_its_memory_is_asked_about_before_it_is_used(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a")
    world.servers["b1"].restart("run-2")
    world.prepare("b1")
    client.cut("b1")
    client.publish(T, b"b")
    world.run(2.0)
    assert client.acked == [b"a", b"b"]
    assert world.ask("b1", "HGET", FIRST_USES, T) == b"1"


def test_a_record_that_was_read_before_the_place_was_forgotten_is_not_believed(rig: Any) -> None:
    """Between two reads on one connection nobody listened for the fence."""
    world = rig("b1", "b2")
    topic = next(name for n in range(99) if world.membership.directory(name := b"t%d" % n) == "b2")
    old, new = single(5, "b1", 1), single(6, "b2", 1)
    for broker in ("b1", "b2"):
        world.install(broker, topic, settled(old, term=1))
    ear, client = Ear(world, "b1", topic), world.client()
    world.run(0.5)
    client.deaf.add("b1")
    client.publish(topic, b"a")
    client.machine.topic_publishers[topic].begin_again("", world.now_s)
    world.settle()
    world.install("b1", topic, switch(old, new, 1, forced=False))
    world.run(0.5)  # its directory still sends it to b1
    client.deaf.clear()
    client.hear()
    world.run(0.5)
    assert ear.frames() == []
    assert client.machine.topic_publishers[topic].placement == new
    assert client.acked == [b"a"]
