"""Rebuilding: derives the journal from what the brokers' servers have, after the store has lost it.

The newest membership among them says which brokers belong to the cluster. For each topic, the record with the highest
version says how far it had come: versions are never used twice, and a record is on servers only after its commit.

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
from itertools import chain, islice
from typing import TypeVar

import msgspec

from nearcast.core.model.journal import (
    MEMBERSHIP_KEY,
    BrokerEntry,
    BrokerState,
    Entry,
    Journal,
    Known,
    MoveEntry,
    Phase,
    TopicEntry,
    broker_key,
    topic_key,
)
from nearcast.core.model.membership import ERA, Membership
from nearcast.core.model.placement import Record
from nearcast.core.wire import bus

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
    topics = yield from _topics(journal, records)
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


def _topics(journal: Journal, found: Iterable[tuple[str, Record]]) -> Generator[None, None, dict[str, TopicEntry]]:
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
                newest[topic] = _entry(record)
        yield
    return newest


def _entry(record: Record) -> TopicEntry:
    if record.next is not None:
        return TopicEntry(record.placement, MoveEntry(Phase.PREPARE, record.next))
    if record.previous is not None:
        return TopicEntry(record.previous, MoveEntry(Phase.SWITCH, record.placement, record.forced))
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
    return Membership(
        version=version,
        term=term,
        brokers={name: info for name, info in newest.brokers.items() if name in states},
        ring=ring,
        previous_ring=previous if ring else None,
        store_url=store_url,
        cluster=newest.cluster,
        timers=newest.timers,  # clients use these; a leader with different ones sorts that out (`timers.py`)
    )


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
