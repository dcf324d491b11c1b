"""A headcount: how many connections subscribe to each of some channels, at one moment.

PUBSUB NUMSUB says it, but not always. Valkey (seen with 9.1.2) keeps a channel's subscribers in a hash table that it
resizes bucket by bucket, each time one comes or goes; meanwhile NUMSUB takes the table for one of another type and
answers with an address instead of a number. A channel with 8, 15, 16, 29 ... 32 subscribers stays so for as long as
nobody comes or goes. So we come and go ourselves until the table is done: every time moves two buckets.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearcast.core.backend import OnCounts
from nearcast.core.link import Link, Reply

SUBSCRIBERS_MAX = 1 << 20  # no server has so many connections, and no address is so low
FIRST_NUDGES = 4
NUDGES_MAX = 1 << 14  # enough for a table of 200,000 subscribers; one that needs more is asked for again later


class Headcount:
    def __init__(self, link: Link, channels: Sequence[bytes], then: OnCounts) -> None:
        self._link = link
        self._channels = channels
        self._then = then
        self._nudges = FIRST_NUDGES

    def take(self) -> None:
        self._link.send(self._counted, "PUBSUB", "NUMSUB", *self._channels)

    def _counted(self, reply: Reply, now_s: float) -> None:
        if not isinstance(reply, list):
            return
        numbers = [int(number) for number in reply[1::2]]
        counts = zip(self._channels, numbers, strict=True)
        resizing = {channel for channel, number in counts if number > SUBSCRIBERS_MAX}
        if not resizing:
            self._then(numbers)
        elif self._nudges <= NUDGES_MAX:
            for channel in resizing:
                self._nudge(channel)
            self._nudges *= 2
            self.take()

    def _nudge(self, channel: bytes) -> None:
        """Messages that come in between are for nobody here, and the link drops them."""
        for _ in range(self._nudges):
            self._link.subscribe(channel)
            self._link.unsubscribe(channel)
