"""Rentals: servers that a provider starts when they are needed, and stops when they are not.

The provider listens on the bus (runtime/provider.py). What is wanted is in the journal, so it is said again until it
shows: a rented broker says hello, a released one falls silent. Servers that nobody rented are never stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nearcast.core import bus
from nearcast.core.journal import BrokerEntry, BrokerState, broker_key

if TYPE_CHECKING:
    from nearcast.core.reign import Reign

PREFIX = "rented-"
SAY_AGAIN_S = 1.0
START_S = 30.0  # a rented broker that has not said hello after so long does not come


class Rentals:
    def __init__(self, reign: Reign) -> None:
        self._reign = reign
        self._said_s: dict[str, float] = {}
        self._since_s: dict[str, float] = {}

    def rent(self) -> str:
        """Ask for one more broker; returns its name."""
        name, before = self._free_name()
        # The run id of a former life under this name stays: that one is not taken for the new broker.
        entry = BrokerEntry("", "", before.run_id if before else "", BrokerState.RENTED, rented=True)
        self._reign.ledger.write_broker(name, entry)
        return name

    def _free_name(self) -> tuple[str, BrokerEntry | None]:
        brokers = self._reign.journal.brokers
        number = 1
        while True:
            name = f"{PREFIX}{number}"
            entry = brokers.get(name)
            taken = entry is not None and entry.state is not BrokerState.LEFT
            if not taken and not self._reign.ledger.pending(broker_key(name)):
                return name, entry
            number += 1

    def tick(self, now_s: float) -> None:
        for name, entry in self._reign.journal.brokers.items():
            if entry.state is BrokerState.RENTED:
                self._await(name, entry, now_s)
            else:
                self._since_s.pop(name, None)
            if self._still_runs(name, entry, now_s):
                self._say(name, bus.Release(name, self._reign.term, entry.url), now_s)

    def _still_runs(self, name: str, entry: BrokerEntry, now_s: float) -> bool:
        """Whether it should have been stopped: it has left, and still says hello."""
        left = entry.state is BrokerState.LEFT and entry.rented
        return left and self._reign.members.heard_lately(name, entry.run_id, now_s)

    def _await(self, name: str, entry: BrokerEntry, now_s: float) -> None:
        since_s = self._since_s.setdefault(name, now_s)
        if now_s - since_s <= START_S:
            self._say(name, bus.Rent(name, self._reign.term), now_s)
        elif not self._reign.ledger.pending(broker_key(name)):
            self._reign.log(f"no provider has started {name} within {START_S:g} s: is one running?")
            self._reign.ledger.write_broker(name, msgspec.structs.replace(entry, state=BrokerState.LEFT))

    def _say(self, name: str, message: bus.ToProvider, now_s: float) -> None:
        if now_s - self._said_s.get(name, -1e9) >= SAY_AGAIN_S:
            self._said_s[name] = now_s
            self._reign.told.append((bus.PROVIDER_CHANNEL, bus.encode(message)))
