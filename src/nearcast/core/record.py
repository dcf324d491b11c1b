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
VERSIONS = 4 * EPOCHS
TERMS = 1 << 31
MOVES_MAX = 1 << 24  # of one topic: one every second for half a year
LEADERS_MAX = 1 << 20  # since an agent, or the membership on its server, last heard of one


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
        """Whether it can be: anybody may write to a channel, and a first record to a server."""
        places = [place for place in (self.placement, self.next, self.previous) if place is not None]
        return (
            0 <= self.version < VERSIONS
            and 0 <= self.term < TERMS
            and all(place.brokers and 0 <= place.epoch < EPOCHS and 0 <= place.members < EPOCHS for place in places)
        )

    def follows_from(self, members: int, term: int) -> bool:
        """Whether a cluster with this version of the membership, and leaders up to this term, can have come so far.

        Anybody may write a first record. One far ahead would be taken for the newest there is, and have the cluster go
        on with epochs and terms above it, of which there are not enough.
        """
        latest = max(place.epoch for place in (self.placement, self.next) if place is not None)
        return latest < members + MOVES_MAX and self.term < term + LEADERS_MAX


class Unreadable(msgspec.Struct, frozen=True):
    """A record that only a newer version of nearcast can read, and what stands in the way; or no record at all."""

    text: str
    rubbish: bool = False  # no leader has written it


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
