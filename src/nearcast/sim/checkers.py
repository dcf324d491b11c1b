"""Checkers: the invariants of docs/protocol.md, each independent of the system and of the others.

A checker reads the history and the programs' notes, and returns a text for each violation. The planted bugs in
`tests/sim/mutations*.py` remove one rule of the system at a time, to show that the checkers notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from nearcast.core.model.message import Gap, Interrupted, Message
from nearcast.core.model.names import decode_topic
from nearcast.errors import AccessDenied
from nearcast.sim.faults import Profile
from nearcast.sim.kept import check_kept
from nearcast.sim.network import WALL_BEGINS_S
from nearcast.sim.programs import SECRET
from nearcast.sim.reading import check_read

if TYPE_CHECKING:
    from nearcast.sim.history import Run
    from nearcast.sim.programs import Publication, Subscriber
    from nearcast.sim.world import World


Checker = Callable[["World"], list[str]]

# How far times from programs' clocks may be off, because the clocks drift.
DRIFT_S = 0.1


def check_servers(world: World) -> list[str]:
    """Invariants 1, 3 and 10: violations that the history noticed as they happened."""
    return list(world.history.faults)


def check_acknowledged(world: World) -> list[str]:
    """Invariant 2: an acknowledged message ran on every target of one epoch before that target's next switch."""
    wrong = []
    for publication in _acknowledged(world):
        runs = world.history.runs.get((publication.publisher, publication.topic, publication.sequence), [])
        if not any(_complete(world, publication, epoch, runs) for epoch in {run.epoch for run in runs}):
            wrong.append(f"invariant 2: {_name(publication)} was acknowledged but ran only as {runs}")
    return wrong


def _complete(world: World, publication: Publication, epoch: int, runs: list[Run]) -> bool:
    placement = world.history.placements.get((publication.topic, epoch))
    if placement is None:
        return False
    counted = {run.server for run in runs if run.epoch == epoch and run.record_epoch <= epoch}
    return counted >= set(placement.writers(publication.publisher))


def check_ready(world: World) -> list[str]:
    """Invariant 4: at the first switch of an unforced move every attached reader holds the new placement."""
    by_name = {subscriber.name: subscriber for subscriber in world.subscribers}
    return [
        f"invariant 4: {unready.subscriber} did not hold epoch {unready.epoch} of {unready.topic!r} at its switch"
        for unready in world.history.unready
        if by_name[unready.subscriber].left_s is None  # a subscriber that left may not have noticed that it was cut off
        and not _interrupted(by_name[unready.subscriber], unready.at_s, unready.at_s + DRIFT_S)
    ]


def check_order(world: World) -> list[str]:
    """Invariant 5: deliveries of a publisher are contiguous except for Gaps, and no Gap covers a delivered number."""
    wrong = []
    for subscriber in world.subscribers:
        last: dict[tuple[str, int], int] = {}
        for topic, publisher, first, end in _numbers(subscriber):
            key = (topic, publisher)
            if key in last and not _follows(world, topic, publisher, last[key], first):
                wrong.append(f"invariant 5: {subscriber.name} got {first} of {publisher:x} after {last[key]}")
            last[key] = end
    return wrong


def _numbers(subscriber: Subscriber) -> Iterator[tuple[str, int, int, int]]:
    """(topic, publisher, first, last) of all messages and Gaps, in the order of arrival."""
    for _, event in subscriber.events:
        if isinstance(event, Message) and event.publisher is not None and event.sequence is not None:
            yield event.topic, event.publisher, event.sequence, event.sequence
        elif isinstance(event, Gap):
            yield event.topic, event.publisher, event.first, event.last


def _follows(world: World, topic: str, publisher: int, last: int, first: int) -> bool:
    """Whether nothing is missing in between: every number there was given up or never used.

    Messages missing from a line that its publisher has forgotten are covered by invariant 6.
    """
    begun = [number for number in world.history.begun[publisher, topic.encode()] if last < number <= first]
    missing = range(max(begun, default=last + 1), first)
    return first > last and world.numbers(topic, publisher).isdisjoint(missing)


def check_owed(world: World) -> list[str]:
    """Invariant 6: every acknowledged message owed is delivered, in a Gap, or inside an Interrupted."""
    wrong = []
    acknowledged = _acknowledged(world)
    for subscriber in world.subscribers:
        if subscriber.joined_s is None:
            continue
        delivered, gaps = _received(subscriber)
        for publication in acknowledged:
            if not _owed(subscriber, publication):
                continue
            key = (decode_topic(publication.topic), publication.publisher, publication.sequence)
            if key in delivered or any(_covers(gap, key) for gap in gaps):
                continue
            assert publication.acknowledged_s is not None
            if not _interrupted(subscriber, publication.published_s, publication.acknowledged_s):
                wrong.append(f"invariant 6: {subscriber.name} misses {_name(publication)}, and no loss was reported")
    return wrong


def _owed(subscriber: Subscriber, publication: Publication) -> bool:
    assert subscriber.joined_s is not None
    if publication.given_up or publication.published_s <= subscriber.joined_s:
        return False
    if not subscriber.pattern and publication.topic != subscriber.topic:
        return False
    return subscriber.left_s is None


def _received(subscriber: Subscriber) -> tuple[set[tuple[str, int, int]], list[Gap]]:
    delivered: set[tuple[str, int, int]] = set()
    gaps = []
    for _, event in subscriber.events:
        if isinstance(event, Message) and event.publisher is not None and event.sequence is not None:
            delivered.add((event.topic, event.publisher, event.sequence))
        elif isinstance(event, Gap):
            gaps.append(event)
    return delivered, gaps


def _covers(gap: Gap, key: tuple[str, int, int]) -> bool:
    return gap.topic == key[0] and gap.publisher == key[1] and gap.first <= key[2] <= gap.last


def _interrupted(subscriber: Subscriber, from_s: float, to_s: float) -> bool:
    """Whether an Interrupted reported that the subscriber was not attached at some moment of this time."""
    since_s: float | None = None
    for _, event in subscriber.events:
        if not isinstance(event, Interrupted):
            continue
        began_s = event.since_s - WALL_BEGINS_S
        since_s = began_s if since_s is None else min(since_s, began_s)
        if event.until_s is not None:
            if since_s - DRIFT_S <= to_s and from_s <= event.until_s - WALL_BEGINS_S:
                return True
            since_s = None
    return since_s is not None and since_s - DRIFT_S <= to_s


def check_duplicates(world: World) -> list[str]:
    """Guarantee 1: nothing is delivered twice."""
    wrong = []
    for subscriber in world.subscribers:
        seen: set[tuple[str, int, int]] = set()
        for _, event in subscriber.events:
            if isinstance(event, Message) and event.publisher is not None and event.sequence is not None:
                key = (event.topic, event.publisher, event.sequence)
                if key in seen:
                    wrong.append(f"invariant 5: {subscriber.name} got {key} twice")
                seen.add(key)
    return wrong


def check_finished(world: World) -> list[str]:
    """Invariant 7: every move ends; nothing is held, unacknowledged or awaited forever; nothing is left over."""
    return [f"invariant 7: {what}" for what in world.unfinished()]


def check_unseen(world: World) -> list[str]:
    """Guarantee 1: without faults, moves are invisible. No Gap, no Interrupted, nothing forced."""
    if world.plan.profile is not Profile.CALM or world.plan.boundaries:
        return []
    events = [
        f"guarantee 1: {subscriber.name} got {event} although nothing failed"
        for subscriber in world.subscribers
        for _, event in subscriber.events
        if isinstance(event, (Gap, Interrupted))
    ]
    return events + [
        f"guarantee 1: a move of {topic!r} was forced although nothing failed"
        for topic in world.history.forced
        # Moves do not wait for a client that has more topics than it can attach to in T_ready.
        if not any(topic in program.machine.topic_subscribers for program in world.many_topics)
    ]


def check_leases(world: World) -> list[str]:
    """Invariant 8: nothing is acknowledged by a broker that was given up before the message ran there."""
    wrong = []
    for publication in _acknowledged(world):
        runs = world.history.runs.get((publication.publisher, publication.topic, publication.sequence), [])
        good = [run for run in runs if not world.history.was_given_up(run.server, run.at_s)]
        if not any(_complete(world, publication, epoch, good) for epoch in {run.epoch for run in good}):
            wrong.append(f"invariant 8: {_name(publication)} was acknowledged by a broker that had been given up")
    return wrong


def check_refusals(world: World) -> list[str]:
    """Invariant 9: a request for an unavailable topic gets an error, and nothing else is affected."""
    wrong = []
    for publisher in world.publishers:
        for publication in publisher.publications:
            if publication.topic != SECRET:
                continue
            if publication.acknowledged_s is not None:
                wrong.append(f"invariant 9: {_name(publication)} was acknowledged although it is forbidden")
            elif not publication.failed and not publication.given_up:
                wrong.append(f"invariant 9: {_name(publication)} is forbidden, but got no error")
    for subscriber in world.subscribers:
        if subscriber.tries_forbidden and not isinstance(subscriber.failed, AccessDenied):
            wrong.append(f"invariant 9: {subscriber.name} got {subscriber.failed} for a forbidden topic")
    return wrong


def check_senders(world: World) -> list[str]:
    """Invariant 11: a message arrives with the name and the payload it was published with, even in a repair."""
    users = {publisher.machine.client_id: publisher.user for publisher in world.publishers}
    return [
        f"invariant 11: {subscriber.name} got {event.payload!r} of {event.user!r} from {event.publisher:x}"
        for subscriber in world.subscribers
        for _, event in subscriber.events
        if isinstance(event, Message) and event.publisher in users
        if event.user != users[event.publisher] or not event.payload.startswith(b"%x-" % event.publisher)
    ]


def check_plans(world: World) -> list[str]:
    """Guarantee 5: a plan is applied as a whole or not at all. No proposal of the simulator's policy can be applied."""
    _, entries = world.store.load_now()
    rented = [key for key, value in entries.items() if b'"state":"rented"' in value]
    return [f"guarantee 5: {key} was rented by a proposal that was refused" for key in rented]


def _acknowledged(world: World) -> list[Publication]:
    return [
        publication
        for publisher in world.publishers
        for publication in publisher.publications
        if publication.acknowledged_s is not None
    ]


def _name(publication: Publication) -> str:
    return f"{decode_topic(publication.topic)} {publication.publisher:x} #{publication.sequence}"


CHECKERS: dict[str, Checker] = {
    "servers": check_servers,
    "acknowledged": check_acknowledged,
    "ready": check_ready,
    "order": check_order,
    "owed": check_owed,
    "duplicates": check_duplicates,
    "finished": check_finished,
    "leases": check_leases,
    "refusals": check_refusals,
    "plans": check_plans,
    "unseen": check_unseen,
    "senders": check_senders,
    "kept": check_kept,
    "read": check_read,
}
