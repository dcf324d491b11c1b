"""Members: which brokers there are, which live, and the ring of directories (PROTOCOL, controller rules 6-8).

A broker joins in steps that are found out again at every tick from what its hellos say and what the journal holds:

    reset -> records and membership installed -> ready key set -> pattern subscribers there -> in the ring

A ring change closes the topics whose directory changes, collects their records from the old directories, installs
them at the new ones, and opens them. A broker without a grant for T_dead, or whose process was seen to end, is given
up: its topics are moved by force, and if it comes back it joins as if it were new.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nearcast.core import bus
from nearcast.core import record as records
from nearcast.core.journal import (
    MEMBERSHIP_KEY,
    BrokerEntry,
    BrokerState,
    Phase,
    TopicEntry,
    broker_key,
    records_for,
    topic_key,
)
from nearcast.core.membership import BrokerInfo, Membership, ring_of

if TYPE_CHECKING:
    from nearcast.core.ledger import Entry
    from nearcast.core.reign import Reign

INSTALL_BATCH = 500


class Members:
    def __init__(self, reign: Reign, now_s: float) -> None:
        self._reign = reign
        self._hellos: dict[str, bus.Hello] = {}
        # The leader before us may have granted a moment ago: count from now.
        self._granted_s = dict.fromkeys(reign.journal.brokers, now_s)
        self._reset: set[tuple[str, str]] = set()  # (broker, run id) that began anew under this leader
        self._restored: set[tuple[str, str]] = set()  # whose records are all installed
        self._membership_at: dict[str, int] = {}  # version installed at each broker
        self._patterns: dict[str, int] = {}  # pattern subscribers counted at each broker
        self._joining_since_s: dict[str, float] = {}
        self._collected: dict[int, set[str]] = {}  # membership version -> old directories that have answered
        self._handed_over: tuple[int, set[str]] = (-1, set())  # version, topics whose new directory has them

    # --- what others may ask

    def alive(self, broker: str) -> bool:
        """Whether the broker is expected to carry out orders."""
        entry = self._reign.journal.brokers.get(broker)
        return entry is not None and entry.state is not BrokerState.DEAD

    def carries(self, broker: str) -> bool:
        """Whether the broker carries the topics that name it. One that joins again has nothing of its former life."""
        entry = self._reign.journal.brokers.get(broker)
        return entry is not None and entry.state is BrokerState.MEMBER

    def carriers(self) -> frozenset[str]:
        """The brokers that may carry topics."""
        brokers = self._reign.journal.brokers
        return frozenset(name for name, entry in brokers.items() if entry.state is BrokerState.MEMBER)

    def directory(self, topic: str) -> str | None:
        """The topic's directory by the newest ring, closed or open."""
        ring = self._reign.journal.membership.ring
        return ring_of(ring).owner(topic.encode()) if ring else None

    def granted_lately(self, broker: str, now_s: float) -> bool:
        return now_s - self._granted_s.get(broker, -1e9) < self._reign.timing.lease_s

    # --- hellos

    def hello(self, hello: bus.Hello, now_s: float) -> None:
        name = hello.broker
        self._hellos[name] = hello
        entry = self._reign.journal.brokers.get(name)
        if self._reign.ledger.pending(broker_key(name)):
            return
        if entry is None or entry.state is BrokerState.DEAD:
            if hello.answering:
                self._admit(hello, now_s)
        elif hello.dead:
            self._give_up(name, now_s)
        elif hello.answering and hello.run_id != entry.run_id:
            self._restart(name, entry, hello)
        elif hello.answering:
            self._granted_s[name] = now_s
            self._reign.tell(name, bus.Grant(self._reign.term, hello.sequence))

    def _admit(self, hello: bus.Hello, now_s: float) -> None:
        entry = BrokerEntry(hello.url, hello.site, hello.run_id, BrokerState.JOINING)
        self._granted_s[hello.broker] = now_s
        self._reign.ledger.write_broker(hello.broker, entry)

    def _restart(self, name: str, entry: BrokerEntry, hello: bus.Hello) -> None:
        """The server runs anew, with nothing in its memory: give it its records back."""
        self._membership_at.pop(name, None)
        self._reign.forget(name)
        self._reign.ledger.write_broker(name, msgspec.structs.replace(entry, run_id=hello.run_id, url=hello.url))

    # --- giving up

    def _give_up(self, name: str, now_s: float) -> None:
        """Fence a broker by force, if there is another one to take its topics."""
        entry = self._reign.journal.brokers[name]
        membership = self._reign.ledger.membership()
        others = {broker for broker in self.carriers() - {name} if not self._reign.ledger.pending(broker_key(broker))}
        if entry.state is not BrokerState.JOINING and not others:
            return
        changes: dict[str, Entry] = {broker_key(name): msgspec.structs.replace(entry, state=BrokerState.DEAD)}
        brokers = {broker: info for broker, info in membership.brokers.items() if broker != name}
        ring = tuple(broker for broker in membership.ring if broker != name)
        changes[MEMBERSHIP_KEY] = self._changed(membership, brokers, ring)
        self._membership_at.pop(name, None)
        self._reign.ledger.write(changes, partial(self._gave_up, name))

    def _gave_up(self, name: str, now_s: float) -> None:
        self._reign.log(f"broker {name} is given up")
        self._joining_since_s.pop(name, None)
        self._reset = {(broker, run) for broker, run in self._reset if broker != name}
        self._restored = {(broker, run) for broker, run in self._restored if broker != name}
        self._reign.evacuate(name, now_s)

    def _changed(self, now: Membership, brokers: dict[str, BrokerInfo], ring: tuple[str, ...]) -> Membership:
        """The next membership; a changed ring begins closed for the topics whose directory changes."""
        previous = now.previous_ring
        if ring != now.ring and previous is None and now.ring:
            previous = now.ring
        return Membership(
            version=now.version + 1,
            term=self._reign.term,
            brokers=brokers,
            ring=ring,
            previous_ring=previous,
            store_url=self._reign.store_url,
        )

    # --- every tick

    def tick(self, now_s: float) -> None:
        for name, entry in self._reign.journal.brokers.items():
            if entry.state is BrokerState.DEAD or self._reign.ledger.pending(broker_key(name)):
                continue
            if now_s - self._granted_s.get(name, now_s) > self._reign.timing.dead_s:
                self._give_up(name, now_s)
            else:
                self._set_up(name, entry, now_s)
        if not self._reign.ledger.pending(MEMBERSHIP_KEY):
            self._drive_ring(now_s)

    def _set_up(self, name: str, entry: BrokerEntry, now_s: float) -> None:
        """Do the next step that this broker lacks to be ready."""
        run = (name, entry.run_id)
        hello = self._hellos.get(name)
        joining = entry.state is BrokerState.JOINING
        if hello is None or hello.run_id != entry.run_id:
            return
        if joining and run not in self._reset:
            self._order_reset(name, run, now_s)
        elif joining and name not in self._reign.ledger.membership().brokers:
            self._introduce(name, entry)
        elif self._membership_at.get(name, -1) < self._reign.journal.membership.version:
            self._order_membership(name, now_s)
        elif not hello.ready and run not in self._restored:
            self._order_records(name, run, now_s)
        elif not hello.ready:
            self._order_mark(name, entry.run_id, now_s)

    def _introduce(self, name: str, entry: BrokerEntry) -> None:
        """Tell clients of the broker, so that pattern subscribers attach before topics go there."""
        membership = self._reign.ledger.membership()
        brokers = {**membership.brokers, name: BrokerInfo(entry.url, entry.site, membership.version + 1)}
        self._reign.ledger.write({MEMBERSHIP_KEY: self._changed(membership, brokers, membership.ring)})

    def _order_reset(self, name: str, run: tuple[str, str], now_s: float) -> None:
        def done(answer: bus.Answer, at_s: float) -> None:
            self._reset.add(run)
            hello = self._hellos.get(name)
            if hello is not None:  # what it said of its ready key was true of its former life
                self._hellos[name] = msgspec.structs.replace(hello, ready=False)

        make = partial(bus.Reset, term=self._reign.term)
        self._reign.orders.need(("reset", run), name, make, done, now_s)

    def _order_membership(self, name: str, now_s: float) -> None:
        membership = self._reign.journal.membership

        def done(answer: bus.Answer, at_s: float) -> None:
            if self.alive(name):
                self._membership_at[name] = answer.versions[""]

        make = partial(bus.InstallMembers, term=self._reign.term, membership=membership)
        self._reign.orders.need(("members", name, membership.version), name, make, done, now_s)

    def _order_records(self, name: str, run: tuple[str, str], now_s: float) -> None:
        wanted = dict(records_for(name, self._reign.journal, self._reign.term))
        self._reign.restore(name, wanted, partial(self._restored.add, run), now_s)

    def _order_mark(self, name: str, run_id: str, now_s: float) -> None:
        make = partial(bus.MarkReady, term=self._reign.term, run_id=run_id)
        self._reign.orders.need(("mark", name, run_id), name, make, lambda answer, at_s: None, now_s)

    # --- the ring

    def _drive_ring(self, now_s: float) -> None:
        membership = self._reign.journal.membership
        if membership.previous_ring is None:
            self._extend_ring(membership, now_s)
        elif all(self._membership_at.get(name, -1) >= membership.version for name in self._settled_brokers()):
            self._hand_over(membership, now_s)

    def _settled_brokers(self) -> list[str]:
        """The brokers that clients may be using."""
        return [name for name in self._reign.journal.membership.brokers if self.alive(name)]

    def _extend_ring(self, membership: Membership, now_s: float) -> None:
        brokers = self._reign.journal.brokers
        ready = [name for name, entry in brokers.items() if self._may_carry(name, entry, now_s)]
        if not ready:
            return
        ring = tuple(sorted({*membership.ring, *ready}))
        changes: dict[str, Entry] = {
            broker_key(name): msgspec.structs.replace(brokers[name], state=BrokerState.MEMBER) for name in ready
        }
        changes[MEMBERSHIP_KEY] = self._changed(membership, dict(membership.brokers), ring)
        self._reign.log(f"{', '.join(ready)} joined the ring")
        self._reign.ledger.write(changes)

    def _may_carry(self, name: str, entry: BrokerEntry, now_s: float) -> bool:
        """Whether a joining broker is ready and the pattern subscribers are there too, or took too long."""
        hello = self._hellos.get(name)
        if entry.state is not BrokerState.JOINING or hello is None or self._reign.ledger.pending(broker_key(name)):
            return False
        if not hello.ready or (name, entry.run_id) not in self._reset or self._reign.names(name):
            return False
        since_s = self._joining_since_s.setdefault(name, now_s)
        others = self.carriers()
        for broker in (name, *sorted(others)):
            self._count_patterns(broker, now_s)
        if now_s - since_s > self._reign.timing.ready_s:
            return True
        if not {name, *others} <= self._patterns.keys():
            return False
        return self._patterns[name] >= max((self._patterns[broker] for broker in others), default=0)

    def _count_patterns(self, name: str, now_s: float) -> None:
        def done(answer: bus.Answer, at_s: float) -> None:
            self._patterns[name] = answer.counts[""][0]

        make = partial(bus.Count, term=self._reign.term, epochs={"": 0})
        self._reign.orders.need(("patterns", name), name, make, done, now_s)

    def _hand_over(self, membership: Membership, now_s: float) -> None:
        """Collect the records of topics that change their directory, install them at the new one, then open."""
        old, new = membership.previous_ring or (), membership.ring
        collected = self._collected.setdefault(membership.version, set())
        waiting = [name for name in old if self.carries(name) and name not in collected]
        for name in waiting:
            self._order_collect(name, membership, now_s)
        if waiting:
            return
        if self._handed_over[0] != membership.version:
            self._handed_over = (membership.version, set())
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
        done = self._handed_over[1]
        before, after = ring_of(old), ring_of(new)
        missing: dict[str, dict[str, records.Record]] = {}
        switching = False
        for topic, entry in self._reign.journal.topics.items():
            name = topic.encode()
            owner = after.owner(name)
            if topic in done or before.owner(name) == owner or not self.carries(owner):
                continue
            if entry.move is not None and entry.move.phase is Phase.SWITCH:
                switching = True  # it tells the new directory itself when it settles
                continue
            missing.setdefault(owner, {})[topic] = records.settled(entry.placement, self._reign.term)
        for owner, wanted in missing.items():
            self._reign.restore(owner, wanted, partial(done.update, wanted), now_s)
        return not missing and not switching
