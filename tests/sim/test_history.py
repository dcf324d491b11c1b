"""The history of a run: which brokers were given up, and which only by a journal that was lost."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from nearcast.core.model.journal import BrokerEntry, BrokerState, broker_key
from nearcast.sim.history import History
from nearcast.sim.network import Timeline
from nearcast.sim.world import World

NOBODY = cast(World, None)  # what is decided is not looked for in the world


def write(history: History, state: BrokerState, now_s: float) -> None:
    history.committed({broker_key("b1"): msgspec.json.encode(BrokerEntry("url", "site", "run", state))}, now_s)


@pytest.mark.parametrize("state", [BrokerState.MEMBER, BrokerState.LEAVING])
def test_an_end_that_was_lost_with_the_store_was_none(state: BrokerState) -> None:
    history = History(Timeline(), NOBODY)
    write(history, BrokerState.DEAD, 1.0)
    history.store_lost()
    assert history.was_given_up("b1", 2.0)
    write(history, state, 3.0)
    assert not history.was_given_up("b1", 2.0)


def test_who_joins_again_after_a_loss_was_given_up() -> None:
    history = History(Timeline(), NOBODY)
    write(history, BrokerState.DEAD, 1.0)
    history.store_lost()
    write(history, BrokerState.JOINING, 2.0)
    write(history, BrokerState.MEMBER, 4.0)
    assert history.was_given_up("b1", 3.0)
    assert not history.was_given_up("b1", 5.0)


def test_without_a_loss_every_end_counts() -> None:
    history = History(Timeline(), NOBODY)
    write(history, BrokerState.DEAD, 1.0)
    write(history, BrokerState.MEMBER, 3.0)
    assert history.was_given_up("b1", 2.0)
