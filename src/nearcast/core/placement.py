"""A placement: which brokers carry a topic, how they share it, and in which epoch."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Mode(StrEnum):
    """How the brokers of a placement share a topic (Dynamoth section II.B)."""

    SINGLE = "single"  # one broker carries everything
    ALL_SUBSCRIBERS = "all_subscribers"  # subscribers attach to all brokers, a publisher writes to one
    ALL_PUBLISHERS = "all_publishers"  # publishers write to all brokers, a subscriber attaches to one
    HOMES = "homes"  # each client uses its home broker


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """(epoch, mode, brokers). Epochs of a topic only grow and never name two placements.

    `members` is the membership version it was decided with: a broker that joined later under one of these names is
    another broker, given up and come back, and must not be taken for the one that was meant.
    """

    epoch: int
    mode: Mode
    brokers: tuple[str, ...]
    members: int = 0

    @property
    def unplaced(self) -> bool:
        """Whether this looks like a first use: a topic no plan names, whose record lives on its directory alone."""
        return self.mode is Mode.SINGLE and self.epoch == self.members

    def writers(self, client: int) -> tuple[str, ...]:
        """The brokers this client must publish to, the same for the whole epoch."""
        if self.mode is Mode.ALL_SUBSCRIBERS:
            return (self.brokers[client % len(self.brokers)],)
        return self.brokers

    def readers(self, client: int) -> tuple[str, ...]:
        """The brokers this client must be attached to, the same for the whole epoch."""
        if self.mode is Mode.ALL_PUBLISHERS:
            # Another part of the id than for writers, so that the two choices are independent.
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
