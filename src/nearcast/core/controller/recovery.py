"""Recovery: a leader whose store has lost its data asks the brokers what they have, and rewrites the journal.

During a recovery no lease is granted and nothing moves: acknowledgements pause. It ends when every broker that the
newest membership names has reported everything it has; or T_dead after the first has, when no client counts on a broker
that was not heard. Those count as given up. If all are heard and nothing was moving, clients notice only the pause.

Everything else the store held is gone: users' registrations, and data not yet in datasets. So the loss stays in the
journal until an operator acknowledges it. Until then no user can register, because the name may be another user's.

The journal is rebuilt from what the brokers' servers have. The newest membership among them says which brokers belong
to the cluster. For each topic, the record with the highest version says how far it had come: versions are never used
twice, and a record is on servers only after its commit.

    PREPARE   the topic rests at P, and is about to move: the move goes on
    SWITCH    decided: the move goes on
    SETTLED   the topic rests

*What could be newer than anything found.* A record newer than the newest one found goes first to the members of the
placement that the found one names. So if all of them were asked, there was none. If one of a topic's members is
missing, the topic is moved by force, as from any broker that is gone: to an epoch no lower than the membership's
version, and so above every epoch that can have existed.

*Versions above everything that can have existed.* The membership continues with the first version of a new *era*, far
above every version and epoch found, so that no epoch of a first use that follows from it was ever used before. Servers
that are missing, and clients that have seen them, know only lower ones.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import TypeVar

import msgspec

from nearcast.core.controller.ledger import Ledger
from nearcast.core.controller.lives import life_ended
from nearcast.core.controller.office import Orders
from nearcast.core.model.journal import (
    LOSS_KEY,
    MEMBERSHIP_KEY,
    BrokerEntry,
    BrokerState,
    Entry,
    Journal,
    Known,
    LossEntry,
    MoveEntry,
    Phase,
    TopicEntry,
    broker_key,
    topic_key,
)
from nearcast.core.model.membership import ERA, Membership, parted
from nearcast.core.model.names import agent_channel
from nearcast.core.model.placement import Record
from nearcast.core.model.settings import CLOCKS, Timing
from nearcast.core.wire import bus

# --- rebuilding the journal


T = TypeVar("T")

PART = 10_000  # topics: some tens of milliseconds

_OUTSIDE = (BrokerState.RENTED, BrokerState.LEFT, BrokerState.DEAD)


class Found(msgspec.Struct, frozen=True):
    """What one broker's server had."""

    hello: bus.Hello
    membership: Membership
    records: Mapping[str, Record]


def newest_membership(journal: Journal, found: Iterable[Membership], known: Known) -> Membership:
    """Of the known cluster. A blank journal belongs to none."""
    blank = Membership(version=-1, term=0, brokers={}, cluster=known.cluster)
    ours = [each for each in (journal.membership, *found) if each.cluster == known.cluster]
    return max([blank, *ours], key=lambda membership: membership.version)


def rebuilding(
    journal: Journal, found: Mapping[str, Found], known: Known, term: int, store_url: str
) -> Generator[None, None, dict[str, Entry]]:
    """What to write so that the journal, blank or old, is the cluster's again.

    It pauses after every `PART` of the topics: all at once could take longer than a leadership lasts.
    """
    newest = newest_membership(journal, (each.membership for each in found.values()), known)
    there = {name: found[name] for name in newest.brokers if name in found}
    members = max(newest.version, known.members, 0)
    records = chain.from_iterable(each.records.items() for each in found.values())
    topics = yield from _topics(journal, records, tuple(sorted(there)))
    outside = there.keys() - set(newest.ring)
    highest, named = members, set[str]()
    for part in _parts(topics.values()):
        highest = max(highest, *map(_epoch, part))
        if outside:
            named.update(broker for entry in part for broker in _named(entry, newest))
        yield
    version = (highest // ERA + 1) * ERA
    states = _states(newest, sorted(there), named)
    membership = _membership(newest, states, version, term, store_url)
    changes: dict[str, Entry] = {MEMBERSHIP_KEY: membership}
    for some in _parts(topics.items()):
        changes |= {topic_key(topic): entry for topic, entry in some}
        yield
    changes |= {broker_key(name): entry for name, entry in _brokers(journal, newest, there, states).items()}
    return changes


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    left = iter(items)
    while part := list(islice(left, PART)):
        yield part


# --- topics


def _topics(
    journal: Journal, found: Iterable[tuple[str, Record]], there: tuple[str, ...]
) -> Generator[None, None, dict[str, TopicEntry]]:
    """The newest that is known about each topic."""
    highest: dict[str, Record] = {}
    for part in _parts(found):
        for topic, record in part:
            known = highest.get(topic)
            if known is None or known.version < record.version:
                highest[topic] = record
        yield
    newest = dict(journal.topics)
    for some in _parts(highest.items()):
        for topic, record in some:
            if topic not in newest or _version(newest[topic]) < record.version:
                newest[topic] = _entry(record, there)
        yield
    return newest


def _entry(record: Record, there: tuple[str, ...]) -> TopicEntry:
    if record.next is not None:
        return TopicEntry(record.placement, MoveEntry(Phase.PREPARE, record.next))
    if record.previous is not None:
        # It may have replaced a move that was given up, at whose brokers clients wait for its end: those are not known.
        return TopicEntry(record.previous, MoveEntry(Phase.SWITCH, record.placement, record.forced, there))
    return TopicEntry(record.placement)


def _version(entry: TopicEntry) -> int:
    """Of the record that the entry is about (`core/model/placement.py`)."""
    if entry.move is None:
        return 4 * entry.placement.epoch + 1
    return 4 * entry.placement.epoch + 2 if entry.move.phase is Phase.PREPARE else 4 * entry.move.target.epoch


def _epoch(entry: TopicEntry) -> int:
    return entry.move.target.epoch if entry.move is not None else entry.placement.epoch


def _named(entry: TopicEntry, membership: Membership) -> Iterator[str]:
    """The brokers that the topic is at, or moves to; not a later broker with the name of one that was given up."""
    for place in (entry.placement, entry.move.target if entry.move is not None else entry.placement):
        yield from (broker for broker in place.brokers if membership.has(broker, place))


# --- brokers


def _states(newest: Membership, there: list[str], named: set[str]) -> dict[str, BrokerState]:
    """What the brokers that are there were, and continue to be.

    A broker outside the ring that has topics was leaving; if no other is left to take them, it stays. One without
    topics was joining, or is as good as gone.
    """
    carrying = [name for name in there if name in named and not newest.brokers[name].leaving]
    members = [name for name in newest.ring if name in there] or carrying
    return {
        name: BrokerState.MEMBER
        if name in members
        else BrokerState.LEAVING
        if name in carrying or (newest.brokers[name].leaving and members)
        else BrokerState.JOINING
        for name in there
    }


def _membership(
    newest: Membership, states: Mapping[str, BrokerState], version: int, term: int, store_url: str
) -> Membership:
    ring = tuple(sorted(name for name, state in states.items() if state is BrokerState.MEMBER))
    previous = newest.previous_ring
    if ring != newest.ring and previous is None:
        previous = newest.ring or None
    after = Membership(
        version=version,
        term=term,
        brokers={name: info for name, info in newest.brokers.items() if name in states},
        ring=ring,
        previous_ring=previous if ring else None,
        store_url=store_url,
        cluster=newest.cluster,
        logs=newest.logs,
        logs_version=version if newest.logs else 0,  # whatever was kept before, servers take only what is kept since
        timers=newest.timers,  # clients use these; a leader with different ones sorts that out (`timers.py`)
    )
    gone = sorted(newest.brokers.keys() - states.keys())
    return parted(newest, after, [life_ended(newest, name, version) for name in gone])


def _brokers(
    journal: Journal, newest: Membership, there: Mapping[str, Found], states: Mapping[str, BrokerState]
) -> dict[str, BrokerEntry]:
    entries: dict[str, BrokerEntry] = {}
    for name, info in newest.brokers.items():
        before = journal.brokers.get(name, BrokerEntry(info.url, info.site, "", BrokerState.DEAD))
        if name in there:
            entries[name] = _present(there[name].hello, before, states[name])
        else:
            entries[name] = msgspec.structs.replace(before, state=BrokerState.DEAD)
    for name, before in journal.brokers.items():
        if name not in newest.brokers and before.state not in _OUTSIDE:  # it came while the journal was a different one
            entries[name] = msgspec.structs.replace(before, state=BrokerState.DEAD)
    return entries


def _present(hello: bus.Hello, before: BrokerEntry, state: BrokerState) -> BrokerEntry:
    capacity = before.capacity_bytes_per_s or hello.capacity_bytes_per_s
    return msgspec.structs.replace(before, run_id=hello.run_id, state=state, capacity_bytes_per_s=capacity)


# --- the recovery


class _Recalled:
    """What the server of one broker has, as far as it has been reported."""

    __slots__ = ("after", "at_s", "complete", "hello", "membership", "records")

    def __init__(self, hello: bus.Hello, now_s: float) -> None:
        self.hello = hello
        self.membership: Membership | None = None
        self.records: dict[str, Record] = {}
        self.after = ""  # the last topic
        self.complete = False
        self.at_s = now_s  # when it was last heard


class Recovery:
    """Inputs: heard, tick. Outputs: outbox, alarms, and a ledger with something to commit when it is over."""

    def __init__(
        self, ledger: Ledger, known: Known, *, timing: Timing, store_url: str, wall_offset_s: float, now_s: float
    ) -> None:
        self.ledger = ledger
        self.outbox: list[tuple[bytes, bytes]] = []
        self.alarms = [
            f"THE STORE HAS LOST DATA of cluster {known.cluster}: it has {ledger.version} commits of its journal, which"
            f" had {known.journal[1]} or more; asking the brokers what they have"
        ]
        self._known = known
        self._timing = timing
        self._store_url = store_url
        self._wall_offset_s = wall_offset_s
        self._since_s = now_s
        self.orders = Orders(ledger.term, timing.retry_s)
        self._recalled: dict[str, _Recalled] = {}
        self._first_s: float | None = None  # when the first broker had reported everything, or said that it has nothing
        self._writing: Iterator[None] | None = None
        self.term_found = 0  # the highest of any record: with a lower one, nothing can be installed in its place

    # --- inputs

    def heard(self, message: bus.ToController, now_s: float) -> None:
        if isinstance(message, bus.Hello):
            if message.answering:
                self._greeted(message, now_s)
        elif isinstance(message, bus.Answer):
            self.orders.answered(message, now_s)
        self.tick(now_s)

    def tick(self, now_s: float) -> None:
        if self._writing is None:
            self._ask_all(now_s)
            if self._over(now_s):
                self._writing = self._write(now_s)
        if self._writing is not None:
            next(self._writing, None)  # some of it in every tick: the leadership is renewed in between

    def mistaken(self, known: Known | None) -> bool:
        """Whether a blank journal should belong to another cluster, and still can."""
        blank = not self.ledger.journal.membership.cluster
        return blank and self._writing is None and known is not None and known.cluster != self._known.cluster

    # --- asking

    def _ask_all(self, now_s: float) -> None:
        for name, recalled in self._recalled.items():
            if not recalled.complete:
                self._ask(name, recalled, now_s)
        self._flush_orders()

    def _greeted(self, hello: bus.Hello, now_s: float) -> None:
        if hello.known.cluster != self._known.cluster:
            self._heard_all(now_s)
            return
        recalled = self._recalled.get(hello.broker)
        if recalled is None or recalled.hello.run_id != hello.run_id:
            self._recalled[hello.broker] = _Recalled(hello, now_s)
        else:
            recalled.hello, recalled.at_s = hello, now_s  # it may be a different agent

    def _heard_all(self, now_s: float) -> None:
        self._first_s = now_s if self._first_s is None else self._first_s

    def _ask(self, name: str, recalled: _Recalled, now_s: float) -> None:
        after = recalled.after

        def done(answer: bus.Answer, at_s: float) -> None:
            if self._recalled.get(name) is not recalled or recalled.after != after:
                return  # from an earlier run of the server, or the same batch again
            recalled.at_s = at_s
            recalled.records.update(answer.records)
            recalled.after = max(answer.records, default=after)
            self.term_found = max(self.term_found, *(record.term for record in answer.records.values()), 0)
            recalled.membership = recalled.membership or answer.membership
            recalled.complete = not answer.more
            if recalled.complete:
                self._heard_all(at_s)

        make = partial(bus.Recall, term=self.ledger.term, after=after)
        self.orders.need(("recall", name, recalled.hello.run_id, after), name, make, done, now_s)

    def _flush_orders(self) -> None:
        for broker, order in self.orders.outgoing:
            channel = agent_channel(broker, self._recalled[broker].hello.agent)
            self.outbox.append((channel, bus.encode(order)))
        self.orders.outgoing.clear()

    # --- the end

    def _over(self, now_s: float) -> bool:
        if now_s - self._since_s < self._timing.heartbeat_s:
            return False  # by then every agent has said hello, and which cluster it belongs to
        if any(not recalled.complete and self._waits(recalled, now_s) for recalled in self._recalled.values()):
            return False
        newest = newest_membership(self.ledger.journal, self._memberships(), self._known)
        answered = all(name in self._recalled and self._recalled[name].complete for name in newest.brokers)
        if newest.brokers and answered and newest.version >= self._known.members:  # else others joined later
            return True
        if self._first_s is None:
            return False  # no broker is there that could take the topics of another
        # A blank store lets us lead at once: the previous leader may not know yet, and grants for up to `leader_s`.
        return now_s - max(self._first_s, self._since_s + CLOCKS * self._timing.leader_s) > self._dead_s

    @property
    def _dead_s(self) -> float:
        """T_dead, long enough for any lease that clients use."""
        memberships = (self.ledger.journal.membership, *self._memberships())
        return max(self._timing.dead_s, *(each.timers.dead_s for each in memberships if each.timers is not None), 0.0)

    def _waits(self, recalled: _Recalled, now_s: float) -> bool:
        return now_s - recalled.at_s <= self._dead_s

    def _memberships(self) -> list[Membership]:
        return [recalled.membership for recalled in self._recalled.values() if recalled.membership is not None]

    def _write(self, now_s: float) -> Iterator[None]:
        found = {
            name: Found(recalled.hello, recalled.membership, recalled.records)
            for name, recalled in self._recalled.items()
            if recalled.complete and recalled.membership is not None and self._is_ours(recalled.membership)
        }
        term = self.ledger.term
        expected = newest_membership(self.ledger.journal, self._memberships(), self._known).brokers
        changes = yield from rebuilding(self.ledger.journal, found, self._known, term, self._store_url)
        missing = ", ".join(name for name in expected if name not in found)
        text = (
            f"the store had {self.ledger.version} commits of a journal that had {self._known.journal[1]} or more;"
            f" it was rebuilt from brokers {', '.join(sorted(found)) or '(none)'}"
            + (f"; without {missing}, which did not answer" if missing else "")
        )
        changes[LOSS_KEY] = LossEntry(now_s + self._wall_offset_s, term, text)
        self.alarms.append(text)
        self.ledger.write(changes)

    def _is_ours(self, membership: Membership) -> bool:
        return membership.cluster == self._known.cluster
