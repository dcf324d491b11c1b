"""One name, one server, one agent at a time: a second one is refused, and takes over when the first is gone."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from nearcast.core.agent.machine import Agent, Identity
from nearcast.core.model.journal import BrokerState
from nearcast.core.model.names import CLAIM_KEY
from nearcast.core.model.placement import Mode
from nearcast.core.model.settings import DEFAULT_TIMING

FORMED_S = 4.0


def agent(broker: str, server: str) -> Agent:
    return Agent(Identity(broker, f"redis://{server}"), "redis://store", Random(f"second {broker} {server}"))


@pytest.fixture
def formed(cluster_of: Any) -> Any:
    cluster = cluster_of("b1", "b2")
    cluster.run(FORMED_S)
    assert set(cluster.states().values()) == {BrokerState.MEMBER}
    return cluster


def end(cluster: Any, machine: Agent) -> None:
    """The agent's process ends."""
    (wired,) = (wired for wired in cluster.rig.wired if wired.machine is machine)
    cluster.rig.wired.remove(wired)
    for session in wired.sessions.values():
        session.close()


def works(cluster: Any) -> bool:
    """Topics can be moved to and from both brokers, and clients use them there."""
    program = cluster.rig.client()
    cluster.run(0.5)
    for number, broker in enumerate(("b1", "b2", "b1")):
        cluster.move("t", Mode.SINGLE, broker)
        program.publish(b"t", b"%d" % number)
        cluster.run(1.0)
    return program.acked == [b"0", b"1", b"2"]


def test_an_agent_with_the_server_of_another_broker_stops_and_says_why(formed: Any) -> None:
    wrong = agent("b1", "b2")
    formed.rig.wire(wrong)
    formed.run(1.0)
    assert "server redis://b2 belongs to broker b2" in wrong.refused
    assert formed.journal.brokers["b1"].url == "redis://b1"
    assert works(formed)


def test_an_agent_with_the_name_of_another_and_a_server_of_its_own_stops_and_says_why(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2", "b3")
    end(cluster, cluster.agents["b3"])  # its server serves nobody
    cluster.run(FORMED_S)
    wrong = agent("b1", "b3")
    cluster.rig.wire(wrong)
    cluster.run(1.0)
    assert "broker b1 has another agent, with the server at redis://b1" in wrong.problem
    cluster.run(DEFAULT_TIMING.dead_s)
    assert wrong.refused
    assert works(cluster)


def test_a_server_that_waits_for_its_agent_is_not_given_to_another_broker(formed: Any) -> None:
    end(formed, formed.agents["b2"])
    wrong = agent("b3", "b2")
    formed.rig.wire(wrong)
    formed.run(0.5)
    assert "belongs to broker b2" in wrong.refused
    formed.rig.wire(agent("b2", "b2"))
    formed.run(1.0)
    assert works(formed)
    assert set(formed.states()) == {"b1", "b2"}


def test_a_second_agent_waits_without_a_trace_and_takes_over_at_once(formed: Any) -> None:
    second = agent("b1", "b1")
    formed.rig.wire(second)
    for _ in range(round(2 * DEFAULT_TIMING.dead_s / DEFAULT_TIMING.heartbeat_s)):
        before = int(formed.rig.ask("b1", "HGET", CLAIM_KEY, "granted"))
        formed.run(DEFAULT_TIMING.heartbeat_s)
        assert int(formed.rig.ask("b1", "HGET", CLAIM_KEY, "granted")) > before
    assert not second.refused
    assert "has another agent of broker b1: waiting" in second.problem
    end(formed, formed.agents["b1"])
    formed.run(DEFAULT_TIMING.heartbeat_s)
    assert second.problem == ""
    assert formed.states()["b1"] is BrokerState.MEMBER
    assert works(formed)


def test_an_agent_whose_connection_stays_open_without_it_is_replaced_after_the_time_of_death(formed: Any) -> None:
    (first,) = (wired for wired in formed.rig.wired if wired.machine is formed.agents["b1"])
    formed.rig.wired.remove(first)  # and its sessions stay
    second = agent("b1", "b1")
    formed.rig.wire(second)
    formed.run(DEFAULT_TIMING.dead_s / 2)
    assert second.problem
    formed.run(DEFAULT_TIMING.dead_s + FORMED_S)
    assert second.problem == ""
    assert works(formed)


def test_the_only_broker_may_come_back_at_another_address(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2")
    end(cluster, cluster.agents["b2"])
    cluster.run(FORMED_S)
    program = cluster.rig.client()
    cluster.run(0.5)
    program.publish(b"t", b"before")
    cluster.rig.down.add("b1")
    for wired in list(cluster.rig.wired):
        if "b1" in wired.sessions:
            wired.cut("b1")
    end(cluster, cluster.agents["b1"])
    moved = agent("b1", "b2")
    cluster.rig.wire(moved)
    cluster.run(DEFAULT_TIMING.dead_s + 2.0)
    assert moved.problem == ""
    assert cluster.journal.membership.brokers["b1"].url == "redis://b2"
