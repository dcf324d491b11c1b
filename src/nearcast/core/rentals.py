"""Rentals: servers that a provider starts when they are needed, and stops when they are not.

The provider listens on the bus (runtime/provider.py). What is wanted is in the journal, so it is said again until it
shows: a rented broker says hello, a released one falls silent. Servers that nobody rented are never stopped.

A provider takes a name that still runs for one that was started already. So a broker that has left and was not stopped
yet keeps its name; and if it is only heard of when the name was given away, it is released first.

One that was given up and does not come back is given back too. It may never be heard again: its release is said for as
long as a start may take.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import msgspec

from nearcast.core import bus
from nearcast.core.journal import BrokerEntry, BrokerState, broker_key
from nearcast.core.store_names import PROVIDER_CHANNEL

if TYPE_CHECKING:
    from nearcast.core.reign import Reign

PREFIX = "rented-"
SAY_AGAIN_S = 1.0
START_S = 30.0  # a rented broker that has not said hello after so long does not come, or not come back


class Rentals:
    def __init__(self, reign: Reign) -> None:
        self._reign = reign
        self._said_s: dict[str, float] = {}
        self._since_s: dict[str, float] = {}  # since when a broker is to come, or to come back
        self._lost_s: dict[str, float] = {}  # when a broker that did not come back was given back
        self._running: set[str] = set()  # brokers that have left and were not stopped yet

    def rent(self) -> str:
        """Ask for one more broker; returns its name."""
        name = self._free_name()
        before = self._reign.journal.brokers.get(name)
        # Run id and URL of a former life under this name stay: that one is to be stopped, not taken for the new broker.
        url, run_id = (before.url, before.run_id) if before is not None else ("", "")
        self._reign.ledger.write_broker(name, BrokerEntry(url, "", run_id, BrokerState.RENTED, rented=True))
        return name

    def _free_name(self) -> str:
        return next(name for number in count(1) if self._is_free(name := f"{PREFIX}{number}"))

    def _is_free(self, name: str) -> bool:
        entry = self._reign.journal.brokers.get(name)
        if self._reign.ledger.pending(broker_key(name)):
            return False
        return entry is None or (entry.state is BrokerState.LEFT and name not in self._running)

    def tick(self, now_s: float) -> None:
        brokers = self._reign.journal.brokers
        self._running = {name for name, entry in brokers.items() if self._still_runs(name, entry, now_s)}
        for name, entry in brokers.items():
            if name in self._running:
                self._say(name, bus.Release(name, self._reign.term, entry.url), now_s)
            if entry.rented and entry.state in (BrokerState.RENTED, BrokerState.DEAD):
                self._await(name, entry, now_s)
            else:
                self._since_s.pop(name, None)

    def _still_runs(self, name: str, entry: BrokerEntry, now_s: float) -> bool:
        """Whether it should have been stopped: it has left, and still says hello."""
        left = entry.rented and entry.state in (BrokerState.LEFT, BrokerState.RENTED)
        # Without a run it never was here: whoever says hello under this name now is the one that was rented.
        heard = bool(entry.run_id) and self._reign.members.heard_lately(name, entry.run_id, now_s)
        return left and (heard or now_s - self._lost_s.get(name, -1e9) < START_S)

    def _await(self, name: str, entry: BrokerEntry, now_s: float) -> None:
        since_s = self._since_s.setdefault(name, now_s)
        if now_s - since_s > START_S:
            self._give_back(name, entry, now_s)
        elif entry.state is BrokerState.RENTED and name not in self._running:
            self._say(name, bus.Rent(name, self._reign.term), now_s)

    def _give_back(self, name: str, entry: BrokerEntry, now_s: float) -> None:
        if self._reign.ledger.pending(broker_key(name)):
            return
        if entry.state is BrokerState.DEAD:
            self._lost_s[name] = now_s
            self._reign.log(f"{name} was given up {START_S:g} s ago and did not come back: it is given back")
        else:
            self._reign.log(f"no provider has started {name} within {START_S:g} s: is one running?")
        self._reign.ledger.write_broker(name, msgspec.structs.replace(entry, state=BrokerState.LEFT))

    def _say(self, name: str, message: bus.ToProvider, now_s: float) -> None:
        if now_s - self._said_s.get(name, -1e9) >= SAY_AGAIN_S:
            self._said_s[name] = now_s
            self._reign.told.append((PROVIDER_CHANNEL, bus.encode(message)))
