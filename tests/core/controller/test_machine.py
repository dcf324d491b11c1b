"""The controller machine: leading, the brokers' way into the cluster, moves to their end, and giving way to another."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from nearcast.core.controller.effects import Campaign, Leadership, LoadJournal, Resign
from nearcast.core.controller.handover import _Collected
from nearcast.core.controller.machine import CAMPAIGNS_MAX, Controller, Role
from nearcast.core.model.journal import BrokerState, Pace
from nearcast.core.model.membership import ring_of
from nearcast.core.model.names import CONTROLLER_CHANNEL, RECORDS
from nearcast.core.model.placement import Mode, settled, single
from nearcast.core.model.settings import CLOCKS, DEFAULT_TIMING
from nearcast.core.wire import bus
from nearcast.core.wire.frames import decode_record

LEADER_S = DEFAULT_TIMING.leader_s


# --- leading, without a bus


def candidate() -> Controller:
    controller = Controller("c1", "redis://store", Random(1))
    controller.tick(0.0)
    assert controller.store == [Campaign(f"{controller.name}.0@1")]
    controller.store.clear()
    return controller


def leader() -> Controller:
    controller = candidate()
    controller.campaigned(Leadership(1, "c1.0@1#1", 0), 0.0)
    assert controller.store == [LoadJournal(1)]
    controller.store.clear()
    controller.loaded(1, 0, 0.0)
    return controller


def test_who_gets_its_answers_too_late_to_lead_says_so() -> None:
    controller = Controller("c1", "redis://store", Random(1))
    for now_s in (1.0, 2.0):
        controller.tick(now_s)
    controller.campaigned(Leadership(1, "c1.0@1#1", 0), 2.4)
    assert controller.role is Role.FOLLOWER
    assert "the store took 1.4 s to answer, but a leader needs an answer within 1 s" in controller.too_late
    controller.campaigned(Leadership(1, "c1.0@1#2", 0), 2.6)
    assert controller.role is Role.LOADING
    assert controller.too_late == ""


def test_a_candidate_loads_before_it_leads() -> None:
    controller = candidate()
    assert controller.role is Role.FOLLOWER
    controller.campaigned(Leadership(1, "c1.0@1#1", 0), 0.1)
    assert controller.role is Role.LOADING
    controller.loaded(1, 7, 0.2)
    assert controller.role is Role.LEADER
    assert controller.notes == ["c1 leads in term 1, journal version 7"]


def test_a_candidate_that_lost_asks_again() -> None:
    controller = candidate()
    controller.campaigned(Leadership(None, "c2.0#1", 0), 0.1)
    assert controller.role is Role.FOLLOWER
    controller.tick(0.1)
    assert controller.store == []
    controller.tick(LEADER_S / 4)
    assert controller.store == [Campaign(f"{controller.name}.0@1")]


def campaign_at(controller: Controller, now_s: float) -> Campaign:
    controller.store.clear()
    controller.tick(now_s)
    (campaign,) = controller.store
    assert isinstance(campaign, Campaign)
    return campaign


def test_a_leadership_nobody_renews_is_taken_over() -> None:
    controller = candidate()
    controller.campaigned(Leadership(None, "c2.0#7", 0), 0.1)
    assert campaign_at(controller, LEADER_S).stale == ""
    controller.campaigned(Leadership(None, "c2.0#8", 0), LEADER_S)
    assert campaign_at(controller, 1.5 * LEADER_S).stale == "", "it was renewed"
    controller.campaigned(Leadership(None, "c2.0#8", 0), 1.5 * LEADER_S)
    assert campaign_at(controller, (1 + CLOCKS) * LEADER_S + 0.01).stale == "c2.0#8"


def test_a_store_that_takes_most_of_the_time_for_each_campaign_still_renews_the_lead() -> None:
    controller = leader()
    slow_s = 0.7 * LEADER_S
    asked: list[float] = []
    for step in range(1, 100):
        now_s = step * LEADER_S / 20
        while asked and asked[0] + slow_s <= now_s:
            asked.pop(0)
            controller.campaigned(Leadership(1, "c1.0@1#2", 0), now_s)
        controller.tick(now_s)
        asked += [now_s for effect in controller.store if isinstance(effect, Campaign)]
        controller.store.clear()
        assert controller.role is Role.LEADER, now_s


def test_campaigns_that_nobody_answers_have_a_limit() -> None:
    controller = candidate()
    for step in range(1, 200):
        controller.tick(step * 0.1)
    assert len(controller.store) == CAMPAIGNS_MAX - 1


def test_a_leader_that_cannot_renew_steps_down_in_time() -> None:
    controller = leader()
    controller.tick(LEADER_S - 0.01)
    assert controller.role is Role.LEADER
    controller.tick(LEADER_S + 0.01)
    assert controller.role is Role.FOLLOWER
    assert controller.leading is None
    assert "c1 no longer leads" in controller.notes[-1]


def test_the_time_of_a_leader_counts_from_when_it_asked() -> None:
    controller = candidate()
    controller.campaigned(Leadership(1, "c1.0@1#1", 0), 0.9 * LEADER_S)
    controller.loaded(1, 0, 0.9 * LEADER_S)
    controller.tick(1.1 * LEADER_S)
    assert controller.role is Role.FOLLOWER


def test_a_new_term_ends_the_leadership() -> None:
    controller = leader()
    controller.tick(LEADER_S / 4)
    controller.campaigned(Leadership(2, "c1.0@1#1", 0), LEADER_S / 4)
    assert (controller.role, controller.leading) == (Role.FOLLOWER, None)


def test_a_leader_that_hears_of_another_steps_down_at_once() -> None:
    controller = leader()
    controller.tick(LEADER_S / 4)
    controller.campaigned(Leadership(None, "c2.0#1", 0), LEADER_S / 4)
    assert controller.role is Role.FOLLOWER


def test_a_leader_keeps_its_time_when_the_store_cannot_be_asked() -> None:
    controller = leader()
    controller.tick(LEADER_S / 4)
    controller.not_campaigned(LEADER_S / 4)
    assert controller.role is Role.LEADER
    controller.tick(LEADER_S / 2)
    assert isinstance(controller.store[-1], Campaign)


def test_a_refused_commit_ends_the_leadership_and_gives_it_away() -> None:
    controller = leader()
    controller.store.clear()
    controller.committed(1, False, 0.1)
    assert controller.role is Role.FOLLOWER
    assert controller.store == [Resign("c1.0@1")]
    controller.committed(1, True, 0.2)


def test_the_answer_to_a_commit_of_an_earlier_term_does_not_count_in_this_one() -> None:
    controller = leader()
    controller.committed(1, False, 0.1)
    controller.tick(LEADER_S)
    controller.campaigned(Leadership(2, "c1.0@1#1", 0), LEADER_S)
    controller.loaded(2, 5, LEADER_S)
    assert controller.leading is not None
    controller.leading.ledger.write({})
    controller.committed(1, True, LEADER_S)
    controller.committed(1, False, LEADER_S)
    assert controller.role is Role.LEADER
    assert controller.leading.ledger.version == 5


def test_a_failed_load_gives_the_lead_away() -> None:
    controller = candidate()
    controller.campaigned(Leadership(1, "c1.0@1#1", 0), 0.0)
    controller.store.clear()
    controller.not_loaded(1, "closed by the server", 0.1)
    assert controller.role is Role.FOLLOWER
    assert controller.store == [Resign("c1.0@1")]
    assert controller.notes == ["c1 no longer leads: the journal could not be read: closed by the server"]
    controller.tick(0.1)
    assert controller.store == [Resign("c1.0@1")], "the others first"
    controller.tick(0.11 + LEADER_S / 4)
    assert controller.store[1:] == [Campaign("c1.1@1", above=1)]


def test_a_journal_that_cannot_be_understood_gives_the_lead_away() -> None:
    controller = candidate()
    controller.campaigned(Leadership(1, "c1.0@1#1", 0), 0.0)
    controller.read(1, {"topic/t": b'{"placement": 7}'}, 0.1)
    assert controller.role is Role.FOLLOWER
    assert "the journal has an entry of another version, or a damaged one" in controller.notes[-1]


def test_the_lead_is_renewed_while_a_long_journal_is_read() -> None:
    controller = candidate()
    controller.campaigned(Leadership(1, "c1.0@1#1", 0), 0.0)
    for step in range(1, 100):
        now_s = step * LEADER_S / 10
        controller.tick(now_s)
        if any(isinstance(effect, Campaign) for effect in controller.store):
            controller.store.clear()
            controller.campaigned(Leadership(1, "c1.0@1#1", 0), now_s)
        controller.read(1, {f"broker/b{step}": b'{"url":"u","site":"s","run_id":"r","state":"dead"}'}, now_s)
    controller.loaded(1, 7, 10 * LEADER_S)
    assert controller.role is Role.LEADER
    assert controller.leading is not None
    assert len(controller.leading.journal.brokers) == 99


LATE_S = 10 * LEADER_S


@pytest.mark.parametrize(
    "wake",
    [
        lambda c: c.received("bus", b"", LATE_S),
        lambda c: c.connected("bus", LATE_S),
        lambda c: c.lost("bus", "reset", LATE_S),
        lambda c: c.committed(1, True, LATE_S),
        lambda c: c.answered(1, None, LATE_S),
        lambda c: c.campaigned(Leadership(1, "c1.0@1#1", 0), LATE_S),
        lambda c: c.tick(LATE_S),
    ],
    ids=["received", "connected", "lost", "committed", "answered", "campaigned", "tick"],
)
def test_a_leader_that_was_paused_says_nothing_when_it_wakes(wake: Any) -> None:
    controller = leader()
    controller.tick(LEADER_S / 4)
    wake(controller)
    assert controller.role is Role.FOLLOWER
    assert controller.leading is None


def test_a_journal_read_too_late_is_not_used() -> None:
    controller = candidate()
    controller.campaigned(Leadership(1, "c1.0@1#1", 0), 0.0)
    controller.tick(LEADER_S + 0.1)
    controller.loaded(1, 0, LEADER_S + 0.1)
    assert controller.role is Role.FOLLOWER
    assert controller.leading is None


# --- a whole cluster without delays


def test_brokers_become_members_and_clients_are_let_in(cluster: Any) -> None:
    assert cluster.states() == dict.fromkeys(("b1", "b2", "b3"), BrokerState.MEMBER)
    membership = cluster.journal.membership
    assert sorted(membership.ring) == ["b1", "b2", "b3"]
    assert membership.previous_ring is None
    client = cluster.rig.client(9)
    client.publish(b"t", b"hello")
    assert client.acked == [b"hello"]


def test_a_move_ends_with_the_new_placement_everywhere(cluster: Any) -> None:
    client = cluster.rig.client(9)
    client.publish(b"t", b"1")
    state = cluster.move("t", Mode.ALL_PUBLISHERS, "b1", "b2")
    assert state.problem == ""
    assert state.topics["t"].target is not None
    cluster.run(1.0)
    entry = cluster.journal.topics["t"]
    assert (entry.move, entry.placement.mode, entry.placement.brokers) == (None, Mode.ALL_PUBLISHERS, ("b1", "b2"))
    client.publish(b"t", b"2")
    assert client.acked == [b"1", b"2"]
    assert sorted(lane.broker for lane in client.machine.topic_publishers[b"t"].lanes) == ["b1", "b2"]


def test_epochs_grow_with_every_move(cluster: Any) -> None:
    epochs = []
    directory = cluster.journal.membership.directory(b"t")
    others = sorted({"b1", "b2", "b3"} - {directory})
    for broker in (*others, directory, *others):
        cluster.move("t", Mode.SINGLE, broker)
        cluster.run(1.0)
        epochs.append(cluster.journal.topics["t"].placement.epoch)
    assert epochs == sorted(set(epochs))
    assert epochs[0] > cluster.journal.membership.version


@pytest.mark.parametrize(
    ("mode", "brokers", "says"),
    [
        (Mode.SINGLE, ("b9",), "topic 't': unknown broker 'b9'; the cluster has: b1, b2, b3"),
        (Mode.SINGLE, (), "topic 't': names no broker"),
        (Mode.HOMES, ("b1",), "topic 't': mode homes is not available yet"),
    ],
)
def test_a_move_that_cannot_be_made_is_refused_with_the_reason(
    cluster: Any, mode: Mode, brokers: tuple[str, ...], says: str
) -> None:
    assert says in cluster.move("t", mode, *brokers).problem
    assert "t" not in cluster.journal.topics


def test_topics_move_together_or_not_at_all(cluster: Any) -> None:
    wanted = {"a": (Mode.SINGLE, ("b1",)), "b": (Mode.SINGLE, ("b9",))}
    assert "b9" in cluster.ask(bus.MoveTopics("me.2", wanted)).problem
    cluster.run(0.5)
    assert cluster.journal.topics == {}


def test_a_move_waits_for_subscribers_to_be_ready_and_is_then_forced(cluster: Any) -> None:
    cluster.move("t", Mode.SINGLE, "b1")
    cluster.run(1.0)
    subscriber = cluster.rig.client(9)
    mailbox = subscriber.subscribe(b"t")
    cluster.run(0.3)
    subscriber.deaf.add("b2")  # it cannot attach there
    cluster.move("t", Mode.SINGLE, "b2")
    cluster.run(DEFAULT_TIMING.ready_s - 1.0)
    assert cluster.journal.topics["t"].placement.brokers == ("b1",)
    cluster.run(2.0)
    assert cluster.journal.topics["t"].placement.brokers == ("b2",)
    assert any("is moved by force" in note for note in cluster.leader.notes)
    assert mailbox.take()  # it was told


def test_a_deposed_leader_does_not_grant(cluster: Any) -> None:
    """It was paused; what came over its sockets meanwhile is served before its timers."""
    leader, wired = cluster.leader, cluster.rig.wired[0]
    wired.deaf.add("store")
    cluster.rig.run(0.5)  # the agents say hello
    outbox = leader.leading.office.outbox
    wired.deaf.clear()
    cluster.rig.now_s += 10.0
    wired.hear()
    assert leader.role is Role.FOLLOWER
    assert outbox == []


def test_a_dead_broker_is_given_up_and_its_topics_go_elsewhere(cluster: Any) -> None:
    cluster.move("t", Mode.SINGLE, "b2")
    cluster.run(1.0)
    client = cluster.rig.client(9)
    client.publish(b"t", b"1")
    cluster.kill("b2")
    cluster.run(3.0)
    assert cluster.states()["b2"] is BrokerState.DEAD
    assert "b2" not in cluster.journal.membership.brokers
    assert "b2" not in cluster.journal.topics["t"].placement.brokers
    client.publish(b"t", b"2")
    cluster.run(1.0)
    assert client.acked == [b"1", b"2"]


@pytest.mark.parametrize(("run_id", "given_up"), [("run-b2", True), ("run-before", False)])
def test_a_death_counts_for_the_run_it_was_seen_of(cluster: Any, run_id: str, given_up: bool) -> None:
    """Words on the bus may be late: that an earlier run of the server has ended says nothing of this one."""
    ended = bus.Hello("b2", 1, 7, "redis://b2", "local", run_id, False, dead=True)
    cluster.leader.leading.heard(ended, cluster.rig.now_s)
    cluster.run(0.5)
    assert ("broker b2 is given up" in cluster.leader.notes) is given_up


def test_a_broker_that_is_not_heard_for_long_is_given_up(cluster: Any) -> None:
    agent = next(wired for wired in cluster.rig.wired if wired.machine is cluster.agents["b3"])
    cluster.rig.wired.remove(agent)  # it hangs
    cluster.run(DEFAULT_TIMING.dead_s - 0.6)
    assert cluster.states()["b3"] is BrokerState.MEMBER
    cluster.run(1.2)
    assert cluster.states()["b3"] is BrokerState.DEAD


def test_the_last_broker_is_never_given_up(cluster_of: Any) -> None:
    cluster = cluster_of("b1")
    cluster.run(3.0)
    cluster.kill("b1")
    cluster.run(5.0)
    assert cluster.states() == {"b1": BrokerState.MEMBER}


def test_another_controller_takes_over_and_ends_the_moves(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2", controllers=2)
    cluster.run(3.0)
    first = cluster.leader
    cluster.move("t", Mode.SINGLE, "b1")
    cluster.run(1.0)
    cluster.move("t", Mode.SINGLE, "b2")
    cluster.stopped.add(first)
    cluster.rig.wired = [wired for wired in cluster.rig.wired if wired.machine is not first]
    cluster.run(3.0)
    assert cluster.leader is not first
    assert cluster.journal.topics["t"].placement.brokers == ("b2",)
    assert cluster.journal.topics["t"].move is None
    assert cluster.leader.leading is not None
    assert first.leading is not None
    assert cluster.leader.leading.term > first.leading.term


def test_the_state_says_who_leads_and_who_lives(cluster: Any) -> None:
    cluster.run(2.0)
    state = cluster.ask(bus.Show("me.3", ("t",)))
    assert (state.leader, state.term) == ("c1", 1)
    assert {name: (view.state, view.alive) for name, view in state.brokers.items()} == dict.fromkeys(
        ("b1", "b2", "b3"), ("member", True)
    )
    assert all(view.report is not None for view in state.brokers.values())
    assert not state.topics["t"].planned


@pytest.mark.parametrize("payload", [b"", b"garbage", b"{}", b'{"type": "Hello"}', b"\xff"])
def test_garbage_on_the_bus_is_ignored(cluster: Any, payload: bytes) -> None:
    cluster.rig.ask("store", "PUBLISH", CONTROLLER_CHANNEL, payload)
    cluster.run(1.0)
    assert cluster.states() == dict.fromkeys(("b1", "b2", "b3"), BrokerState.MEMBER)


def test_lazy_moves_begin_later_but_not_later_than_allowed(cluster: Any) -> None:
    wanted = {f"t{number}": (Mode.SINGLE, ("b1",)) for number in range(8)}
    cluster.ask(bus.MoveTopics("me.4", wanted))
    cluster.run(1.5)
    cluster.ask(bus.MoveTopics("me.5", dict.fromkeys(wanted, (Mode.SINGLE, ("b2",))), Pace.LAZY))
    assert any(entry.move is not None for entry in cluster.journal.topics.values())
    cluster.run(DEFAULT_TIMING.lazy_s + 1.0)
    assert {entry.placement.brokers for entry in cluster.journal.topics.values()} == {("b2",)}


def test_a_topic_collected_on_a_broker_that_was_given_up_meanwhile_is_brought_elsewhere(cluster: Any) -> None:
    cluster.kill("b3")
    cluster.run(4.0)
    assert cluster.states()["b3"] is BrokerState.DEAD
    leader = cluster.leader.leading
    assert leader is not None
    changing = msgspec.structs.replace(leader.journal.membership, previous_ring=("b1", "b2", "b3"))
    leader.members._handover._collect("b1", changing, _Collected(), cluster.rig.now_s)
    ((_, order),) = leader.office.orders.outgoing
    leader.office.orders.outgoing.clear()
    found = {"late": settled(single(4, "b3", 3), term=0)}
    leader.heard(bus.Answer("b1", order.order, records=found), cluster.rig.now_s)
    cluster.run(1.0)
    entry = leader.journal.topics["late"]
    assert entry.placement.brokers != ("b3",)
    assert entry.move is None


def test_a_topic_moved_to_its_directory_stays_there_when_the_ring_changes(cluster: Any) -> None:
    cluster.kill("b3")
    cluster.run(4.0)
    small, large = ring_of(("b1", "b2")), ring_of(("b1", "b2", "b3"))
    topic = next(name for name in map(str, range(1000)) if large.owner(name.encode()) == "b3")
    home = small.owner(topic.encode())
    state = cluster.move(topic, Mode.SINGLE, home)
    assert state.topics[topic].planned
    cluster.rig.down.discard("b3")
    cluster.run(12.0)
    assert cluster.journal.membership.ring == ("b1", "b2", "b3")
    assert cluster.journal.membership.previous_ring is None
    assert cluster.journal.topics[topic].placement.brokers == (home,)
    assert decode_record(cluster.rig.ask("b3", "HGET", RECORDS, topic)).placement.brokers == (home,)


def test_what_was_found_out_for_a_refused_request_is_forgotten(cluster: Any) -> None:
    """One of its topics is found, the other cannot be: its directory's agent does not answer."""
    ring = ring_of(("b1", "b2", "b3"))
    names = {ring.owner(name.encode()): name for name in map(str, range(100))}
    requests = cluster.leader.leading.requests
    cluster.rig.wired = [wired for wired in cluster.rig.wired if wired.machine is not cluster.agents["b2"]]
    wanted = {names["b1"]: (Mode.SINGLE, ("b3",)), names["b2"]: (Mode.SINGLE, ("b3",))}
    requests.heard(bus.MoveTopics("me.7", wanted), cluster.rig.now_s)
    cluster.run(0.5)
    assert set(requests._looked_up) == {names["b1"]}
    requests._pending[0].since_s -= 60.0
    cluster.run(0.1)
    assert len(requests) == 0
    assert requests._looked_up == {}
