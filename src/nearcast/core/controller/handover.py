"""The handover: what happens when the ring of directories changes (PROTOCOL, controller rule 7).

Which topics of a long journal concern a broker is worked out a part at a time. A leader that computes for longer than
its leadership lasts would lose it, and so would the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.controller.office import INSTALL_BATCH
from nearcast.core.model import placement as records
from nearcast.core.model.journal import MEMBERSHIP_KEY, Entry, Phase, TopicEntry, topic_key
from nearcast.core.model.membership import Membership, Ring, parted, ring_of
from nearcast.core.model.placement import Record
from nearcast.core.wire import bus

if TYPE_CHECKING:
    from nearcast.core.controller.office import Office, Orders, Roster


LOOKED_AT = 5_000  # topics looked at in one go: about 20 milliseconds of our time

# All topics that may concern the broker, each with its record if it does.
Wanted = Callable[[], Iterator[tuple[str, Record | None]]]


class _Restore:
    """The records being installed at one broker."""

    __slots__ = ("at", "batch", "broker", "complete", "topics")

    def __init__(self, broker: str, topics: Iterator[tuple[str, Record | None]]) -> None:
        self.broker = broker
        self.topics = topics
        self.batch: dict[str, Record] = {}  # the next one, or the one in flight
        self.complete = False  # all topics have been looked at
        self.at = 0  # number of batches installed

    def look(self) -> None:
        """Fill the next batch, as far as one go allows."""
        looked = 0
        for topic, record in islice(self.topics, LOOKED_AT):
            looked += 1
            if record is not None:
                self.batch[topic] = record
                if len(self.batch) == INSTALL_BATCH:
                    return
        self.complete = looked < LOOKED_AT


class Restoring:
    """Installs many records at one broker outside of any move, batch after batch, each repeated until it is answered.

    Its users state what they need at every tick. Work in progress continues where it is and does not start over, so the
    number of orders grows with the number of records. If a move has replaced a record in the meantime, the server keeps
    the newer one.
    """

    def __init__(self, orders: Orders, term: int) -> None:
        self._orders = orders
        self._term = term
        self._under_way: dict[Hashable, _Restore] = {}

    def drive(self, key: Hashable, broker: str, wanted: Wanted, then: Callable[[], None], now_s: float) -> None:
        """Install what is wanted at the broker, and call `then` when all of it is there."""
        restore = self._under_way.get(key)
        if restore is None:
            restore = self._under_way[key] = _Restore(broker, wanted())
        if not restore.batch:
            restore.look()
        if not restore.batch:
            if restore.complete:
                del self._under_way[key]
                then()
            return

        def done(answer: bus.Answer, at_s: float) -> None:
            if self._under_way.get(key) is restore and restore.at == at:
                restore.at, restore.batch = restore.at + 1, {}
                self.drive(key, broker, wanted, then, at_s)

        at = restore.at
        make = partial(bus.Install, term=self._term, records=restore.batch)
        self._orders.need(("restore", key, at), broker, make, done, now_s)

    def forget(self, broker: str) -> None:
        """The broker is gone, or has lost its memory: start over if the records are still wanted."""
        self._under_way = {key: restore for key, restore in self._under_way.items() if restore.broker != broker}


# --- change of the ring


class _Collected:
    """How much an old directory has handed over."""

    __slots__ = ("after", "complete", "writing")

    def __init__(self) -> None:
        self.after = ""  # the last topic that is in the journal
        self.writing = False  # a batch is being written to it
        self.complete = False


class Handover:
    """Changes the ring.

    A changed ring begins closed for the topics whose directory changes. Their records are collected from the old
    directories, so that the journal knows every one of them, and installed at the new ones. Then the ring opens.
    """

    def __init__(self, office: Office, roster: Roster, restoring: Restoring, evacuate: Callable[[str], None]) -> None:
        self._ledger, self._orders = office.ledger, office.orders
        self._roster = roster
        self._restoring = restoring
        self._evacuate = evacuate  # a broker's topics
        self._collected: dict[tuple[int, str], _Collected] = {}  # membership version, old directory
        self._handed_over: tuple[int, set[str]] = (-1, set())  # version, topics whose new directory has them
        self._handing_over: dict[str, dict[str, records.Record]] = {}  # to each new directory, at the moment
        self._unseen: Iterator[str] | None = None  # topics still to be looked at, some in every tick
        self._missing: dict[str, dict[str, records.Record]] = {}  # found so far: what new directories lack,
        self._switching = False  # and whether a topic is in the middle of a move

    def drive(self, membership: Membership, now_s: float) -> None:
        """Collect the records of topics that change their directory, install them at the new one, open the ring."""
        old, new = membership.previous_ring or (), membership.ring
        waiting = False
        for name in old:
            if self._roster.carries(name):
                collected = self._collected.setdefault((membership.version, name), _Collected())
                self._collect(name, membership, collected, now_s)
                waiting |= not collected.complete
        if waiting:
            return
        if self._handed_over[0] != membership.version:
            self._handed_over = (membership.version, set())
            self._handing_over, self._unseen = {}, None
        if self._install_at_new(old, new, now_s):
            self._collected = {}
            opened = msgspec.structs.replace(membership, version=membership.version + 1, previous_ring=None)
            self._ledger.write({MEMBERSHIP_KEY: parted(membership, opened)})

    def _collect(self, name: str, membership: Membership, collected: _Collected, now_s: float) -> None:
        """Ask for the next batch of an old directory's records, unless one is being written to the journal."""
        if collected.complete or collected.writing:
            return
        after = collected.after

        def done(answer: bus.Answer, at_s: float) -> None:
            if collected.writing or collected.after != after or collected.complete:
                return  # the same batch again
            collected.writing = True
            self._ledger.write(self._unknown(answer.records), partial(written, answer))

        def written(answer: bus.Answer, at_s: float) -> None:
            collected.writing = False
            collected.complete = not answer.more
            collected.after = max(answer.records, default="")
            self._evacuate_dead(answer.records)
            self._collect(name, membership, collected, at_s)

        old, new = membership.previous_ring or (), membership.ring
        make = partial(
            bus.Collect, term=self._ledger.term, old_ring=old, new_ring=new, after=after, members=membership.version
        )
        self._orders.need(("collect", name, membership.version, after), name, make, done, now_s)

    def _unknown(self, found: dict[str, records.Record]) -> dict[str, Entry]:
        """Entries for the topics that the journal does not know yet."""
        topics, ledger = self._ledger.journal.topics, self._ledger
        return {
            topic_key(topic): TopicEntry(record.placement)
            for topic, record in found.items()
            if topic not in topics and not ledger.pending(topic_key(topic))
        }

    def _evacuate_dead(self, found: dict[str, records.Record]) -> None:
        """Found topics may be on a broker that was given up while the journal did not know about them."""
        for broker in sorted({broker for record in found.values() for broker in record.placement.brokers}):
            if not self._roster.carries(broker):
                self._evacuate(broker)

    def _install_at_new(self, old: tuple[str, ...], new: tuple[str, ...], now_s: float) -> bool:
        """Whether every planned topic whose directory changed has its record at the new one."""
        if self._go_on(now_s):
            return False
        if self._unseen is None:
            self._unseen = iter(list(self._ledger.journal.topics))
            self._missing, self._switching = {}, False
        part = list(islice(self._unseen, LOOKED_AT))
        self._look(part, ring_of(old), ring_of(new))
        if len(part) == LOOKED_AT:
            return False
        self._unseen, self._handing_over = None, self._missing
        self._go_on(now_s)
        return not self._missing and not self._switching

    def _look(self, topics: list[str], before: Ring, after: Ring) -> None:
        """Find out which of these topics a new directory does not have yet."""
        for topic in topics:
            name, entry = topic.encode(), self._ledger.journal.topics[topic]
            owner = after.owner(name)
            if topic in self._handed_over[1] or before.owner(name) == owner or not self._roster.carries(owner):
                continue
            if entry.move is not None and entry.move.phase is Phase.SWITCH:
                self._switching = True  # its move updates the new directory itself when it settles
                continue
            self._missing.setdefault(owner, {})[topic] = records.settled(entry.placement, self._ledger.term)

    def _go_on(self, now_s: float) -> bool:
        """Whether records are in flight: all topics are checked again once these are installed."""
        version = self._handed_over[0]
        for owner, wanted in list(self._handing_over.items()):
            if not self._roster.carries(owner):
                del self._handing_over[owner]
                continue
            there = partial(self._arrived, owner, wanted)
            self._restoring.drive(("handover", version, owner), owner, partial(_each, wanted), there, now_s)
        return bool(self._handing_over)

    def _arrived(self, owner: str, wanted: dict[str, records.Record]) -> None:
        self._handed_over[1].update(wanted)
        self._handing_over.pop(owner, None)


def _each(wanted: dict[str, records.Record]) -> Iterator[tuple[str, records.Record]]:
    return iter(wanted.items())
