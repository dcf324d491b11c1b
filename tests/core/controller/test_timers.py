"""The timers of a cluster: everybody goes by the leader's, and a new leader waits for those of the one before."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from nearcast.core.agent.machine import Agent, Identity
from nearcast.core.client.news import Note
from nearcast.core.controller.effects import Campaign, Leadership
from nearcast.core.controller.machine import Controller
from nearcast.core.model.membership import BrokerInfo, Membership, encode_membership
from nearcast.core.model.names import MEMBERS
from nearcast.core.model.settings import CLOCKS, Agreed, Timing
from nearcast.core.wire.scripts import INSTALL_MEMBERS
from nearcast.errors import Unsupported

OWN = Timing(heartbeat_s=0.4, lease_s=2.0, dead_s=2.5, gap_s=0.9)
CLUSTER = Agreed(heartbeat_s=0.2, lease_s=1.0, dead_s=1.2, ready_s=3.0, idle_s=60.0)
BRISK = Timing(heartbeat_s=0.25, lease_s=1.2, dead_s=1.5, leader_s=0.7)
PATIENT = Timing(heartbeat_s=0.8, lease_s=4.0, dead_s=5.0, leader_s=1.5)


def tell(world: Any, version: int, timers: Agreed | None) -> None:
    """Another membership on every server."""
    world.membership = msgspec.structs.replace(world.membership, version=version, timers=timers)
    for name in world.servers:
        world.prepare(name)


def put(world: Any, version: int, document: bytes) -> None:
    """A document of any kind on the first server."""
    world.ask("b1", "EVAL", INSTALL_MEMBERS, 1, MEMBERS, version, document, 0)


def document(version: int, timers: str) -> bytes:
    members = Membership(version=version, term=1, brokers={"b1": BrokerInfo("redis://b1")}, ring=("b1",))
    return encode_membership(members).replace(b'"timers":null', b'"timers":' + timers.encode())


NONSENSE = {
    "a lease longer than T_dead": '{"lease_s":9,"dead_s":3}',
    "a lease longer than two T_idle": '{"idle_s":1}',
    "a negative one": '{"idle_s":-1}',
    "one of a million years": '{"idle_s":3e13}',
    "a word": '{"lease_s":"long"}',
    "null": '{"lease_s":null}',
    "a list": "[1,2,3]",
}

# --- clients


def test_a_client_goes_by_the_timers_of_the_membership(rig: Any) -> None:
    world = rig("b1")
    tell(world, 2, CLUSTER)
    client = world.client(timing=OWN)
    assert client.machine.timing.agreed == CLUSTER
    assert client.machine.timing.gap_s == OWN.gap_s, "this one is its own matter"


def test_a_client_counts_on_a_lease_as_long_as_the_membership_says(rig: Any) -> None:
    world = rig("b1")
    tell(world, 2, CLUSTER)
    client = world.client(timing=OWN)
    world.run(1.0)
    (link,) = client.machine.links.all_up()
    assert 0 < link.lease_until_s - world.now_s <= CLUSTER.lease_s


def test_a_client_takes_over_timers_that_change(rig: Any) -> None:
    world = rig("b1")
    client = world.client(timing=OWN)
    assert client.machine.timing == OWN, "a membership of an older version says nothing"
    tell(world, 2, CLUSTER)
    assert client.machine.timing.agreed == CLUSTER
    tell(world, 3, None)
    assert client.machine.timing == OWN, "an older version leads again"


@pytest.mark.parametrize("timers", NONSENSE.values(), ids=NONSENSE)
def test_timers_that_make_no_sense_are_refused_and_told(rig: Any, timers: str) -> None:
    world = rig("b1")
    tell(world, 2, CLUSTER)
    told: list[Any] = []
    client = world.client(timing=OWN, tell=told.append)
    put(world, 3, document(3, timers))
    assert client.machine.timing.agreed == CLUSTER
    assert client.machine.membership.version == 2
    assert [news.text for news in told if isinstance(news, Note) and "the membership cannot be read" in news.text]


def test_who_cannot_read_its_first_membership_is_told_so(rig: Any) -> None:
    world = rig("b1")
    put(world, 3, document(3, NONSENSE["a lease longer than T_dead"]))
    client = world.client()
    error = client.machine.links.last_error
    assert isinstance(error, Unsupported)
    assert "1.1 * lease_s < dead_s" in str(error)


def test_fields_of_a_newer_version_are_ignored(rig: Any) -> None:
    world = rig("b1")
    put(world, 3, document(3, '{"lease_s":1.5,"heartbeat_s":0.2,"grace_s":7}'))
    client = world.client()
    assert client.machine.timing.agreed == Agreed(lease_s=1.5, heartbeat_s=0.2)


@pytest.mark.parametrize(
    "own",
    [Timing(gap_s=100.0), Timing(block_s=4.0), Timing(gap_s=60.0, resync_s=59.0), Timing(lease_s=2.6, leader_s=2.5)],
)
def test_timers_of_a_program_give_way_to_those_of_the_cluster(own: Timing) -> None:
    within = own.within(CLUSTER)
    assert within.agreed == CLUSTER
    assert within.gap_s <= own.gap_s
    assert within.block_s < CLUSTER.ready_s
    assert within.linger_s == own.linger_s


# --- agents


def test_an_agent_goes_by_the_timers_that_its_server_has(rig: Any) -> None:
    world = rig("b1", "store")
    tell(world, 2, CLUSTER)
    agent = Agent(Identity("b1", "redis://b1"), "redis://store", Random(1))
    world.wire(agent)
    world.run(0.3)
    assert agent.timing.agreed == CLUSTER
    parts = (agent.server, agent.bus, agent._claim, agent._ending)
    assert [part.timing for part in parts] == [agent.timing] * len(parts)


# --- leaders


def agreed(cluster: Any) -> Agreed:
    timers = cluster.journal.membership.timers
    assert isinstance(timers, Agreed)
    return timers


def depose(cluster: Any) -> None:
    cluster.stopped.add(cluster.leader)


def test_the_first_membership_has_the_timers_of_its_leader(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2", leaders=(BRISK,))
    cluster.run(3.0)
    assert agreed(cluster) == BRISK.agreed
    assert [agent.timing.agreed for agent in cluster.agents.values()] == [BRISK.agreed] * 2


def test_a_new_leader_keeps_the_longer_t_dead_until_nobody_goes_by_it(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2", controllers=2, leaders=(PATIENT, BRISK))
    cluster.run(3.0)
    assert agreed(cluster) == PATIENT.agreed
    depose(cluster)
    cluster.run(CLOCKS * PATIENT.leader_s + 1.0)
    assert agreed(cluster) == msgspec.structs.replace(BRISK.agreed, dead_s=PATIENT.dead_s)
    assert cluster.leader.leading.members.agreement.dead_s == PATIENT.dead_s
    cluster.run(PATIENT.dead_s - 1.0)
    assert agreed(cluster).dead_s == PATIENT.dead_s
    cluster.run(1.5)
    assert agreed(cluster) == BRISK.agreed
    assert cluster.leader.leading.members.agreement.dead_s == BRISK.dead_s


def test_a_new_leader_with_longer_timers_has_them_at_once(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2", controllers=2, leaders=(BRISK, PATIENT))
    cluster.run(3.0)
    depose(cluster)
    cluster.run(CLOCKS * PATIENT.leader_s + 0.5)
    assert agreed(cluster) == PATIENT.agreed


def test_t_dead_is_not_shortened_while_a_broker_has_not_been_told(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2", controllers=2, leaders=(PATIENT, BRISK))
    cluster.run(3.0)
    depose(cluster)
    cluster.rig.silent.add("b2")  # its agent beats no more, and takes no orders
    cluster.run(CLOCKS * PATIENT.leader_s + PATIENT.dead_s - 0.5)
    assert agreed(cluster).dead_s == PATIENT.dead_s
    assert "b2" in cluster.journal.membership.brokers, "no client may count on it any longer than this"
    cluster.run(1.5)
    assert "b2" not in cluster.journal.membership.brokers


def test_a_membership_without_timers_counts_as_one_with_the_defaults(cluster_of: Any) -> None:
    cluster = cluster_of("b1", controllers=2, leaders=(Timing(), BRISK))
    cluster.run(3.0)
    journal = cluster.journal
    journal.membership = msgspec.structs.replace(journal.membership, timers=None)
    cluster.store._entries["membership"] = encode_membership(journal.membership)
    depose(cluster)
    cluster.run(2.0)
    assert agreed(cluster) == msgspec.structs.replace(BRISK.agreed, dead_s=Agreed().dead_s)
    cluster.run(4.0)
    assert agreed(cluster) == BRISK.agreed


def test_nobody_takes_over_before_the_leader_itself_has_given_up() -> None:
    """It says in its key how long it trusts itself, which may be longer than others trust themselves."""
    patient, brisk = (Controller("c", "redis://store", Random(1), timing=timing) for timing in (PATIENT, BRISK))
    patient.tick(0.0)
    (campaign,) = patient.store
    assert isinstance(campaign, Campaign)
    held = f"{campaign.candidate}#1"
    for now_s, stale in ((0.0, ""), (CLOCKS * PATIENT.leader_s - 0.1, ""), (CLOCKS * PATIENT.leader_s + 0.1, held)):
        brisk.store.clear()
        brisk.tick(now_s)
        assert brisk.store == [Campaign(brisk._candidate, stale)], now_s
        brisk.campaigned(Leadership(None, held, 0), now_s)
