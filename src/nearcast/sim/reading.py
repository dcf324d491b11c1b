"""The check of what the readers of a simulation got (invariant 13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from nearcast.core.client.log_reader import Start, began
from nearcast.core.model.message import Lost
from nearcast.sim.faults import Profile
from nearcast.sim.kept import held_lives, kept_in, left_lives, owner_of

if TYPE_CHECKING:
    from nearcast.sim.history import Number
    from nearcast.sim.readers import Reader
    from nearcast.sim.world import World


def check_read(world: World) -> list[str]:
    """Invariant 13: a reader gets what is kept once, in its publishers' order, or hears that it is lost."""
    wrong = []
    for reader in world.readers.all:
        if reader.group or reader.dropped:
            wrong += _check_first_times(world, reader)
        elif reader.process.alive and reader.log:
            wrong += _check_order(world, reader)
            wrong += _missing(world, reader.log, reader.name, [reader])
            wrong += _check_losses(world, reader)
    return wrong + missed_by_groups(world) + _false_reports(world) + _not_held(world)


def missed_by_groups(world: World) -> list[str]:
    """What no member of a group got."""
    return [
        missed
        for (log, group), members in world.readers.groups().items()
        if not world.logs.is_dropped(log)
        for missed in _missing(world, log, f"the group {group}", members)
    ]


def _check_order(world: World, reader: Reader) -> list[str]:
    """What was kept in several parts, because a life was lost, may be read several times.

    Not so with a quorum, unless a broker has left for good while the publisher slept: nobody can tell it any more.
    """
    sleepers = world.plan.profile not in (Profile.CALM, Profile.CONTROL, Profile.STORE, Profile.RIGHTS)
    name, left, quorum = reader.name, left_lives(world), world.logs.quorum_of(reader.log)
    wrong = _check_first_times(world, reader)
    for number, times in Counter(reader.numbers).items():
        lives = _lives(world, reader.log, number)
        gone = sleepers and any(life in left for life in lives)
        if times > (len(lives) if quorum == 1 or gone else 1):
            wrong.append(f"invariant 13: {name} got {_text(number)} {times} times")
    return wrong


def _check_first_times(world: World, reader: Reader) -> list[str]:
    """The order; what was published before a reader had begun at the end may come late.

    Retention removes marks too: behind what it has removed, nothing ties a part to the others.
    """
    if _is_passed_by_retention(world, reader):
        return []
    name, early = reader.name, set(_not_owed(world, reader))
    wrong, last = [], dict[tuple[bytes, int], int]()
    for topic, publisher, sequence in (number for number in dict.fromkeys(reader.numbers) if number not in early):
        before = last.get((topic, publisher), 0)
        if sequence < before:
            wrong.append(f"invariant 13: {name} got {_text((topic, publisher, sequence))} after {before}")
        last[topic, publisher] = max(before, sequence)
    return wrong


def _is_passed_by_retention(world: World, reader: Reader) -> bool:
    """Whether retention has removed something before the reader had read it, since it began or before that."""
    if not world.logs.expires(reader.log):
        return False
    members = world.readers.groups().get((reader.log, reader.group), []) if reader.group else [reader]
    got = {number for member in members for number in member.numbers_in}
    lives = {life for life, _ in reader.numbers_in}
    streams = ((owner_of(stream), numbers) for stream, numbers in world.history.streams.items())
    return any(
        log == reader.log and life in lives and any((life, number) not in got for number in numbers)
        for (log, life), numbers in streams
    )


def _missing(world: World, log: str, name: str, readers: Collection[Reader]) -> list[str]:
    """What is kept and was neither read nor reported as lost.

    With a quorum, what a server had kept alone is gone when it dies, and its publisher knows. Retention may have
    removed the rest.
    """
    got = {number for reader in readers for number in reader.numbers}
    got |= {number for reader in readers for number in _not_owed(world, reader)}
    lost = {life for reader in readers for life in reader.lost}
    missing = [
        number
        for number in world.history.kept_in
        if number not in got and any(life not in lost for life in _lives(world, log, number))
    ]
    if missing and (world.logs.quorum_of(log) > 1 or world.logs.expires(log)):
        there = {
            (topic, publisher, n)
            for stream, topic, publisher, found in kept_in(world)
            if owner_of(stream)[0] == log
            for n in found
        }
        missing = [number for number in missing if number in there]
    return [f"invariant 13: {name} misses {_text(number)}, which is kept" for number in missing]


def _not_owed(world: World, reader: Reader) -> list[Number]:
    """What was published before a reader had begun that wants only what comes then."""
    if reader.read.start is not Start.LATEST or reader.began_s is None:
        return []
    publications = [publication for publisher in world.publishers for publication in publisher.publications]
    return [
        (publication.topic, publication.publisher, publication.sequence)
        for publication in publications
        if publication.published_s <= reader.began_s
    ]


def _check_losses(world: World, reader: Reader) -> list[str]:
    """What a reader misses of a part in which it has read something is as much as it was told, and no more.

    What retention had removed before it began is not reported.
    """
    wrong = []
    for stream, numbers in world.history.streams.items():
        log, life = owner_of(stream)
        if life in held_lives(world):
            continue  # what the server alone had is gone, and nobody owes it
        losses = [got.event for got in reader.events if isinstance(got.event, Lost) and got.event.part == life]
        told = [loss.count for loss in losses if loss.count is not None]
        got = [number for part, number in reader.numbers_in if part == life]
        if log != reader.log or len(told) < len(losses) or not got:
            continue
        missed = [number for number in numbers[numbers.index(got[0]) :] if number not in set(got)]
        before = numbers.index(got[0])
        if not len(missed) <= sum(told) <= len(missed) + before + world.history.skipped[stream]:
            wrong.append(f"invariant 13: {reader.name} was told {told} of {life}, but misses {len(missed)} of it")
    return wrong


def _false_reports(world: World) -> list[str]:
    """What a group has read to its end is not lost when the broker leaves in good order."""
    wrong = []
    left = {life for life in left_lives(world) if life.rpartition("@")[0] not in world.operator.abandoned}
    for (log, group), members in world.readers.groups().items():
        taken = {number for member in members for number in member.numbers_in}
        for stream, numbers in world.history.streams.items():
            key, life = owner_of(stream)
            if key == log and life in left and all((life, number) in taken for number in numbers):
                wrong += [
                    f"invariant 13: {member.name} of {group} was told that {life} is lost, and all of it was read"
                    for member in members
                    if life in member.lost
                ]
    return wrong


def _not_held(world: World) -> list[str]:
    """Retention by age does not pass a group that holds, in the parts that were there when the group began."""
    return [
        f"invariant 13: {reader.name} holds, but retention has removed {event.count} of {event.part}"
        for reader in world.readers.all
        if reader.read.holds and reader.reader is not None and not world.logs.is_limited_in_bytes(reader.log)
        for event in (got.event for got in reader.events)
        if isinstance(event, Lost) and "retention" in event.reason and began(event.part) <= reader.reader.since
    ]


def _lives(world: World, log: str, number: Number) -> list[str]:
    """The lives that have kept a message in a log."""
    owners = map(owner_of, world.history.kept_in.get(number, ()))
    return [life for key, life in owners if key == log]


def _text(number: Number) -> str:
    topic, publisher, sequence = number
    return f"{topic!r} {publisher:x} #{sequence}"
