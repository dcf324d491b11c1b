"""Asking the controller for its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.cli.counting import Counting
from nearcast.cli.running import say
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.bus import BrokerView, State

ASK_S = 5.0  # for one answer: a new leader is there within about two seconds


async def ask_state(url: str, *topics: str) -> State:
    """The state of these topics, or of all that are placed if none is named; with all brokers in any case."""
    from nearcast.core.names import encode_topic
    from nearcast.runtime.console import Console

    for topic in topics:
        encode_topic(topic)
    async with Console(url) as console:
        with Counting("topics") as counting:
            return warned(await console.state(*topics, timeout_s=ASK_S, on_part=counting.tell))


async def ask_overview(url: str) -> State:
    """The state of all brokers, without topics."""
    from nearcast.runtime.console import Console

    async with Console(url) as console:
        return warned(await console.overview(timeout_s=ASK_S))


def warned(state: State) -> State:
    """The same, after people were told if the store has lost data and nobody has acknowledged it."""
    if state.loss is not None and not state.loss.acknowledged:
        say("warning: the store has lost data, see `nearcast store`")
    return state


def known(state: State, broker: str) -> BrokerView:
    """The broker of this name; a name nobody has is the caller's mistake."""
    view = state.brokers.get(broker)
    if view is None:
        raise UsageError(f"unknown broker {broker!r}; the cluster has: {', '.join(sorted(state.brokers))}")
    return view
