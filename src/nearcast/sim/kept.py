"""What a simulated cluster has kept: the streams of its logs, wherever they are by now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nearcast.core.model.journal import MEMBERSHIP_KEY, decode_entry
from nearcast.core.model.membership import Membership
from nearcast.core.model.names import LOGS
from nearcast.core.wire.frames import HEADER

if TYPE_CHECKING:
    from nearcast.sim.valkey.streams import Stream
    from nearcast.sim.world import World


def _membership(world: World) -> Membership:
    _, values = world.store.load_now()
    membership = decode_entry(MEMBERSHIP_KEY, values[MEMBERSHIP_KEY])
    assert isinstance(membership, Membership)
    return membership


def lives_of(world: World) -> set[bytes]:
    """The lives whose parts are there: of the brokers that are members now, and those that are held."""
    membership = _membership(world)
    held = {former.life for former in membership.former if former.url}
    return {life.encode() for life in {*map(membership.life, membership.brokers), *held}}


def left_lives(world: World) -> set[bytes]:
    """The lives that have ended in good order: what they kept was read, or was given up."""
    return {former.life.encode() for former in _membership(world).former if former.counts is not None}


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
