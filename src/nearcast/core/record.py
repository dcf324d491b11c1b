"""The record of a topic on a server: its placement, and the move that is under way.

    STABLE(e,P) -> PREPARE(next=(e',Q)) -> SWITCH(e',Q, previous=P) -> SETTLED(e',Q)

The version grows at each step and is derived from the epochs, so two leaders that carry out the same journal
write the same versions: PREPARE of epoch e is 4e+2, SWITCH to e' is 4e', SETTLED is 4e'+1.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from nearcast.core.placement import Placement, single

# What can be: epochs have 32 bits in frames, versions follow from them, and numbers of orders begin with the term.
EPOCHS = 1 << 32
EPOCH_DIGITS = 10  # `scripts.py` knows it too
VERSIONS = 4 * EPOCHS
TERMS = 1 << 31


class Record(msgspec.Struct, frozen=True):
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
        """Whether it can be: who may use a topic may write to its control channel."""
        places = [place for place in (self.placement, self.next, self.previous) if place is not None]
        return (
            0 <= self.version < VERSIONS
            and 0 <= self.term < TERMS
            and all(place.brokers and 0 <= place.epoch < EPOCHS and 0 <= place.members < EPOCHS for place in places)
        )


class Unreadable(msgspec.Struct, frozen=True):
    """A record that only a newer version of nearcast can read, and what stands in the way."""

    text: str


@lru_cache(maxsize=256)
def first_use(members: int, broker: str) -> Record:
    """A topic nobody has placed yet lives on its directory; its epoch is the version of the membership."""
    return settled(single(members, broker, members), term=0)


def prepare(old: Placement, new: Placement, term: int) -> Record:
    return Record(version=4 * old.epoch + 2, term=term, placement=old, next=new)


def switch(old: Placement, new: Placement, term: int, *, forced: bool) -> Record:
    return Record(version=4 * new.epoch, term=term, placement=new, previous=old, forced=forced)


def settled(placement: Placement, term: int, *, forced: bool = False) -> Record:
    return Record(version=4 * placement.epoch + 1, term=term, placement=placement, forced=forced)
