"""The handover: what happens when the ring of directories changes (PROTOCOL, controller rule 7).

A changed ring begins closed for the topics whose directory changes. Their records are collected from the old
directories, so that the journal knows every one of them, and installed at the new ones; then the ring opens.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nearcast.core import bus
from nearcast.core import record as records
from nearcast.core.journal import MEMBERSHIP_KEY, Phase, TopicEntry, topic_key
from nearcast.core.membership import Membership, ring_of

if TYPE_CHECKING:
    from nearcast.core.ledger import Entry
    from nearcast.core.reign import Reign


class Handover:
    def __init__(self, reign: Reign) -> None:
        self._reign = reign
        self._collected: dict[int, set[str]] = {}  # membership version -> old directories that have answered
        self._handed_over: tuple[int, set[str]] = (-1, set())  # version, topics whose new directory has them
        self._handing_over: dict[str, dict[str, records.Record]] = {}  # to each new directory, at this moment

    def drive(self, membership: Membership, now_s: float) -> None:
        """Collect the records of topics that change their directory, install them at the new one, then open."""
        old, new = membership.previous_ring or (), membership.ring
        collected = self._collected.setdefault(membership.version, set())
        waiting = [name for name in old if self._reign.members.carries(name) and name not in collected]
        for name in waiting:
            self._order_collect(name, membership, now_s)
        if waiting:
            return
        if self._handed_over[0] != membership.version:
            self._handed_over = (membership.version, set())
            self._handing_over = {}
        if self._install_at_new(old, new, now_s):
            self._collected = {}
            opened = msgspec.structs.replace(membership, version=membership.version + 1, previous_ring=None)
            self._reign.ledger.write({MEMBERSHIP_KEY: opened})

    def _order_collect(self, name: str, membership: Membership, now_s: float) -> None:
        version, old, new = membership.version, membership.previous_ring or (), membership.ring

        def done(answer: bus.Answer, at_s: float) -> None:
            topics = self._reign.journal.topics
            changes: dict[str, Entry] = {
                topic_key(topic): TopicEntry(record.placement)
                for topic, record in answer.records.items()
                if topic not in topics and not self._reign.ledger.pending(topic_key(topic))
            }
            self._reign.ledger.write(changes, lambda _: self._collected.setdefault(version, set()).add(name))

        make = partial(bus.Collect, term=self._reign.term, old_ring=old, new_ring=new)
        self._reign.orders.need(("collect", name, version), name, make, done, now_s)

    def _install_at_new(self, old: tuple[str, ...], new: tuple[str, ...], now_s: float) -> bool:
        """Whether every planned topic whose directory changed has its record at the new one."""
        if self._go_on(now_s):
            return False
        done = self._handed_over[1]
        before, after = ring_of(old), ring_of(new)
        missing: dict[str, dict[str, records.Record]] = {}
        switching = False
        for topic, entry in self._reign.journal.topics.items():
            name = topic.encode()
            owner = after.owner(name)
            if topic in done or before.owner(name) == owner or not self._reign.members.carries(owner):
                continue
            if entry.move is not None and entry.move.phase is Phase.SWITCH:
                switching = True  # it tells the new directory itself when it settles
                continue
            missing.setdefault(owner, {})[topic] = records.settled(entry.placement, self._reign.term)
        self._handing_over = missing
        self._go_on(now_s)
        return not missing and not switching

    def _go_on(self, now_s: float) -> bool:
        """Whether records are on their way: all topics are looked through again when these are there."""
        version = self._handed_over[0]
        for owner, wanted in list(self._handing_over.items()):
            if not self._reign.members.carries(owner):
                del self._handing_over[owner]
                continue
            there = partial(self._arrived, owner, wanted)
            self._reign.restoring.drive(("handover", version, owner), owner, partial(dict, wanted), there, now_s)
        return bool(self._handing_over)

    def _arrived(self, owner: str, wanted: dict[str, records.Record]) -> None:
        self._handed_over[1].update(wanted)
        self._handing_over.pop(owner, None)
