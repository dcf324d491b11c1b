"""Consistent hashing with virtual nodes: the directory of a topic, and where a topic lives before it is placed.

Hashes are BLAKE2b, so every process on every machine sees the same ring.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from hashlib import blake2b

# Dynamoth and its followers use about a hundred; the spread of shares falls with the square root of the count.
VIRTUAL_NODES = 128


def position(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


class Ring:
    """An immutable ring of brokers."""

    __slots__ = ("_owners", "_positions", "brokers", "virtual_nodes")

    def __init__(self, brokers: Iterable[str], virtual_nodes: int = VIRTUAL_NODES) -> None:
        self.brokers = tuple(sorted(set(brokers)))
        self.virtual_nodes = virtual_nodes
        points = sorted(
            (position(b"%b#%d" % (broker.encode(), node)), broker)
            for broker in self.brokers
            for node in range(virtual_nodes)
        )
        self._positions = [point for point, _ in points]
        self._owners = [broker for _, broker in points]

    def owner(self, topic: bytes) -> str:
        """The broker whose virtual node follows the topic's position; the ring must not be empty."""
        index = bisect_right(self._positions, position(topic))
        return self._owners[index % len(self._owners)]
