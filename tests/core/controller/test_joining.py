"""Joining: rules that chance alone does not put to the test often enough."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from nearcast.core.controller.leader import Leader, LeaderSettings
from nearcast.core.controller.ledger import Ledger
from nearcast.core.model.journal import BrokerEntry, BrokerState, Journal
from nearcast.core.model.membership import Membership
from nearcast.core.model.placement import Mode, Placement, prepare, settled, single, switch
from nearcast.core.model.settings import DEFAULT_TIMING
from nearcast.core.wire import bus
from nearcast.core.wire.effects import Done

T = b"t"


def places(world: Any) -> tuple[str, list[str]]:
    """The topic's directory, and the other brokers."""
    directory = world.membership.directory(T)
    return directory, [name for name in world.servers if name != directory]


def test_a_joiner_that_meets_a_switch_also_attaches_to_old_members_that_are_not_fenced_yet(rig: Any) -> None:
    world = rig("b1", "b2", "b3", "b4")
    directory, (first, second, third) = places(world)
    old = Placement(6, Mode.ALL_SUBSCRIBERS, (first, second), 1)
    new = single(7, third, 1)
    # The directory is two moves behind: the joiner starts at a place that was fenced before the others.
    world.install(directory, T, settled(single(5, first, 1), term=1))
    world.install(first, T, switch(old, new, term=1, forced=False))
    world.install(second, T, prepare(old, new, term=1))
    subscriber = world.client()
    mailbox = subscriber.subscribe(T)
    world.run(0.2)
    assert Done(mailbox) in subscriber.effects
    assert T in world.channels(second), "an acknowledged message may still run there"
    assert T in world.channels(third)


def test_subscribe_does_not_return_on_records_that_changed_while_it_attached(rig: Any) -> None:
    world = rig("b1", "b2", "b3")
    _, (first, second) = places(world)
    old, new = single(5, first, 1), single(6, second, 1)
    for broker in world.servers:
        world.install(broker, T, settled(old, term=1))
    subscriber = world.client()
    subscriber.deaf.update((first, second))
    mailbox = subscriber.subscribe(T)
    world.install(first, T, prepare(old, new, term=1))  # after it was read, before the answer was heard
    subscriber.deaf.discard(first)
    subscriber.hear()
    assert Done(mailbox) not in subscriber.effects
    subscriber.deaf.discard(second)
    subscriber.hear()
    world.run(0.5)
    assert Done(mailbox) in subscriber.effects
    assert T in world.channels(second)


@pytest.mark.parametrize("state", [BrokerState.JOINING, BrokerState.MEMBER])
def test_a_broker_that_joins_gets_no_grant_before_its_server_says_that_it_is_a_new_one(state: BrokerState) -> None:
    """Clients that knew it before it was given up would take the lease for that of its former life."""
    entry = BrokerEntry("redis://b1", "local", "run", state)
    journal = Journal(Membership(version=5, term=1, brokers={}), {}, {"b1": entry})
    leader = Leader(Ledger(1, journal, 2), leader="c", store_url="", settings=LeaderSettings(dice=Random(1)), now_s=0.0)
    leader.heard(bus.Hello("b1", 1, 40, "redis://b1", "local", "run", True), 0.1)
    told = [bus.decode_for_agent(payload) for _, payload in leader.office.outbox]
    assert any(isinstance(message, bus.Grant) for message in told) == (state is BrokerState.MEMBER)


def test_a_lease_that_comes_before_news_that_were_heard_does_not_count(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.subscribe(T)
    world.run(0.5)
    link = client.machine.links.up("b1")
    before_s = link.lease_until_s
    link.asking_members = True
    world.run(DEFAULT_TIMING.lease_s)
    assert link.lease_until_s == before_s
    link.asking_members = False
    world.run(DEFAULT_TIMING.heartbeat_s)
    assert link.lease_until_s > before_s
