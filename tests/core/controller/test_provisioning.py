"""Provisioning: what the provider of rented brokers is told, and what becomes of the cluster if it does not do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nearcast.core.controller.planner import PlanningSettings
from nearcast.core.model.journal import BrokerState
from nearcast.core.model.names import PROVIDER_CHANNEL
from nearcast.core.model.planning import AddBroker, Cause, Reason, RemoveBroker
from nearcast.core.wire import bus

NAME = "rented-1"
REASON = Reason(Cause.HIGH_LOAD, "load ratio of b1", 0.95, 0.8)


class Provider:
    """A cluster of two brokers and one server for rent, and what its provider hears."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.heard: list[Any] = []
        self._wired = next(wired for wired in cluster.rig.wired if wired.machine is cluster.agents[NAME])
        self.stop()
        cluster.rig.servers["store"].observers.append(self)
        cluster.run(3.0)

    def published(self, server: Any, channel: bytes, payload: bytes, receivers: Any) -> None:
        if channel == PROVIDER_CHANNEL:
            self.heard.append(bus.decode_for_provider(payload))

    def installed(self, *args: Any) -> None:
        """Of no interest."""

    wiped = installed

    @property
    def state(self) -> BrokerState:
        return self.cluster.states()[NAME]

    def start(self) -> None:
        self.cluster.rig.wired.append(self._wired)

    def stop(self) -> None:
        self.cluster.rig.wired.remove(self._wired)

    def ask(self, change: Any) -> None:
        self.cluster.leader.leading.execution.change(change)

    def start_one(self) -> None:
        self.ask(AddBroker(REASON))
        self.start()
        self.cluster.run(4.0)
        assert self.state is BrokerState.MEMBER

    def remove_it(self) -> None:
        self.ask(RemoveBroker(NAME, REASON))
        self.cluster.run(8.0)
        assert self.state is BrokerState.LEFT


@pytest.fixture
def provider(cluster_of: Callable[..., Any]) -> Provider:
    return Provider(cluster_of("b1", "b2", NAME, planning=PlanningSettings(check_s=1e9, brokers_max=3)))


def test_the_name_of_one_that_still_runs_is_not_rented_again(provider: Provider) -> None:
    provider.start_one()
    provider.remove_it()
    provider.heard.clear()
    provider.ask(AddBroker(REASON))  # its provider has not stopped the one before
    provider.cluster.run(2.5)
    assert set(provider.heard) == {bus.Release(NAME, 1, f"redis://{NAME}"), bus.Rent("rented-2", 1)}


def test_one_that_still_runs_under_a_name_that_was_rented_again_is_released_first(provider: Provider) -> None:
    provider.start_one()
    provider.remove_it()
    provider.stop()
    provider.cluster.run(4.0)  # silent for so long that its name is free
    provider.ask(AddBroker(REASON))
    provider.cluster.run(0.2)
    assert provider.state is BrokerState.RENTED
    provider.start()
    provider.cluster.run(1.0)
    provider.heard.clear()
    provider.cluster.run(2.0)
    assert set(provider.heard) == {bus.Release(NAME, 1, f"redis://{NAME}")}
    provider.stop()
    provider.cluster.run(3.5)
    provider.heard.clear()
    provider.cluster.run(1.5)
    assert set(provider.heard) == {bus.Rent(NAME, 1)}


def test_one_that_was_never_stopped_is_released_when_its_name_is_given_back(provider: Provider) -> None:
    provider.start_one()
    provider.remove_it()
    provider.stop()
    provider.cluster.run(4.0)
    provider.ask(AddBroker(REASON))
    provider.cluster.run(31.0)
    assert provider.state is BrokerState.LEFT
    provider.start()
    provider.heard.clear()
    provider.cluster.run(2.0)
    assert set(provider.heard) == {bus.Release(NAME, 1, f"redis://{NAME}")}


def test_one_that_says_hello_before_its_server_answers_is_awaited(provider: Provider) -> None:
    provider.ask(AddBroker(REASON))
    provider.cluster.run(0.5)
    hello = bus.Hello(NAME, 7, 1, f"redis://{NAME}", "local", run_id="", answering=False)
    provider.cluster.leader.leading.heard(hello, provider.cluster.rig.now_s)
    provider.cluster.run(2.0)
    assert set(provider.heard) == {bus.Rent(NAME, 1)}


def test_one_that_was_given_up_and_does_not_come_back_is_given_back(provider: Provider) -> None:
    """Its server may be gone and its machine still there, to be paid for."""
    provider.start_one()
    provider.stop()
    provider.cluster.run(5.0)
    assert provider.state is BrokerState.DEAD
    provider.heard.clear()
    provider.cluster.run(25.0)
    assert provider.heard == []  # it may come back
    provider.cluster.run(10.0)
    assert provider.state is BrokerState.LEFT
    assert set(provider.heard) == {bus.Release(NAME, 1, f"redis://{NAME}")}
    provider.cluster.run(30.0)
    provider.heard.clear()
    provider.ask(AddBroker(REASON))
    provider.cluster.run(1.0)
    assert set(provider.heard) == {bus.Rent(NAME, 1)}


def test_one_that_was_given_up_may_come_back(provider: Provider) -> None:
    provider.start_one()
    provider.stop()
    provider.cluster.run(20.0)
    assert provider.state is BrokerState.DEAD
    provider.start()
    provider.cluster.run(40.0)
    assert provider.state is BrokerState.MEMBER
