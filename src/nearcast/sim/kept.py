"""What a simulated cluster has kept: the streams of its logs, wherever they are by now. The check of invariant 12."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nearcast.core.model.journal import MEMBERSHIP_KEY, decode_entry
from nearcast.core.model.membership import Membership
from nearcast.core.model.names import LOGS
from nearcast.core.wire.frames import HEADER

if TYPE_CHECKING:
    from nearcast.sim.history import Number
    from nearcast.sim.valkey.streams import Stream
    from nearcast.sim.world import World


def _membership(world: World) -> Membership:
    _, values = world.store.load_now()
    membership = decode_entry(MEMBERSHIP_KEY, values[MEMBERSHIP_KEY])
    assert isinstance(membership, Membership)
    return membership


def owner_of(stream: bytes) -> tuple[str, str]:
    """The log and the life that a stream belongs to."""
    log, _, life = stream.removeprefix(LOGS).decode().partition(":")
    return log, life


def lives_of(world: World) -> set[str]:
    """The lives whose parts are there: of the brokers that are members now, and those that are held."""
    membership = _membership(world)
    return {*map(membership.life, membership.brokers), *held_lives(world)}


def held_lives(world: World) -> set[str]:
    """The lives that have ended and whose parts a replica has."""
    return {former.life for former in _membership(world).former if former.url}


def left_lives(world: World) -> set[str]:
    """The lives that have ended in good order: what they kept was read, or was given up."""
    return {former.life for former in _membership(world).former if former.counts is not None}


def kept_in(world: World) -> Iterator[tuple[bytes, bytes, int, list[int]]]:
    """(stream, topic, publisher, its numbers in the order of the stream) of everything that was kept."""
    for key, stream in _parts(world):
        found: defaultdict[tuple[bytes, int], list[int]] = defaultdict(list)
        for _, fields in stream.records:
            for topic, batch in zip(fields[6::2], fields[7::2], strict=True):  # none in a mark
                _, _, publisher, first, count = HEADER.unpack_from(batch)
                found[topic, publisher] += range(first, first + count)
        for (topic, publisher), numbers in found.items():
            yield key, topic, publisher, numbers


def _parts(world: World) -> Iterator[tuple[bytes, Stream]]:
    """The streams on brokers' servers, and those of lives that are held, on their holders."""
    holders = {former.life.encode(): former.url for former in _membership(world).former if former.url}
    for broker in world.brokers:
        for key, stream in world.hosts[broker].server.keys.streams(LOGS).items():
            if key.rpartition(b":")[2] not in holders:
                yield key, stream
    for life, url in holders.items():
        for key, stream in world.network.hosts[url].server.keys.streams(LOGS).items():
            if key.rpartition(b":")[2] == life:
                yield key, stream


# --- the check


def check_kept(world: World) -> list[str]:
    """Invariant 12: what is published on kept topics is in the log once if it was acknowledged, else once at most.

    In one stream a publisher's numbers only grow. Without a quorum, what was kept by a broker that was given up may be
    kept again, and nothing is looked at where a server has lost its memory. With a quorum, a life that has ended is
    looked at where it is held. What a life has taken along that left in good order was read, or was given up.
    """
    wrong, left = _out_of_order(world), left_lives(world)
    found = _found(world)
    for key, kept in world.logs.all.items():
        if world.history.memory_lost and kept.log.quorum == 1:
            continue
        living, ended = found.get(key, (Counter(), set()))
        wrong += [f"invariant 12: {_text(number)} is kept twice in {key}" for number, n in living.items() if n > 1]
        ever = kept.expires or kept.until_s is not None  # by now it may be gone
        for number, published_s, acknowledged_s in acknowledged(world):
            if not kept.owes(number[0], published_s, acknowledged_s) or living[number] or number in ended:
                continue
            lives = [life for log, life in map(owner_of, world.history.kept_in.get(number, ())) if log == key]
            if not (lives and (ever or left.issuperset(lives))):
                wrong.append(f"invariant 12: {_text(number)} was acknowledged but is not kept in {key}")
    return wrong


def _out_of_order(world: World) -> list[str]:
    wrong = []
    for stream, numbers in world.history.streams.items():
        last: dict[tuple[bytes, int], int] = {}
        for topic, publisher, number in numbers:
            if number <= last.get((topic, publisher), 0):
                wrong.append(f"invariant 12: {stream!r} has {publisher:x} #{number} of {topic!r} out of order")
            last[topic, publisher] = number
    return wrong


def _found(world: World) -> dict[str, tuple[Counter[Number], set[Number]]]:
    """What is in each log now: in parts of lives that are there, with how often, and in parts of others."""
    found: dict[str, tuple[Counter[Number], set[Number]]] = {}
    lives = lives_of(world)
    for stream, topic, publisher, numbers in kept_in(world):
        log, life = owner_of(stream)
        living, ended = found.setdefault(log, (Counter(), set()))
        (living if life in lives else ended).update((topic, publisher, number) for number in numbers)
    return found


def acknowledged(world: World) -> Iterator[tuple[Number, float, float]]:
    """(message, when it was published, when it was acknowledged) of all that were."""
    for publisher in world.publishers:
        for publication in publisher.publications:
            if publication.acknowledged_s is not None:
                number = (publication.topic, publication.publisher, publication.sequence)
                yield number, publication.published_s, publication.acknowledged_s


def _text(number: Number) -> str:
    topic, publisher, sequence = number
    return f"{topic!r} {publisher:x} #{sequence}"
