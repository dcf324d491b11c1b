"""Provisioning: what the provider of rented brokers is told, and what becomes of the cluster if it does not do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import parts
import pytest
from parts import DEAD, LEFT, MEMBER, RENTED, TERM, Surroundings, journal_of

from nearcast.core.controller.departures import START_S, Provisioning
from nearcast.core.controller.planner import PlanningSettings
from nearcast.core.model.journal import BrokerEntry, BrokerState, Journal
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
        self.cluster.leader.leading.executor.change(change)

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


# --- the part alone


class Renting(Surroundings):
    """Provisioning of a cluster of one member; `heard` are the brokers that say hello."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.heard: set[tuple[str, str]] = set()  # broker and run
        self.provisioning = Provisioning(self.office, self)  # type: ignore[arg-type]

    def heard_lately(self, name: str, run_id: str, now_s: float) -> bool:
        return (name, run_id) in self.heard

    def step(self, now_s: float) -> list[Any]:
        """What the provider is told."""
        self.provisioning.tick(now_s)
        assert {channel for channel, _ in self.office.outbox} <= {PROVIDER_CHANNEL}
        return self.said()


def renting(state: BrokerState, **changes: Any) -> Renting:
    journal = journal_of("b1")
    journal.brokers[NAME] = parts.broker(NAME, state, **{"rented": True, **changes})
    return Renting(journal)


def test_a_broker_is_asked_for_once_it_is_in_the_store_and_again_each_second() -> None:
    one = Renting(journal_of("b1"))
    assert one.provisioning.rent() == NAME
    assert one.step(0.0) == []
    assert one.commit() == {f"broker/{NAME}": BrokerEntry("", "", "", RENTED, rented=True)}
    told = [one.step(now_s) for now_s in (0.1, 0.9, 1.1)]
    assert told == [[bus.Rent(NAME, TERM)], [], [bus.Rent(NAME, TERM)]]


def test_two_that_are_rented_at_once_have_names_of_their_own() -> None:
    one = Renting(journal_of("b1"))
    assert [one.provisioning.rent(), one.provisioning.rent()] == ["rented-1", "rented-2"]
    one.commit()
    assert one.provisioning.rent() == "rented-3"


def test_one_that_does_not_come_is_given_back() -> None:
    one = renting(RENTED, run_id="", url="")
    one.step(0.0)
    assert one.step(START_S) == [bus.Rent(NAME, TERM)]
    assert one.step(START_S + 0.1) == []
    entries = one.commit()
    assert entries[f"broker/{NAME}"].state is LEFT  # type: ignore[union-attr]
    assert "is one running?" in one.office.notes[-1]
    assert [one.step(START_S + 1.5 + step) for step in range(3)] == [[], [], []]


def test_one_that_has_left_is_released_until_it_is_silent() -> None:
    one = renting(LEFT)
    one.heard.add((NAME, f"run-{NAME}"))
    release = bus.Release(NAME, TERM, f"redis://{NAME}")
    assert [one.step(now_s) for now_s in (0.0, 0.5, 1.0)] == [[release], [], [release]]
    assert one.provisioning.rent() == "rented-2", "its name is still in use"
    one.heard.clear()
    assert one.step(2.0) == []
    assert one.provisioning.rent() == NAME


def test_a_server_that_was_not_rented_is_never_stopped() -> None:
    one = renting(LEFT, rented=False)
    one.heard.add((NAME, f"run-{NAME}"))
    assert one.step(0.0) == []


def test_one_that_was_given_up_and_is_not_back_is_released_although_nobody_hears_it() -> None:
    one = renting(DEAD)
    assert [one.step(0.0), one.step(START_S), one.commit()] == [[], [], {}]
    one.step(START_S + 0.1)
    one.commit()
    assert one.journal.brokers[NAME].state is LEFT
    release = bus.Release(NAME, TERM, f"redis://{NAME}")
    assert one.step(START_S + 1.2) == [release]
    assert one.step(2 * START_S) == [release]
    assert one.step(2 * START_S + 0.2) == [], "for as long as a start may take"


def test_time_counts_from_when_it_was_last_expected() -> None:
    one = renting(DEAD)
    one.step(0.0)
    one.ledger.write_broker(NAME, parts.broker(NAME, MEMBER, rented=True))
    one.commit()
    one.step(START_S - 1.0)
    one.ledger.write_broker(NAME, parts.broker(NAME, DEAD, rented=True))
    one.commit()
    one.step(START_S)
    one.step(START_S + 1.0)
    assert one.commit() == {}
