"""The log of one topic's messages, in order of their numbers: those kept for repairs, then those in flight.

One queue, and no object per message: what is made for every message is what the garbage collector walks, and what lies
apart in memory is what a client with many topics waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

Entry = tuple[int, bytes | None, int]  # number, payload (None for a number that was given up), time


class Log:
    __slots__ = ("bytes", "first", "forgotten_bytes", "queue")

    def __init__(self, first: int) -> None:
        self.first = first  # number of the first message that is here
        self.queue: deque[Any] = deque()  # payload and time of the first, payload and time of the second, ...
        self.bytes = 0  # of the payloads that are here
        self.forgotten_bytes = 0  # and of those that were

    def empty(self, number: int) -> bool:
        """Take the payload of a message away. Returns whether there was one."""
        at = 2 * (number - self.first)
        payload = self.queue[at]
        if payload is None:
            return False
        self.queue[at] = None
        self._forget(len(payload))
        return True

    def newest(self, start: int) -> Iterator[Entry]:
        """The messages from a number on. Costs nothing for those before it."""
        queue = self.queue
        count = self.first + len(queue) // 2 - start
        if count == 1:  # with many topics it mostly is
            return iter(((start, queue[-2], queue[-1]),))
        newest = list(islice(reversed(queue), 2 * count))
        return zip(range(start, start + count), newest[::-2], newest[-2::-2], strict=True)

    def between(self, start: int, end: int) -> Iterator[Entry]:
        """The messages from `start` to `end` that are here; none if others say they have more than that."""
        if start > end:
            return iter(())
        first = max(start, self.first)
        span = islice(self.queue, 2 * (first - self.first), 2 * max(0, end + 1 - self.first))
        return zip(range(first, end + 1), span, span, strict=False)

    def trim(self, end: int, count: int, size: int) -> None:
        """Forget the oldest up to `end`, so that `count` of them are left and the log is not above this many bytes."""
        kept = end - self.first + 1
        least, excess = kept - count, self.bytes - size
        if least <= 0 and excess <= 0:
            return
        pop = self.queue.popleft
        dropped = freed = 0
        while dropped < kept and (dropped < least or freed < excess):
            freed += len(pop() or b"")
            pop()
            dropped += 1
        self.first += dropped
        self._forget(freed)

    def _forget(self, size: int) -> None:
        self.bytes -= size
        self.forgotten_bytes += size
