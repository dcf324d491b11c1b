"""The collection: records and first uses that leave this directory, read in one scan and answered batch after batch.

There may be hundreds of thousands of them, and the controller hears answers through a server that cuts off whoever has
too much waiting for it: so a batch is sent when the one before has arrived. A new collection scans anew. While it goes
on nobody uses one of its topics for the first time, because the ring is closed for them: what was scanned stays true.
Topics that nobody uses end before that: the journal would keep them for ever.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from nearcast.core import bus
from nearcast.core.backend import AgentLink
from nearcast.core.membership import ring_of
from nearcast.core.names import decode_topic
from nearcast.core.record import Record

BATCH = 500  # records in one answer: half a megabyte with the longest names

Answering = Callable[[bus.Answer], None]
_Rings = tuple[tuple[str, ...], tuple[str, ...]]


class Scanned:
    """Records of one scan, to be answered batch after batch."""

    __slots__ = ("records", "topics")

    def __init__(self, records: dict[bytes, Record]) -> None:
        self.records = {decode_topic(topic): record for topic, record in records.items()}
        self.topics = sorted(self.records)

    def batch(self, after: str) -> tuple[list[str], bool]:
        """The topics after this one that make a batch, and whether there are more."""
        start = bisect_right(self.topics, after) if after else 0
        return self.topics[start : start + BATCH], start + BATCH < len(self.topics)


class Collection:
    def __init__(self, broker: str, answer: Answering) -> None:
        self._broker = broker
        self._answer = answer
        self._scanning: dict[_Rings, bus.Collect] = {}  # and the newest order that waits for it
        self._scanned: tuple[_Rings, Scanned] | None = None  # the last scan, until all of it was answered

    def clear(self) -> None:
        """A scan ends with its connection to the server."""
        self._scanning.clear()
        self._scanned = None

    def order(self, order: bus.Collect, link: AgentLink) -> None:
        rings = (order.old_ring, order.new_ring)
        scanned = self._scanned
        if order.after and scanned is not None and scanned[0] == rings:
            self._send(order, scanned[1], link)
            return
        under_way = rings in self._scanning
        self._scanning[rings] = order
        if not under_way:
            self._scan(rings, order.members, link)

    def _leaves(self, rings: _Rings) -> Callable[[bytes], bool]:
        old, new, mine = ring_of(rings[0]), ring_of(rings[1]), self._broker
        return lambda topic: old.owner(topic) == mine and new.owner(topic) != mine

    def _scan(self, rings: _Rings, members: int, link: AgentLink) -> None:
        leaves, first_uses = self._leaves(rings), dict[bytes, Record]()

        def found(used: dict[bytes, Record], now_s: float) -> None:
            topics = list(used)
            for start in range(0, len(topics), BATCH):
                link.end_unused(members, topics[start : start + BATCH], lambda _: None)
            if topics:
                link.find_first_uses(members, leaves, found_left)  # behind these, on the same connection
            else:
                found_left(used, now_s)

        def found_left(used: dict[bytes, Record], now_s: float) -> None:
            first_uses.update(used)
            link.find_records(leaves, found_all)  # behind first uses: records take their place, never the reverse

        def found_all(records: dict[bytes, Record], now_s: float) -> None:
            order = self._scanning.pop(rings, None)
            if order is not None:
                self._scanned = (rings, Scanned(first_uses | records))
                self._send(order, self._scanned[1], link)

        link.find_first_uses(members, leaves, found)

    def _send(self, order: bus.Collect, scanned: Scanned, link: AgentLink) -> None:
        """From now on the controller knows of these, and first uses among them are kept."""
        batch, more = scanned.batch(order.after)
        if not more:
            self._scanned = None
        records = {topic: scanned.records[topic] for topic in batch}
        first_uses = {topic.encode(): record for topic, record in records.items() if record.term == 0}

        def kept(now_kept: dict[bytes, Record], now_s: float) -> None:
            by_name = {topic: record for topic, record in records.items() if record.term > 0}
            by_name.update((decode_topic(topic), record) for topic, record in now_kept.items())
            self._answer(bus.Answer(self._broker, order.order, records=by_name, more=more))

        link.keep_first_uses(order.term, first_uses, kept)
