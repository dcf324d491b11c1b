"""Placements, records and plans: which brokers carry a topic, in which epoch, and how that changes.

A `Plan` is a versioned mapping from topics to placements. Topics it does not name live on their directory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from functools import lru_cache

import msgspec


class Mode(StrEnum):
    """How the brokers of a placement share a topic (Dynamoth section II.B)."""

    SINGLE = "single"  # one broker carries everything
    ALL_SUBSCRIBERS = "all_subscribers"  # subscribers attach to all brokers, a publisher writes to one
    ALL_PUBLISHERS = "all_publishers"  # publishers write to all brokers, a subscriber attaches to one
    HOMES = "homes"  # each client uses its home broker


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """Which brokers carry a topic, how they share it, and in which epoch.

    Epochs of a topic only grow and never name two placements. `members` is the membership version it was decided with.
    A broker that joined later under one of these names is a different one, which was given up and came back, and must
    not be mistaken for the one that was meant.
    """

    epoch: int
    mode: Mode
    brokers: tuple[str, ...]
    members: int = 0

    @property
    def unplaced(self) -> bool:
        """Whether this looks like a first use: a topic no plan names, whose record lives only on its directory."""
        return self.mode is Mode.SINGLE and self.epoch == self.members

    def writers(self, client: int) -> tuple[str, ...]:
        """The brokers this client must publish to, the same for the whole epoch."""
        if self.mode is Mode.ALL_SUBSCRIBERS:
            return (self.brokers[client % len(self.brokers)],)
        return self.brokers

    def readers(self, client: int) -> tuple[str, ...]:
        """The brokers this client must be attached to, the same for the whole epoch."""
        if self.mode is Mode.ALL_PUBLISHERS:
            # A different part of the id than for writers, so that the two choices are independent.
            return (self.brokers[(client >> 32) % len(self.brokers)],)
        return self.brokers

    def same_place(self, other: Placement) -> bool:
        """Whether both put the topic on the same brokers in the same mode, whatever the epoch."""
        return self.mode is other.mode and self.brokers == other.brokers


def single(epoch: int, broker: str, members: int) -> Placement:
    return Placement(epoch, Mode.SINGLE, (broker,), members)


def problems(placement: Placement, known: frozenset[str]) -> list[str]:
    """What is wrong with a placement, in words for the person who asked for it."""
    found = []
    if not placement.brokers:
        found.append("names no broker")
    if len(set(placement.brokers)) != len(placement.brokers):
        found.append("names a broker twice")
    if placement.mode is Mode.SINGLE and len(placement.brokers) > 1:
        found.append("mode single takes one broker; choose all_subscribers or all_publishers for several")
    if placement.mode is Mode.HOMES:
        found.append("mode homes is not available yet; choose single, all_subscribers or all_publishers")
    unknown = [broker for broker in placement.brokers if broker not in known]
    if unknown:
        names = ", ".join(sorted(known)) or "none"
        found.append(f"unknown broker {', '.join(map(repr, unknown))}; the cluster has: {names}")
    return found


# --- records


# What is possible: epochs have 32 bits in frames, versions follow from them, and order numbers begin with the term.
EPOCHS = 1 << 32
EPOCH_DIGITS = 10  # also known to `core/wire/scripts.py`
VERSIONS = 4 * EPOCHS
TERMS = 1 << 31


class Record(msgspec.Struct, frozen=True):
    """What a server has for a topic: its placement, and the move in progress.

        STABLE(e,P) -> PREPARE(next=(e',Q)) -> SWITCH(e',Q, previous=P) -> SETTLED(e',Q)

    The version grows at each step and is derived from the epochs, so two leaders that carry out the same journal write
    the same versions: PREPARE of epoch e is 4e+2, SWITCH to e' is 4e', SETTLED is 4e'+1.
    """

    version: int
    term: int
    placement: Placement
    next: Placement | None = None
    previous: Placement | None = None
    forced: bool = False

    @property
    def epoch(self) -> int:
        return self.placement.epoch

    @property
    def well_formed(self) -> bool:
        """Whether it is possible: anyone who may use a topic may write to its control channel."""
        places = [place for place in (self.placement, self.next, self.previous) if place is not None]
        return (
            0 <= self.version < VERSIONS
            and 0 <= self.term < TERMS
            and all(place.brokers and 0 <= place.epoch < EPOCHS and 0 <= place.members < EPOCHS for place in places)
        )


class Unreadable(msgspec.Struct, frozen=True):
    """A record that only a newer version of nearcast can read, and the obstacle."""

    text: str


@lru_cache(maxsize=256)
def first_use(members: int, broker: str) -> Record:
    """A topic that was never placed lives on its directory; its epoch is the version of the membership."""
    return settled(single(members, broker, members), term=0)


def prepare(old: Placement, new: Placement, term: int) -> Record:
    return Record(version=4 * old.epoch + 2, term=term, placement=old, next=new)


def switch(old: Placement, new: Placement, term: int, *, forced: bool) -> Record:
    return Record(version=4 * new.epoch, term=term, placement=new, previous=old, forced=forced)


def settled(placement: Placement, term: int, *, forced: bool = False) -> Record:
    return Record(version=4 * placement.epoch + 1, term=term, placement=placement, forced=forced)


# --- plans


class Change(msgspec.Struct, frozen=True):
    """One topic's difference between two plans; None means the plan does not name the topic."""

    topic: str
    before: Placement | None
    after: Placement | None


class Plan(msgspec.Struct, frozen=True):
    """A versioned mapping from topics to placements."""

    version: int
    topics: Mapping[str, Placement]

    def diff(self, newer: Plan) -> list[Change]:
        """What differs in place or mode, sorted by topic. A different epoch alone is no change."""
        changes = []
        for topic in sorted(self.topics.keys() | newer.topics.keys()):
            before, after = self.topics.get(topic), newer.topics.get(topic)
            if before is None or after is None or not before.same_place(after):
                changes.append(Change(topic, before, after))
        return changes

    def validate(self, brokers: Collection[str]) -> list[str]:
        """What is wrong with the plan, one sentence per fault; empty if it can be applied."""
        known = frozenset(brokers)
        return [
            f"topic {topic!r}: {problem}"
            for topic, placement in sorted(self.topics.items())
            for problem in problems(placement, known)
        ]
