"""The journal: what the controller has decided, as it stands in the store, and how a loss of it is detected.

Everything a new leader needs is here. Decisions are written before they are acted on, so any leader that reads the
journal can carry every move to its end: each broker's records follow from it (`records_for`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec

from nearcast.core.model import placement as records
from nearcast.core.model.membership import Membership, ring_of
from nearcast.core.model.placement import Placement, Record

# The position of the journal: the term in which the store was last found to have lost data, and the number of commits.
# Later positions are greater, even if commits are counted from the beginning after a loss.
Position: TypeAlias = tuple[int, int]
BEGINNING: Position = (0, 0)


class Phase(StrEnum):
    """How far a move is, as the journal has it."""

    PREPARE = "prepare"  # the next placement is announced; the move can still be given up
    SWITCH = "switch"  # decided: the old members are being fenced


class Pace(StrEnum):
    """When a move begins."""

    EAGER = "eager"
    LAZY = "lazy"  # begins up to T_lazy later, so that a broker does not get many at once


class MoveEntry(msgspec.Struct, frozen=True):
    """A move in progress.

    `told`: brokers outside its two placements that know of it, or of one before it that was lost with the store. They
    get the settled record too.
    """

    phase: Phase
    target: Placement
    forced: bool = False
    told: tuple[str, ...] = ()


class TopicEntry(msgspec.Struct, frozen=True):
    """A topic's placement, and its move if it is moving."""

    placement: Placement
    move: MoveEntry | None = None


class BrokerState(StrEnum):
    """The state of a broker in the cluster."""

    RENTED = "rented"  # requested from a provider; it has not said hello yet
    JOINING = "joining"  # known to clients, not yet in the ring, carries no topics
    MEMBER = "member"
    LEAVING = "leaving"  # its topics are being moved away, and it gets no new ones
    LEFT = "left"  # drained and gone; the same run of its server is not taken back
    DEAD = "dead"  # given up; it may join again as if it were new


class BrokerEntry(msgspec.Struct, frozen=True):
    """A broker: where it is, its state, and who wanted it."""

    url: str
    site: str
    run_id: str
    state: BrokerState
    capacity_bytes_per_s: float = 0.0  # outgoing bandwidth, as configured or calibrated; 0: not known
    rented: bool = False  # a provider started it, and is notified when it is no longer needed
    by_policy: bool = False  # LEAVING: a policy wants it gone, and may change its mind
    abandon: bool = False  # LEAVING: what it keeps of logs need not be read first
    messages_high_per_s: float = 0.0  # deliveries above which latency suffers, as profiled; 0: not known


class LossEntry(msgspec.Struct, frozen=True):
    """The store has lost data, and this journal was rebuilt from what the brokers had."""

    at_s: float  # wall clock
    term: int  # of the leader that rebuilt it
    text: str
    verified: bool = False  # every broker has been given the records that this journal says it should have
    acknowledged: bool = False  # the operator knows about it


class Journal(msgspec.Struct):
    """All entries of the store, by kind."""

    membership: Membership = msgspec.field(default_factory=lambda: Membership(version=0, term=0, brokers={}))
    topics: dict[str, TopicEntry] = msgspec.field(default_factory=dict)
    brokers: dict[str, BrokerEntry] = msgspec.field(default_factory=dict)
    loss: LossEntry | None = None  # the last one

    def position(self, version: int) -> Position:
        return (self.loss.term if self.loss is not None else 0, version)


Entry = TopicEntry | BrokerEntry | Membership | LossEntry

_TOPIC, _BROKER = "topic/", "broker/"
MEMBERSHIP_KEY, LOSS_KEY = "membership", "loss"


def topic_key(topic: str) -> str:
    return _TOPIC + topic


def broker_key(broker: str) -> str:
    return _BROKER + broker


def encode_entry(entry: Entry) -> bytes:
    return msgspec.json.encode(entry)


def read_journal(entries: Mapping[str, bytes]) -> Journal:
    journal = Journal()
    read_entries(journal, entries)
    return journal


def read_entries(journal: Journal, entries: Mapping[str, bytes]) -> None:
    """Add entries of the store, all or some of them."""
    for key, value in entries.items():
        apply(journal, key, decode_entry(key, value))


def decode_entry(key: str, value: bytes) -> Entry:
    if key.startswith(_TOPIC):
        return msgspec.json.decode(value, type=TopicEntry)
    if key.startswith(_BROKER):
        return msgspec.json.decode(value, type=BrokerEntry)
    if key == LOSS_KEY:
        return msgspec.json.decode(value, type=LossEntry)
    return msgspec.json.decode(value, type=Membership)


def apply(journal: Journal, key: str, entry: Entry) -> None:
    if isinstance(entry, TopicEntry):
        journal.topics[key.removeprefix(_TOPIC)] = entry
    elif isinstance(entry, BrokerEntry):
        journal.brokers[key.removeprefix(_BROKER)] = entry
    elif isinstance(entry, LossEntry):
        journal.loss = entry
    else:
        journal.membership = entry


def record_at(broker: str, topic: str, entry: TopicEntry, membership: Membership, term: int) -> Record | None:
    """The record this broker must carry for the topic by the journal; None if the topic does not concern it."""
    old, move = entry.placement, entry.move
    if broker in old.brokers:
        if move is None:
            return records.settled(old, term)
        if move.phase is Phase.PREPARE:
            return records.prepare(old, move.target, term)
        return records.switch(old, move.target, term, forced=move.forced)
    # The others are updated when all old members are fenced. Until then a directory sends joining clients to the old
    # members, which know more. It must not be without a record, or it would take the topic for a new one.
    return records.settled(old, term) if broker in _directories(topic, membership) else None


def _directories(topic: str, membership: Membership) -> set[str]:
    """The topic's directory by the current ring, and by the previous one while it changes: it may change back."""
    rings = (membership.ring, membership.previous_ring)
    return {ring_of(ring).owner(topic.encode()) for ring in rings if ring}


def records_for(broker: str, journal: Journal, term: int) -> Iterator[tuple[str, Record | None]]:
    """For all topics, the record a server must carry before clients may use it again, if any.

    The journal may change between two of them: a caller that takes them gradually gets each as it is at that time.
    """
    for topic in list(journal.topics):
        yield topic, record_at(broker, topic, journal.topics[topic], journal.membership, term)


# --- how a loss is detected


# Order numbers are 64 bits long and begin with the term: a message with a longer one is nonsense, and is ignored.
Term: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class Known(msgspec.Struct, frozen=True):
    """How far an agent or a controller has seen a cluster get, so that a store that has lost data is detected.

    Everything a leader does follows from a commit, and every message to an agent carries the journal's position at that
    time. So if the store is behind what any agent knows, it has lost something that had consequences. What no agent
    knows had no consequences, and is not missed. A controller hears all agents, even while it does not lead, and so
    notices as soon as it reads the journal.
    """

    cluster: str = ""  # empty: none is known
    members: int = -1  # the version of the membership
    term: Term = 0  # of the newest leader heard
    journal: Position = BEGINNING
    store: str = ""  # the URL of its store, in the leader's words

    def merged(self, other: Known) -> Known:
        """The combined knowledge of two parties that mean the same cluster."""
        return Known(
            self.cluster,
            max(self.members, other.members),
            max(self.term, other.term),
            max(self.journal, other.journal),
            self.store or other.store,
        )


def lost(known: Known, journal: Journal, version: int) -> bool:
    """Whether the journal, at this version, has lost something of what is known about its cluster.

    A blank journal has lost any cluster that anyone knows. So has a young one of another cluster in the same store: a
    broker that knew nothing was heard before those that do.
    """
    membership = journal.membership
    if not known.cluster or not membership.cluster:
        return bool(known.cluster)
    if known.cluster != membership.cluster:
        return known.store == membership.store_url != "" and known.members > membership.version
    return known.members > membership.version or known.journal > journal.position(version)
