"""The log of one topic's messages, in order of their numbers: those kept for repairs, then those in flight.

Two queues side by side, and no object per message: what is made for every message is what the garbage collector walks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

Entry = tuple[int, bytes | None, int]  # number, payload (None for a number that was given up), time
T = TypeVar("T")


class Log:
    __slots__ = ("bytes", "first", "forgotten_bytes", "payloads", "times_ns")

    def __init__(self, first: int) -> None:
        self.first = first  # number of the first message that is here
        self.payloads: deque[bytes | None] = deque()
        self.times_ns: deque[int] = deque()
        self.bytes = 0  # of the payloads that are here
        self.forgotten_bytes = 0  # and of those that were

    def empty(self, number: int) -> bool:
        """Take the payload of a message away. Returns whether there was one."""
        at = number - self.first
        payload = self.payloads[at]
        if payload is None:
            return False
        self.payloads[at] = None
        self._forget(len(payload))
        return True

    def newest(self, start: int) -> Iterator[Entry]:
        """The messages from a number on. Costs nothing for those before it."""
        count = self.first + len(self.payloads) - start
        numbers = range(start, start + count)
        return zip(numbers, _last(self.payloads, count), _last(self.times_ns, count), strict=True)

    def between(self, start: int, end: int) -> Iterator[Entry]:
        """The messages from `start` to `end` that are here."""
        first = max(start, self.first)
        begin, stop = first - self.first, end + 1 - self.first
        numbers = range(first, end + 1)
        return zip(numbers, islice(self.payloads, begin, stop), islice(self.times_ns, begin, stop), strict=False)

    def trim(self, end: int, count: int, size: int) -> None:
        """Forget the oldest up to `end`, so that `count` of them are left and the log is not above this many bytes."""
        kept = end - self.first + 1
        least, excess = kept - count, self.bytes - size
        if least <= 0 and excess <= 0:
            return
        payload, time_ns = self.payloads.popleft, self.times_ns.popleft
        dropped = freed = 0
        while dropped < kept and (dropped < least or freed < excess):
            freed += len(payload() or b"")
            time_ns()
            dropped += 1
        self.first += dropped
        self._forget(freed)

    def _forget(self, size: int) -> None:
        self.bytes -= size
        self.forgotten_bytes += size


def _last(queue: deque[T], count: int) -> list[T]:
    last = list(islice(reversed(queue), count))
    last.reverse()
    return last
