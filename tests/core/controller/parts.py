"""One part of a leader alone: an office and a roster over a given journal. The test is the store, and the agents.

A test gives a journal and inputs, and reads which orders, entries and messages the part asks for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from nearcast.core.controller.ledger import Ledger
from nearcast.core.controller.office import LIVE, Office, Roster
from nearcast.core.model.journal import BrokerEntry, BrokerState, Entry, Journal, TopicEntry, decode_entry
from nearcast.core.model.membership import BrokerInfo, Membership
from nearcast.core.model.placement import single
from nearcast.core.model.settings import DEFAULT_TIMING, Timing
from nearcast.core.wire import bus

TERM = 3
MEMBERS = 7  # the version of the membership
COMMITS = 50
MEMBER, LEAVING, JOINING = BrokerState.MEMBER, BrokerState.LEAVING, BrokerState.JOINING
LEFT, DEAD, RENTED = BrokerState.LEFT, BrokerState.DEAD, BrokerState.RENTED


def broker(name: str, state: BrokerState = MEMBER, **changes: Any) -> BrokerEntry:
    return msgspec.structs.replace(BrokerEntry(f"redis://{name}", "local", f"run-{name}", state), **changes)


def journal_of(
    *members: str,
    topics: Mapping[str, TopicEntry] | None = None,
    ring: Iterable[str] = (),  # all members, unless it is given
    closed_from: tuple[str, ...] | None = None,
    **others: BrokerState,
) -> Journal:
    """A cluster of these members, and other brokers with their states."""
    entries = {name: broker(name) for name in members} | {name: broker(name, state) for name, state in others.items()}
    membership = Membership(
        version=MEMBERS,
        term=TERM - 1,
        brokers={name: BrokerInfo(entry.url, joined=1) for name, entry in entries.items() if entry.state in LIVE},
        ring=tuple(ring) or members,
        previous_ring=closed_from,
        cluster="ours",
        timers=DEFAULT_TIMING.agreed,
    )
    return Journal(membership, dict(topics or {}), entries)


def resting(number: int, *brokers: str) -> dict[str, TopicEntry]:
    """Topics at rest, on these brokers in turn."""
    return {f"t{n:05d}": TopicEntry(single(6, brokers[n % len(brokers)], 5)) for n in range(number)}


class Surroundings:
    """What a part finds around it."""

    def __init__(self, journal: Journal, timing: Timing = DEFAULT_TIMING, wall_offset_s: float = 0.0) -> None:
        self.journal = journal
        self.ledger = Ledger(COMMITS, journal, TERM)
        self.office = Office(
            self.ledger,
            leader="c1",
            store_url="redis://store",
            cluster="ours",
            timing=timing,
            wall_offset_s=wall_offset_s,
        )
        self.roster = Roster(self.ledger)

    # --- agents

    def orders(self) -> list[tuple[str, bus.Order]]:
        """The orders given since the last look, each with its broker."""
        given, self.office.orders.outgoing[:] = list(self.office.orders.outgoing), []
        return given

    def order(self) -> Any:
        """The only order given since the last look."""
        ((_, order),) = self.orders()
        return order

    def answer(self, name: str, order: bus.Order, now_s: float, **found: Any) -> None:
        self.office.orders.answered(bus.Answer(name, order.order, **found), now_s)

    def obey(self, now_s: float) -> list[tuple[str, bus.Order]]:
        """Every agent has carried out what it was told: records and memberships are installed, nobody is subscribed."""
        given = self.orders()
        for name, order in given:
            if isinstance(order, bus.Install):
                versions = {topic: record.version for topic, record in order.records.items()}
                self.answer(name, order, now_s, versions=versions)
            elif isinstance(order, bus.InstallMembers):
                self.answer(name, order, now_s, versions={"": order.membership.version})
            elif isinstance(order, bus.Count):
                self.answer(name, order, now_s, counts=dict.fromkeys(order.epochs, (0, 0)))
            else:
                self.answer(name, order, now_s)
        return given

    # --- the store

    def commit(self, now_s: float = 0.0) -> dict[str, Entry]:
        """Everything asked for is in the store now; returns the entries, by their keys."""
        sent = self.ledger.commit(now_s)
        if sent is None:
            return {}
        self.ledger.committed(now_s)
        return {key: decode_entry(key, value) for key, value in sent.changes.items()}

    # --- the bus

    def said(self) -> list[Any]:
        """What was said on the bus since the last look, to anyone."""
        told, self.office.outbox[:] = list(self.office.outbox), []
        return [_anything.decode(payload) for _, payload in told]

    @property
    def decisions(self) -> list[str]:
        return [decision.text for decision in self.office.decisions]


_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder(bus.FromController)


def calls(work: Callable[..., object], *arguments: object) -> int:
    """What an input costs, in calls of functions: no other program on the machine changes that."""
    made = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work(*arguments)
    finally:
        sys.setprofile(None)
    return made
