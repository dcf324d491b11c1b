"""Publishing to topics that a log covers: kept once and in order, across cuts, moves and changes of the logs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nearcast.core.model.logs import Log, last_numbers, life_of, stream_of
from nearcast.core.model.names import FIRST_USES, OLDER_NUMBERS, RECORDS, TOTALS
from nearcast.core.model.placement import Mode, Placement, prepare, settled, single, switch
from nearcast.core.wire.batches import decode_batch
from nearcast.core.wire.effects import Failed
from nearcast.core.wire.frames import HEADER, encode_record
from nearcast.core.wire.link import command
from nearcast.core.wire.scripts import APPEND, INSTALL
from nearcast.sim.valkey.replies import User
from nearcast.sim.valkey.server import Session

T, U = b"t", b"u"
LOG = Log("all", 1, ("*",), 3600.0, 1 << 30)


def covered(world: Any, *logs: Log, brokers: tuple[str, ...] = ()) -> None:
    """Change the logs, at these brokers, or at all of them."""
    version = world.membership.version + 1
    world.membership = msgspec.structs.replace(world.membership, version=version, logs=logs, logs_version=version)
    for broker in brokers or tuple(world.servers):
        world.prepare(broker)


def entries(world: Any, broker: str, log: Log = LOG) -> list[list[bytes]]:
    info = world.membership.brokers[broker]
    stream = world.servers[broker].keys.stream(stream_of(log, life_of(broker, info.began)))
    return [fields for _, fields in stream.records] if stream is not None else []


def kept(world: Any, broker: str, topic: bytes = T, log: Log = LOG) -> list[tuple[int, bytes]]:
    """(number, payload) of all messages of the topic in a part, in order."""
    found = []
    for fields in entries(world, broker, log):
        for name, batch in zip(fields[6::2], fields[7::2], strict=True):
            if name == topic:
                _, _, _, first, _ = HEADER.unpack_from(batch)
                items = decode_batch(batch)
                assert items is not None
                found += [(number, payload) for number, (_, _, payload) in enumerate(items, first)]
    return found


def placed(world: Any, *brokers: str, mode: Mode = Mode.SINGLE, epoch: int = 5, topic: bytes = T) -> Placement:
    placement = Placement(epoch, mode, brokers, world.membership.version)
    for broker in world.servers:
        world.install(broker, topic, settled(placement, term=1))
    return placement


def failed(client: Any) -> list[object]:
    return [effect.token for effect in client.effects if isinstance(effect, Failed)]


def test_what_is_published_is_kept_and_delivered(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    client, reader = world.client(), world.client(2)
    mailbox = reader.subscribe(T)
    client.publish(T, b"a", b"b")
    client.publish(T, b"c")
    assert client.acked == [b"a", b"b", b"c"]
    assert kept(world, "b1") == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert [event.payload for event in mailbox.take()] == [b"a", b"b", b"c"]


def test_an_entry_counts_the_messages_of_its_stream(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    client = world.client()
    client.publish(T, b"a", b"b")
    client.publish(U, b"x")
    assert [fields[5] for fields in entries(world, "b1")] == [b"2", b"3"]


def test_topics_of_one_turn_share_a_call(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    client = world.client()
    client.publish(T, b"a")
    client.publish(U, b"x")
    for topic, payload in ((T, b"b"), (U, b"y")):
        client.machine.publish(topic, payload, 0, payload, world.now_s)
    world.settle()
    assert client.acked == [b"a", b"x", b"b", b"y"]
    assert entries(world, "b1")[-1][6::2] == [T, U]


def test_a_topic_outside_all_logs_is_not_kept(rig: Any) -> None:
    world = rig("b1")
    log = Log("orders", 1, ("order.*",), 3600.0, 1 << 30)
    covered(world, log)
    client = world.client()
    client.publish(T, b"a")
    client.publish(b"order.1", b"o")
    assert client.acked == [b"a", b"o"]
    assert kept(world, "b1", T, log) == []
    assert kept(world, "b1", b"order.1", log) == [(1, b"o")]


def test_two_logs_that_cover_a_topic_both_keep_it(rig: Any) -> None:
    world = rig("b1")
    other = Log("t", 1, ("t",), 3600.0, 1 << 30)
    covered(world, LOG, other)
    client = world.client()
    client.publish(T, b"a")
    client.publish(U, b"x")
    assert kept(world, "b1") == kept(world, "b1", log=other) == [(1, b"a")]
    assert (kept(world, "b1", U), kept(world, "b1", U, other)) == ([(1, b"x")], [])


# --- a log is created or dropped


def test_a_reply_behind_the_creation_does_not_count_and_the_message_is_kept(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a")
    world.silent.add("b1")
    covered(world, LOG)
    client.publish(T, b"b")  # the server runs it as an uncovered one, behind the change
    assert kept(world, "b1") == []
    world.speak("b1")
    world.settle()
    assert client.acked == [b"a", b"b"]
    assert kept(world, "b1") == [(2, b"b")]


def test_a_reply_behind_other_news_of_the_membership_counts(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a")
    world.silent.add("b1")
    world.membership = msgspec.structs.replace(world.membership, version=2)
    world.prepare("b1")
    client.publish(T, b"b")
    world.speak("b1")
    world.settle()
    assert client.acked == [b"a", b"b"]


def test_a_server_that_does_not_know_the_log_yet_is_waited_for(rig: Any) -> None:
    world = rig("b1", "b2")
    placed(world, "b2")
    client = world.client()
    client.publish(T, b"a")
    covered(world, LOG, brokers=("b1",))
    client.publish(T, b"b")
    world.run(0.2)
    assert client.acked == [b"a"]
    world.prepare("b2")
    world.run(0.5)
    assert client.acked == [b"a", b"b"]
    assert kept(world, "b2") == [(2, b"b")]


def test_a_dropped_log_keeps_nothing_more(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    client = world.client()
    client.publish(T, b"a")
    world.silent.add("b1")
    client.publish(T, b"b")
    covered(world)
    client.publish(T, b"c")
    world.speak("b1")
    world.run(0.5)
    assert client.acked == [b"a", b"b", b"c"]
    assert kept(world, "b1") == [(1, b"a"), (2, b"b")]


# --- lost connections


def test_a_batch_whose_answer_was_lost_is_not_kept_again(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    client, reader = world.client(), world.client(2)
    mailbox = reader.subscribe(T)
    client.publish(T, b"a")
    world.silent.add("b1")
    client.publish(T, b"b", b"c")
    client.cut("b1")
    world.silent.clear()
    world.run(1.0)
    client.publish(T, b"d")
    assert client.acked == [b"a", b"b", b"c", b"d"]
    assert kept(world, "b1") == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]
    world.run(1.0)
    assert [event.payload for event in mailbox.take()] == [b"a", b"b", b"c", b"d"]


# --- moves


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "connection lost"])
def test_what_was_kept_before_the_fence_is_not_kept_again_behind_it(rig: Any, answered: bool) -> None:
    world = rig("b1", "b2")
    covered(world, LOG)
    old = placed(world, "b1")
    client, reader = world.client(), world.client(2)
    mailbox = reader.subscribe(T)
    client.publish(T, b"a")
    world.silent.add("b1")
    client.publish(T, b"b")  # kept at b1
    new = single(6, "b2", world.membership.version)
    world.install("b1", T, switch(old, new, 1, forced=False))
    client.publish(T, b"c")  # refused at b1
    world.install("b2", T, settled(new, 1))
    if answered:
        world.speak("b1")
    else:
        client.cut("b1")
        world.silent.clear()
        reader.cut("b1")
    world.run(2.0)
    client.publish(T, b"d")
    assert client.acked == [b"a", b"b", b"c", b"d"]
    assert kept(world, "b1") == [(1, b"a"), (2, b"b")]
    assert kept(world, "b2") == [(3, b"c"), (4, b"d")]
    world.run(2.0)
    messages = [event.payload for event in mailbox.take() if hasattr(event, "payload")]
    assert messages == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "connection lost"])
def test_nothing_is_kept_in_a_new_epoch_before_the_fate_in_the_old_one_is_known(rig: Any, answered: bool) -> None:
    world = rig("b1", "b2")
    covered(world, LOG)
    old = placed(world, "b1")
    new = single(6, "b2", world.membership.version)
    client = world.client()
    client.publish(T, b"a")
    world.install("b1", T, prepare(old, new, 1))
    world.silent.add("b1")
    client.publish(T, b"b")  # kept at b1
    world.install("b1", T, switch(old, new, 1, forced=False))
    world.install("b2", T, settled(new, 1))  # the publisher hears this first
    client.publish(T, b"c")
    assert client.machine.topic_publishers[T].epoch == 6
    assert kept(world, "b2") == []
    if answered:
        world.speak("b1")
    else:
        client.cut("b1")
        world.silent.clear()
    world.run(2.0)
    assert client.acked == [b"a", b"b", b"c"]
    assert kept(world, "b1") == [(1, b"a"), (2, b"b")]
    assert kept(world, "b2") == [(3, b"c")]


class _Delayed:
    """A connection whose bytes the network holds back."""

    def __init__(self, session: Any) -> None:
        self.server = session.server
        self.session = session
        self.bytes = b""

    def feed(self, data: bytes) -> None:
        self.bytes += data

    def arrive(self) -> None:
        self.session.feed(self.bytes)

    def close(self) -> None:
        """The server hears of it when the bytes before it have arrived."""


@pytest.mark.parametrize("answered", [True, False], ids=["before the fence", "behind the fence"])
def test_a_batch_of_a_lost_connection_that_arrives_after_the_question_is_not_kept_again(
    rig: Any, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = rig("b1", "b2")
    covered(world, LOG)
    old = placed(world, "b1")
    client = world.client()
    client.publish(T, b"a")
    delayed = client.sessions["b1"] = _Delayed(client.sessions["b1"])
    client.publish(T, b"b")
    new = single(6, "b2", world.membership.version)
    switched = switch(old, new, 1, forced=False)
    install = command("EVAL", INSTALL, 3, RECORDS, FIRST_USES, TOTALS, 1, T, switched.version, encode_record(switched))
    feed = Session.feed

    def fed(session: Session, data: bytes) -> None:
        feed(session, data)
        if OLDER_NUMBERS in data and APPEND not in data and delayed.bytes:  # it was asked how much is kept there
            late, delayed.bytes = delayed.bytes, b""
            feed(delayed.session, late)
            if not answered:
                feed(world.servers["b1"].connect(lambda _: None), install)
        elif APPEND in data and answered:  # the answer comes when the publisher has heard of the switch
            client.deaf.add("b1")

    monkeypatch.setattr(Session, "feed", fed)
    client.cut("b1")
    world.run(0.3)
    assert not delayed.bytes
    for broker, record in (("b1", switched), ("b2", settled(new, 1))):
        world.install(broker, T, record)
    client.machine.found("b2", T, settled(new, 1), world.now_s)
    world.run(0.3)
    client.deaf.clear()
    client.hear()
    world.run(2.0)
    client.publish(T, b"c")
    assert client.acked == [b"a", b"b", b"c"]
    assert (kept(world, "b1"), kept(world, "b2")) == ([(1, b"a"), (2, b"b")], [(3, b"c")])


def test_a_broker_that_has_switched_need_not_know_of_later_moves(rig: Any) -> None:
    world = rig("b1", "b2", "b3")
    covered(world, LOG)
    old = placed(world, "b1")
    version = world.membership.version
    client = world.client()
    client.publish(T, b"a")
    world.silent.add("b1")
    client.publish(T, b"b")  # kept at b1
    client.cut("b1")
    world.down.add("b1")
    world.silent.clear()
    world.install("b1", T, switch(old, single(6, "b2", version), 1, forced=False))
    for broker in ("b2", "b3"):
        world.install(broker, T, settled(single(7, "b3", version), 1))
    client.machine.found("b2", T, settled(single(7, "b3", version), 1), world.now_s)
    world.run(1.0)
    assert kept(world, "b3") == []
    world.down.clear()
    world.run(3.0)
    client.publish(T, b"c")
    assert client.acked == [b"a", b"b", b"c"]
    assert (kept(world, "b1"), kept(world, "b3")) == ([(1, b"a"), (2, b"b")], [(3, b"c")])


def test_a_broker_that_came_back_empty_has_kept_nothing(rig: Any) -> None:
    world = rig("b1", "b2")
    covered(world, LOG)
    topic = next(b"%d" % n for n in range(100) if world.membership.directory(b"%d" % n) == "b2")
    placed(world, "b1", topic=topic)
    client = world.client()
    client.publish(topic, b"a")
    world.silent.add("b1")
    client.publish(topic, b"b")
    world.down.add("b1")
    client.cut("b1")
    world.silent.clear()
    world.servers["b1"].keys.clear()
    world.membership = msgspec.structs.replace(world.membership, version=9)
    for broker in ("b1", "b2"):
        world.prepare(broker)
    record = settled(single(9, "b2", 9), 1)  # it looks like a first use
    world.install("b2", topic, record)
    client.machine.found("b2", topic, record, world.now_s)
    world.down.clear()
    world.run(3.0)
    client.publish(topic, b"c")
    assert client.acked == [b"a", b"b", b"c"]
    assert kept(world, "b2", topic) == [(2, b"b"), (3, b"c")]


def test_a_broker_that_knows_that_the_log_is_gone_has_kept_all_it_will(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    client = world.client()
    client.publish(T, b"a")
    world.silent.add("b1")
    client.publish(T, b"b")
    client.cut("b1")
    world.silent.clear()
    covered(world)
    world.run(2.0)
    client.publish(T, b"c")
    assert client.acked == [b"a", b"b", b"c"]
    assert kept(world, "b1") == [(1, b"a"), (2, b"b")]


def test_a_publisher_that_is_early_waits_for_the_record(rig: Any) -> None:
    world = rig("b1", "b2")
    covered(world, LOG)
    old = placed(world, "b1")
    client = world.client()
    client.publish(T, b"a")
    new = single(6, "b2", world.membership.version)
    world.install("b1", T, switch(old, new, 1, forced=False))
    client.publish(T, b"b")
    world.run(0.3)
    assert client.acked == [b"a"]
    world.install("b2", T, settled(new, 1))
    assert client.acked == [b"a", b"b"], "at once, not at the next tick"
    assert kept(world, "b2") == [(2, b"b")]


def test_what_a_dead_broker_has_kept_nobody_knows(rig: Any) -> None:
    world = rig("b1", "b2")
    covered(world, LOG)
    placed(world, "b1")
    client = world.client()
    client.publish(T, b"a")
    world.silent.add("b1")
    client.publish(T, b"b")
    client.cut("b1")
    world.down.add("b1")
    living = {"b2": world.membership.brokers["b2"]}
    version = world.membership.version + 1
    world.membership = msgspec.structs.replace(world.membership, version=version, brokers=living, ring=("b2",))
    world.prepare("b2")
    world.install("b2", T, settled(single(6, "b2", version), 1, forced=True))
    world.run(3.0)
    assert client.acked == [b"a", b"b"]
    assert kept(world, "b2") == [(2, b"b")]


# --- replication


def test_the_member_that_a_publisher_uses_keeps(rig: Any) -> None:
    world = rig("b1", "b2")
    covered(world, LOG)
    placed(world, "b1", "b2", mode=Mode.ALL_SUBSCRIBERS)
    client = world.client(3)  # an odd one writes to the second
    client.publish(T, b"a")
    assert client.acked == [b"a"]
    assert (kept(world, "b1"), kept(world, "b2")) == ([], [(1, b"a")])


def test_where_publishers_write_to_all_the_first_keeps_and_the_others_publish(rig: Any) -> None:
    world = rig("b1", "b2")
    covered(world, LOG)
    placed(world, "b1", "b2", mode=Mode.ALL_PUBLISHERS)
    client = world.client()
    readers = [world.client(number << 32 | 2) for number in (0, 1)]
    mailboxes = [reader.subscribe(T) for reader in readers]
    client.publish(T, b"a", b"b")
    assert client.acked == [b"a", b"b"]
    assert (kept(world, "b1"), kept(world, "b2")) == ([(1, b"a"), (2, b"b")], [])
    assert [[event.payload for event in mailbox.take()] for mailbox in mailboxes] == [[b"a", b"b"], [b"a", b"b"]]


# --- refusals


def test_a_topic_that_is_refused_fails_alone(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    client = world.client()
    client.publish(T, b"a")
    client.publish(U, b"x")
    user = User(b"")
    client.sessions["b1"].user = user
    user.denied.add(U)
    for topic, payload in ((T, b"b"), (U, b"y")):
        client.machine.publish(topic, payload, 0, payload, world.now_s)
    world.settle()
    assert failed(client) == [b"y"]
    user.denied.clear()
    client.publish(T, b"c")
    client.publish(U, b"z")
    assert kept(world, "b1") == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert kept(world, "b1", U) == [(1, b"x"), (3, b"z")]
    assert client.acked == [b"a", b"x", b"b", b"c", b"z"]


@pytest.mark.parametrize("number", [b"1000000000000", b"9" * 400])
def test_last_numbers_that_somebody_else_has_written_do_not_stop_the_client(rig: Any, number: bytes) -> None:
    world = rig("b1")
    covered(world, LOG)
    client = world.client()
    client.publish(T, b"a")
    for _ in range(2):
        world.ask("b1", "HSET", last_numbers(world.membership.life("b1"))[0], T + b":%016x" % 1, number)
        client.publish(T, b"b")
        client.cut("b1")
        world.run(1.0)
    client.publish(U, b"x")
    assert client.acked[-1] == b"x"


# --- sizes


def test_many_and_large_messages_go_in_several_batches(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    client = world.client()
    client.publish(T, b"first")
    payloads = [b"%06d" % number for number in range(600)] + [b"x" * 200_000, b"y" * 100_000, b"z" * 100_000]
    client.publish(T, *payloads)
    assert [payload for _, payload in kept(world, "b1")] == [b"first", *payloads]
    assert len(entries(world, "b1")) >= 6
    assert len(client.acked) == 604


def test_a_topic_at_rest_learns_of_a_log_with_its_next_message(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a")
    topic_publisher = client.machine.topic_publishers[T]
    lanes = topic_publisher.lanes
    covered(world, LOG)
    world.run(1.0)
    assert client.machine.membership.logs == (LOG,)
    assert topic_publisher.lanes is lanes, "nothing is done for a topic at rest: there may be 100,000"
    client.publish(T, b"b")
    assert client.acked == [b"a", b"b"]
    assert kept(world, "b1") == [(2, b"b")]
    covered(world)
    client.publish(T, b"c")
    assert client.acked == [b"a", b"b", b"c"]
    assert kept(world, "b1") == [(2, b"b")]


def test_news_between_a_publish_and_its_sending_does_not_let_it_pass_the_log(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"a")
    covered(world, LOG)
    world.settle()
    client.machine.publish(T, b"b", 0, b"b", world.now_s)
    client.machine.topic_publishers[T].catch_up()  # as after an answer that arrives in the same turn
    world.settle()
    assert client.acked == [b"a", b"b"]
    assert kept(world, "b1") == [(2, b"b")]
