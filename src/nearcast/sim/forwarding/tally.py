"""The count: what of a run was lost, delivered twice or out of order, for either protocol by the same rules.

It lives apart from both: it sees what publishers had acknowledged and what subscribers were given, and nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from nearcast.core.message import Message
from nearcast.sim.forwarding.world import ForwardingWorld
from nearcast.sim.programs import Publication
from nearcast.sim.world import World


class Received(msgspec.Struct, frozen=True):
    """What one subscriber was given, from its subscription until the end of the run."""

    topic: bytes
    joined_s: float | None  # None: it never was subscribed
    messages: list[tuple[int, int]]  # (publisher, sequence), in the order they came


class Tally(msgspec.Struct, frozen=True):
    acknowledged: int = 0  # messages
    owed: int = 0  # deliveries: an acknowledged message and a subscriber that was subscribed before it was published
    lost: int = 0  # of them never made
    duplicated: int = 0  # deliveries of what had been delivered
    reordered: int = 0  # deliveries behind a later message of the same publisher

    def __add__(self, other: Tally) -> Tally:
        return Tally(*map(sum, zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)))


def count(publications: Sequence[Publication], subscribers: Iterable[Received]) -> Tally:
    acknowledged = [publication for publication in publications if publication.acknowledged_s is not None]
    tally = Tally(acknowledged=len(acknowledged))
    for subscriber in subscribers:
        tally += _count_one(acknowledged, subscriber)
    return tally


def _count_one(acknowledged: Sequence[Publication], subscriber: Received) -> Tally:
    if subscriber.joined_s is None:
        return Tally()
    seen = set(subscriber.messages)
    owed = [
        publication
        for publication in acknowledged
        if publication.topic == subscriber.topic and publication.published_s > subscriber.joined_s
    ]
    lost = sum((publication.publisher, publication.sequence) not in seen for publication in owed)
    return Tally(
        owed=len(owed),
        lost=lost,
        duplicated=len(subscriber.messages) - len(seen),
        reordered=_count_reordered(subscriber.messages),
    )


def _count_reordered(messages: Iterable[tuple[int, int]]) -> int:
    highest: dict[int, int] = defaultdict(int)
    reordered = 0
    for publisher, sequence in messages:
        reordered += sequence < highest[publisher]
        highest[publisher] = max(sequence, highest[publisher])
    return reordered


# --- what programs of either world wrote down


def count_forwarding(world: ForwardingWorld) -> Tally:
    publications = [publication for sender in world.senders for publication in sender.publications]
    received = [Received(program.topic, program.joined_s, program.received) for program in world.receivers]
    return count(publications, received)


def count_nearcast(world: World) -> Tally:
    publications = [publication for program in world.publishers for publication in program.publications]
    received = []
    stayed = [program for program in world.subscribers if program.left_s is None]  # who leaves is not owed the rest
    for program in stayed:
        messages = [event for _, event in program.events if isinstance(event, Message)]
        numbered = [(m.publisher, m.sequence) for m in messages if m.publisher is not None and m.sequence is not None]
        received.append(Received(program.topic, program.joined_s, numbered))
    return count(publications, received)
