"""A store that has lost its data: who finds out, and what the brokers give back."""

from __future__ import annotations

from collections import Counter
from copy import copy
from random import Random
from typing import Any

import msgspec
import pytest

from nearcast.core.client.subscriber import TopicSubscriber
from nearcast.core.controller.leader import Leader, LeaderSettings
from nearcast.core.controller.ledger import Ledger
from nearcast.core.controller.machine import Controller, Role
from nearcast.core.controller.recovery import Found, Recovery, rebuilding
from nearcast.core.model.journal import (
    MEMBERSHIP_KEY,
    BrokerEntry,
    BrokerState,
    Journal,
    Known,
    LossEntry,
    MoveEntry,
    TopicEntry,
    apply,
    lost,
    topic_key,
)
from nearcast.core.model.logs import Log, PartState
from nearcast.core.model.membership import ERA, BrokerInfo, Membership, ring_of
from nearcast.core.model.message import Interrupted, Message
from nearcast.core.model.names import RECORDS
from nearcast.core.model.placement import Mode, Placement, Record, prepare, settled, single, switch
from nearcast.core.model.settings import DEFAULT_TIMING, Limits, Timing
from nearcast.core.wire import bus
from nearcast.core.wire.effects import Failed
from nearcast.core.wire.frames import decode_record, encode_record
from nearcast.runtime.store import MemoryStore

# --- finding out


def journal_of(version: int, loss: LossEntry | None = None) -> Journal:
    return Journal(membership=Membership(version=version, term=1, brokers={}, cluster="ours"), loss=loss)


def test_a_journal_that_is_as_far_as_anybody_knows_has_lost_nothing() -> None:
    assert not lost(Known("ours", members=3, term=1, journal=(0, 9)), journal_of(3), 9)


@pytest.mark.parametrize(
    "known", [Known("ours", members=4, term=1, journal=(0, 9)), Known("ours", 3, 1, journal=(0, 10))]
)
def test_somebody_who_knows_more_than_the_journal_proves_a_loss(known: Known) -> None:
    assert lost(known, journal_of(3), 9)


def test_a_blank_journal_has_lost_any_cluster_that_somebody_knows() -> None:
    assert lost(Known("ours", members=0), Journal(), 0)
    assert not lost(Known(), Journal(), 0)


def test_what_is_known_of_another_cluster_proves_nothing() -> None:
    assert not lost(Known("theirs", members=400, term=9, journal=(0, 900)), journal_of(3), 9)


def test_who_has_heard_nothing_since_a_loss_proves_no_other_one() -> None:
    journal = journal_of(ERA, LossEntry(at_s=0.0, term=5, text=""))
    assert not lost(Known("ours", members=7, term=9, journal=(0, 900)), journal, 12)
    assert lost(Known("ours", members=7, term=9, journal=(5, 13)), journal, 12)


# --- what follows from what the brokers have


def hello(broker: str, **fields: Any) -> bus.Hello:
    return bus.Hello(broker, 1, 1, f"redis://{broker}", "local", f"run-{broker}", answering=True, **fields)


OLD = Membership(
    version=7,
    term=2,
    brokers={name: BrokerInfo(f"redis://{name}", joined=1) for name in ("b1", "b2", "b3")},
    ring=("b1", "b2", "b3"),
    cluster="ours",
)
KNOWN = Known("ours", members=7, term=2, journal=(0, 40))


def found(**records: dict[str, Record]) -> dict[str, Found]:
    return {broker: Found(hello(broker), OLD, theirs) for broker, theirs in records.items()}


def rebuilt(*arguments: Any) -> dict[str, Any]:
    """All parts of it at once."""
    parts = rebuilding(*arguments)
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return dict(end.value)


def topic_in(changes: dict[str, Any], topic: str = "t") -> TopicEntry:
    entry = changes[topic_key(topic)]
    assert isinstance(entry, TopicEntry)
    return entry


P, Q = single(8, "b1", 7), single(9, "b2", 7)


@pytest.mark.parametrize(
    ("at_b1", "at_b2", "phase"),
    [
        ({"t": settled(P, 2)}, {}, None),
        ({"t": prepare(P, Q, 2)}, {"t": settled(P, 2)}, "prepare"),
        ({"t": switch(P, Q, 2, forced=False)}, {"t": settled(P, 2)}, "switch"),
    ],
)
def test_the_newest_record_says_how_far_a_topic_has_come(
    at_b1: dict[str, Record], at_b2: dict[str, Record], phase: str | None
) -> None:
    entry = topic_in(rebuilt(Journal(), found(b1=at_b1, b2=at_b2, b3={}), KNOWN, 3, "redis://store"))
    assert entry.placement == P
    assert (entry.move.phase if entry.move else None) == phase
    assert entry.move is None or entry.move.target == Q


def test_every_broker_is_told_of_the_end_of_a_switch() -> None:
    """It may have replaced a move that was given up: who was ready for that one waits for the end at its brokers."""
    records = found(b1={"t": switch(P, Q, 2, forced=False)}, b2={}, b3={})
    move = topic_in(rebuilt(Journal(), records, KNOWN, 3, "")).move
    assert move is not None
    assert move.told == ("b1", "b2", "b3")


@pytest.mark.parametrize(("quorum", "state"), [(1, PartState.LOST), (2, PartState.SEALING)])
def test_what_replicas_of_a_missing_broker_may_have_is_not_lost(quorum: int, state: PartState) -> None:
    replicas = {"redis://r1": "run-r1"}
    brokers = {**OLD.brokers, "b3": msgspec.structs.replace(OLD.brokers["b3"], began=4, replicas=replicas)}
    log = Log("orders", 3, ("t",), 60.0, 1 << 20, quorum)
    kept = msgspec.structs.replace(OLD, logs=(log,), brokers=brokers)
    there = {name: Found(hello(name), kept, {}) for name in ("b1", "b2")}
    (former,) = rebuilt(Journal(), there, KNOWN, 3, "")[MEMBERSHIP_KEY].former
    assert (former.life, former.state) == ("b3@4", state)
    assert former.replicas == (replicas if quorum > 1 else {})


def test_a_topic_that_has_settled_anywhere_rests() -> None:
    records = found(b1={"t": switch(P, Q, 2, forced=False)}, b2={"t": settled(Q, 2)}, b3={})
    assert topic_in(rebuilt(Journal(), records, KNOWN, 3, "")) == TopicEntry(Q)


def test_a_journal_that_knows_more_than_the_servers_is_believed() -> None:
    journal = Journal(membership=OLD, topics={"t": TopicEntry(Q)})
    assert topic_in(rebuilt(journal, found(b1={"t": prepare(P, Q, 2)}, b2={}, b3={}), KNOWN, 3, "")) == TopicEntry(Q)


def test_versions_go_on_far_above_all_that_were_ever_used() -> None:
    records = found(b1={"t": settled(single(ERA + 5, "b1", 7), 2)}, b2={}, b3={})
    membership = rebuilt(Journal(), records, KNOWN, 3, "")["membership"]
    assert isinstance(membership, Membership)
    assert (membership.version, membership.cluster, membership.ring) == (2 * ERA, "ours", OLD.ring)


def rescued(changes: dict[str, Any]) -> MoveEntry:
    """The move of the topic `t` with which a leader begins that continues from a rebuilt journal."""
    journal = Journal()
    for key, entry in changes.items():
        apply(journal, key, entry)
    leader = Leader(
        Ledger(1, journal, 3), leader="c1", store_url="", settings=LeaderSettings(dice=Random(1)), now_s=0.0
    )
    for step in range(40):
        for broker in ("b2", "b3"):
            leader.heard(hello(broker), step / 10)
        leader.tick(step / 10)
        if leader.ledger.commit(step / 10) is not None:
            leader.ledger.committed(step / 10)
    move = journal.topics["t"].move
    assert move is not None
    return move


def test_a_topic_whose_broker_is_missing_goes_where_nobody_can_know_better() -> None:
    changes = rebuilt(Journal(), found(b2={"t": settled(P, 2)}, b3={}), KNOWN, 3, "")
    move = rescued(changes)
    assert move.forced
    assert move.target.epoch >= ERA
    assert set(move.target.brokers) <= {"b2", "b3"}
    entry, membership = changes["broker/b1"], changes["membership"]
    assert isinstance(entry, BrokerEntry)
    assert entry.state is BrokerState.DEAD
    assert isinstance(membership, Membership)
    assert (membership.ring, membership.previous_ring) == (("b2", "b3"), OLD.ring)


def test_a_replicated_topic_goes_on_with_the_brokers_that_are_there() -> None:
    placement = Placement(8, Mode.ALL_SUBSCRIBERS, ("b1", "b2", "b3"), 7)
    move = rescued(rebuilt(Journal(), found(b2={"t": settled(placement, 2)}, b3={}), KNOWN, 3, ""))
    assert (move.target.mode, move.target.brokers) == (Mode.ALL_SUBSCRIBERS, ("b2", "b3"))


def test_who_was_leaving_goes_on_leaving() -> None:
    away = msgspec.structs.replace(OLD, ring=("b1", "b2"))
    servers = {
        broker: Found(hello(broker), away, {"t": settled(single(8, "b3", 7), 2)} if broker == "b3" else {})
        for broker in ("b1", "b2", "b3")
    }
    entry = rebuilt(Journal(), servers, KNOWN, 3, "")["broker/b3"]
    assert isinstance(entry, BrokerEntry)
    assert entry.state is BrokerState.LEAVING


def test_who_came_while_the_journal_was_blank_joins_again() -> None:
    stranger = BrokerEntry("redis://b9", "local", "run-b9", BrokerState.MEMBER)
    changes = rebuilt(Journal(brokers={"b9": stranger}), found(b1={}, b2={}, b3={}), KNOWN, 3, "")
    entry = changes["broker/b9"]
    assert isinstance(entry, BrokerEntry)
    assert entry.state is BrokerState.DEAD


# --- the whole way


def lose(cluster: Any) -> None:
    """The store comes back empty."""
    cluster.store = MemoryStore()


def replace_controller(cluster: Any) -> None:
    """One takes over that remembers nothing."""
    (old,) = cluster.controllers
    cluster.stopped.add(old)
    cluster.controllers.append(type(old)("c9", "redis://store", old._settings.dice))
    cluster.rig.wired[:] = [wired for wired in cluster.rig.wired if wired.machine is not old]
    cluster.rig.wire(cluster.controllers[-1])


def test_a_store_that_comes_back_empty_is_filled_again_and_nobody_notices(cluster: Any) -> None:
    cluster.move("scores", Mode.SINGLE, "b2")
    cluster.run(1.0)
    program = cluster.rig.client(7)
    mailbox = program.subscribe(b"scores")
    cluster.run(0.5)
    before, placement = cluster.journal.membership, cluster.journal.topics["scores"].placement
    lose(cluster)
    cluster.run(3.0)
    program.publish(b"scores", b"after")
    cluster.run(0.5)
    assert cluster.journal.topics["scores"] == TopicEntry(placement)
    assert cluster.journal.membership.cluster == before.cluster
    assert cluster.journal.membership.version == ERA
    assert set(cluster.states().values()) == {BrokerState.MEMBER}
    assert cluster.journal.loss.verified
    assert program.acked == [b"after"]
    events = mailbox.take()
    assert [event.payload for event in events if isinstance(event, Message)] == [b"after"]
    assert not [event for event in events if isinstance(event, Interrupted)]


def test_afterwards_every_broker_has_the_records_it_should_have(cluster: Any) -> None:
    cluster.move("scores", Mode.ALL_SUBSCRIBERS, "b1", "b2")
    cluster.run(1.0)
    now = decode_record(cluster.rig.ask("b2", "HGET", RECORDS, "scores"))
    before = switch(single(now.epoch - 1, "b1", 0), now.placement, now.term, forced=False)
    cluster.rig.ask("b2", "HSET", RECORDS, "scores", encode_record(before))  # it was not told of the end of the move
    lose(cluster)
    cluster.run(3.0)
    assert decode_record(cluster.rig.ask("b2", "HGET", RECORDS, "scores")).version == now.version


def test_the_loss_is_said_aloud(cluster: Any) -> None:
    lose(cluster)
    cluster.run(3.0)
    assert any("THE STORE HAS LOST DATA" in alarm for alarm in cluster.leader.alarms)
    assert cluster.leader.loss.startswith("the store has lost data: the store had 0 commits")
    assert "rebuilt from brokers b1, b2, b3" in cluster.ask(bus.Show("me.1")).loss.text


def test_a_new_controller_finds_out_from_the_agents(cluster: Any) -> None:
    cluster.move("scores", Mode.SINGLE, "b3")
    cluster.run(1.0)
    lose(cluster)
    replace_controller(cluster)
    cluster.run(5.0)
    assert cluster.journal.topics["scores"].placement.brokers == ("b3",)


def test_one_agent_of_another_cluster_does_not_decide_whose_the_journal_is(cluster: Any) -> None:
    ours = cluster.journal.membership.cluster
    wrong = cluster.agents["b1"]  # the first to be heard
    wrong._known = Known("another", members=3, term=1, journal=(0, 4))
    lose(cluster)
    replace_controller(cluster)
    cluster.run(5.0)
    assert cluster.journal.membership.cluster == ours
    assert "belongs to another cluster (another)" in wrong.problem
    assert cluster.agents["b2"].problem == ""


def test_a_broker_that_does_not_answer_is_not_waited_for_longer_than_its_lease(cluster: Any) -> None:
    ring = ring_of(cluster.journal.membership.ring)
    topic = next(name for name in map(str, range(99)) if ring.owner(name.encode()) != "b3")
    cluster.move(topic, Mode.SINGLE, "b3")
    cluster.run(1.0)
    cluster.rig.silent.add("b3")
    lose(cluster)
    cluster.run(1.5)
    assert [controller.role for controller in cluster.controllers] == [Role.RECOVERING]
    cluster.run(4.0)
    assert cluster.states()["b3"] is BrokerState.DEAD
    assert cluster.journal.topics[topic].placement.brokers != ("b3",)
    assert "without b3" in cluster.journal.loss.text


def test_a_membership_older_than_one_that_is_known_does_not_say_who_is_expected() -> None:
    """A broker that was given up long ago, alone in the cluster as it knows it, is the first to be heard."""
    alone = Membership(5, 1, {"b1": BrokerInfo("redis://b1", joined=1)}, ring=("b1",), cluster="ours")
    ledger = Ledger(0, Journal(), 3)
    recovery = Recovery(ledger, KNOWN, timing=DEFAULT_TIMING, store_url="", wall_offset_s=0.0, now_s=0.0)
    recovery.heard(hello("b1", known=Known("ours", members=5)), 0.1)
    (_, payload) = recovery.outbox.pop()
    recall = bus.decode_for_agent(payload)
    assert isinstance(recall, bus.Recall)
    recovery.heard(bus.Answer("b1", recall.order, membership=alone), 0.2)
    assert ledger.commit(0.2) is None, "others carry topics, and clients count on their leases"
    recovery.tick(DEFAULT_TIMING.dead_s + 2.0)
    assert ledger.commit(DEFAULT_TIMING.dead_s + 2.0) is not None


def test_a_broker_is_not_given_up_while_a_lease_of_the_leader_before_may_last() -> None:
    """A blank store lets us lead at once: who led before may not know yet, and grant until `leader_s` is over."""
    timing = Timing(leader_s=2.2)
    ledger = Ledger(0, Journal(), 3)
    recovery = Recovery(ledger, KNOWN, timing=timing, store_url="", wall_offset_s=0.0, now_s=0.0)
    recovery.heard(hello("b1", known=KNOWN), 0.1)
    (_, payload) = recovery.outbox.pop()
    recall = bus.decode_for_agent(payload)
    assert isinstance(recall, bus.Recall)
    recovery.heard(bus.Answer("b1", recall.order, membership=OLD), 0.2)
    granted_s = timing.leader_s
    recovery.tick(granted_s + timing.dead_s - 0.1)
    assert ledger.commit(granted_s + timing.dead_s - 0.1) is None
    recovery.tick(granted_s + timing.dead_s + 0.5)
    assert ledger.commit(granted_s + timing.dead_s + 0.5) is not None


def recall_of(recovery: Recovery) -> bus.Recall:
    """The last one that was asked."""
    recall = bus.decode_for_agent(recovery.outbox[-1][1])
    assert isinstance(recall, bus.Recall)
    return recall


def test_agents_that_are_all_away_for_long_cost_no_broker_its_records() -> None:
    ledger = Ledger(0, Journal(), 3)
    recovery = Recovery(ledger, KNOWN, timing=DEFAULT_TIMING, store_url="", wall_offset_s=0.0, now_s=0.0)
    recovery.heard(hello("b1", known=KNOWN), 0.1)
    for tenth in range(2, 80):
        recovery.tick(tenth / 10)
    assert ledger.commit(8.0) is None, "nobody is there who could take its topics"
    for number, broker in enumerate(OLD.brokers):
        now_s = 8.0 + number / 2
        recovery.heard(msgspec.structs.replace(hello(broker, known=KNOWN), agent=2), now_s)
        recovery.heard(bus.Answer(broker, recall_of(recovery).order, membership=OLD), now_s + 0.1)
    written = ledger.commit(9.5)
    assert written is not None
    assert not any(b'"dead"' in value for value in written.changes.values())


def test_a_broker_that_takes_long_to_read_its_records_is_waited_for_while_it_is_heard() -> None:
    ledger = Ledger(0, Journal(), 3)
    recovery = Recovery(ledger, KNOWN, timing=DEFAULT_TIMING, store_url="", wall_offset_s=0.0, now_s=0.0)
    for second in range(10):
        for broker in OLD.brokers:
            recovery.heard(hello(broker, known=KNOWN), second + 0.1)
    assert ledger.commit(10.0) is None


def restart_empty(cluster: Any, broker: str) -> None:
    """The server of a broker ends and starts again with nothing in its memory."""
    server = cluster.rig.servers[broker]
    server.restart(f"{broker}-again")
    server.keys.clear()
    for wired in cluster.rig.wired:
        for link in [link for link, session in wired.sessions.items() if session.server is server]:
            wired.cut(link)


@pytest.mark.parametrize("brokers", [("b1",), ("b1", "b2", "b3")])
def test_an_old_journal_and_brokers_that_all_lost_their_memory_make_a_cluster_again(
    cluster_of: Any, brokers: tuple[str, ...]
) -> None:
    cluster = cluster_of(*brokers)
    cluster.run(3.0)
    topics = [f"scores-{broker}" for broker in brokers]
    for topic, broker in zip(topics, brokers, strict=True):
        cluster.move(topic, Mode.SINGLE, broker)
    cluster.run(1.0)
    old = copy(cluster.store)
    old._entries = dict(cluster.store._entries)
    cluster.move("another", Mode.SINGLE, brokers[-1])
    cluster.run(1.0)
    cluster.store = old
    for broker in brokers:
        restart_empty(cluster, broker)
    cluster.run(15.0)
    program = cluster.rig.client(7)
    for topic in (*topics, "another"):
        program.publish(topic.encode(), topic.encode())
    cluster.run(3.0)
    assert set(cluster.states().values()) == {BrokerState.MEMBER}
    assert sorted(program.acked) == sorted(topic.encode() for topic in (*topics, "another"))


def test_nobody_registers_a_name_before_the_operator_knows_of_the_loss(cluster: Any) -> None:
    lose(cluster)
    cluster.run(3.0)
    leader = cluster.leader.leading
    said: list[bus.Assignment] = []
    leader.office.reply = said.append
    leader.heard(bus.RegisterUser("gateway.1", "ann"), cluster.rig.now_s)
    assert "no user can register now" in said.pop().problem
    assert cluster.ask(bus.AcknowledgeLoss("me.1")).problem == ""
    leader.heard(bus.RegisterUser("gateway.2", "ann"), cluster.rig.now_s)
    assert said.pop().problem == ""


def test_there_is_nothing_to_acknowledge_where_nothing_was_lost(cluster: Any) -> None:
    assert "no data loss" in cluster.ask(bus.AcknowledgeLoss("me.1")).problem


def start_over(world: Any, program: Any) -> None:
    """All servers end and come back empty, as brokers of another cluster."""
    for name, server in world.servers.items():
        server.restart(f"{name}-again")
        server.keys.clear()
        for link in [link for link, session in program.sessions.items() if session.server is server]:
            program.cut(link)
    world.membership = msgspec.structs.replace(world.membership, cluster="new", version=1)
    for broker in world.servers:
        world.prepare(broker)


@pytest.fixture
def old_cluster(rig: Any) -> Any:
    world = rig("b1", "b2")
    world.membership = msgspec.structs.replace(world.membership, cluster="old", version=9)
    for broker in ("b1", "b2"):
        world.prepare(broker)
    return world


def test_a_client_forgets_a_cluster_that_starts_over(old_cluster: Any) -> None:
    world = old_cluster
    world.install("b1", b"t", settled(single(30, "b1", 9), 1))
    world.install("b2", b"t", settled(single(30, "b1", 9), 1))
    program = world.client()
    mailbox = program.subscribe(b"t")
    program.publish(b"t", b"before")
    world.run(0.5)
    mailbox.take()
    start_over(world, program)
    world.run(8.0)
    assert program.machine.membership.cluster == "new"
    program.publish(b"t", b"after")
    world.run(1.0)
    assert program.acked == [b"before", b"after"]
    events = mailbox.take()
    assert any(isinstance(event, Interrupted) and "restarted from scratch" in event.reason for event in events)
    assert [event.payload for event in events if isinstance(event, Message)][-1] == b"after"


def test_calls_that_wait_while_the_cluster_starts_over_go_on_in_the_new_one(old_cluster: Any) -> None:
    world, program = old_cluster, old_cluster.client()
    world.run(0.5)
    for broker in ("b1", "b2"):
        program.deaf.add(broker)
    mailbox = program.subscribe(b"t")
    program.publish(b"t", b"waits")
    world.run(0.5)
    program.deaf.clear()
    start_over(world, program)
    world.run(8.0)
    assert not [effect for effect in program.effects if isinstance(effect, Failed)]
    assert program.acked == [b"waits"]
    program.publish(b"t", b"after")
    world.run(1.0)
    assert [event.payload for event in mailbox.take() if isinstance(event, Message)][-1] == b"after"


def test_very_many_topics_leave_a_cluster_in_parts(old_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world, left_s = old_cluster, list[float]()
    begin_again = TopicSubscriber.begin_again

    def leave(topic_subscriber: TopicSubscriber, reason: str, now_s: float) -> None:
        left_s.append(now_s)
        begin_again(topic_subscriber, reason, now_s)

    monkeypatch.setattr(TopicSubscriber, "begin_again", leave)
    program = world.client(limits=Limits(attended=10))
    mailboxes = [program.subscribe(b"t%d" % number) for number in range(95)]
    world.run(2.0)
    for mailbox in mailboxes:
        mailbox.take()
    start_over(world, program)
    world.run(8.0)
    assert program.machine.membership.cluster == "new"
    assert all(topic_subscriber.whole for topic_subscriber in program.machine.topic_subscribers.values())
    assert sorted(Counter(left_s).values()) == [5, *[10] * 9]


def test_in_a_new_era_every_topic_is_looked_up_once_more(rig: Any) -> None:
    """A broker was lost with the store: nobody knows any more of a topic that was just leaving it."""
    world = rig("b1", "b2")
    topic = next(name for n in range(99) if world.membership.directory(name := b"t%d" % n) == "b2")
    for broker in ("b1", "b2"):
        world.install(broker, topic, settled(single(30, "b1", 1), 1))
    subscriber, publisher = world.client(), world.client(2, limits=Limits(attended=1))
    mailbox = subscriber.subscribe(topic)
    publisher.publish(topic, b"before")
    world.run(0.5)
    mailbox.take()
    for broker in ("b1", "b2"):
        world.ask(broker, "DEL", RECORDS)
    world.membership = msgspec.structs.replace(world.membership, version=ERA)
    for broker in ("b1", "b2"):
        world.prepare(broker)
    world.run(1.0)
    placements = {
        flow.placement
        for program in (subscriber, publisher)
        for flow in (program.machine.topic_subscribers.get(topic), program.machine.topic_publishers.get(topic))
        if flow is not None
    }
    assert placements == {single(ERA, "b2", ERA)}
    publisher.publish(topic, b"after")
    world.run(0.5)
    events = mailbox.take()
    assert [event.payload for event in events if isinstance(event, Message)] == [b"after"]
    assert [event.until_s is None for event in events if isinstance(event, Interrupted)] == [True, False]


def test_a_recheck_that_brings_no_news_is_not_noticed(rig: Any) -> None:
    world = rig("b1")
    program = world.client()
    mailbox = program.subscribe(b"t")
    world.run(0.5)
    world.membership = msgspec.structs.replace(world.membership, version=ERA)
    world.prepare("b1")
    world.run(1.0)
    assert b"t" not in program.machine._recheck
    assert mailbox.take() == []


def test_a_client_that_is_served_has_nothing_to_do_with_another_cluster(rig: Any) -> None:
    world = rig("b1")
    world.membership = msgspec.structs.replace(world.membership, cluster="ours", version=3)
    world.prepare("b1")
    program = world.client()
    world.run(1.0)
    other = msgspec.structs.replace(world.membership, cluster="theirs", version=90)
    program.machine.update_membership(other, world.now_s)
    assert program.machine.membership.cluster == "ours"


def test_a_server_of_another_cluster_is_refused_with_the_reason(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2")
    cluster.run(3.0)
    agent = cluster.agents["b2"]
    agent._known = Known("another", members=3, term=1, journal=(0, 4))
    cluster.run(1.0)
    assert "belongs to another cluster (another)" in agent.problem


def test_a_young_cluster_gives_way_to_the_one_its_store_has_lost() -> None:
    """A broker that knew nothing was heard before those that know: the journal is not blank any more."""
    young = Journal(membership=Membership(version=3, term=1, brokers={}, cluster="young", store_url="redis://store"))
    assert lost(Known("old", members=57, term=4, journal=(0, 90), store="redis://store"), young, 5)
    assert not lost(Known("old", members=57, term=4, journal=(0, 90), store="redis://other"), young, 5)


def test_brokers_with_data_take_a_store_back_from_a_blank_one_that_came_first(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2", "b3")
    silent = [wired for wired in cluster.rig.wired if wired.machine is cluster.agents["b3"]]
    cluster.rig.wired[:] = [wired for wired in cluster.rig.wired if wired not in silent]
    cluster.run(4.0)
    cluster.move("scores", Mode.SINGLE, "b2")
    cluster.run(1.0)
    old = cluster.journal.membership.cluster
    known = [wired for wired in cluster.rig.wired if wired.machine in (cluster.agents["b1"], cluster.agents["b2"])]
    (controller,) = cluster.controllers
    cluster.stopped.add(controller)
    cluster.rig.wired[:] = silent  # only the broker that knows nothing is heard
    lose(cluster)
    cluster.controllers.append(Controller("c9", "redis://store", Random(9)))
    cluster.rig.wire(cluster.controllers[-1])
    cluster.run(3.0)
    assert cluster.journal.membership.cluster != old
    cluster.rig.wired.extend(known)
    cluster.run(15.0)
    assert cluster.journal.membership.cluster == old
    assert cluster.journal.topics["scores"].placement.brokers == ("b2",)
    assert set(cluster.states().values()) == {BrokerState.MEMBER}
