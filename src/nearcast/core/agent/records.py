"""The records on an agent's server: handed to new directories, ended when unused, recalled after data loss."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

from nearcast.core.model.membership import Membership, read_membership, ring_of
from nearcast.core.model.names import decode_topic
from nearcast.core.model.placement import Record, Unreadable
from nearcast.core.model.settings import Timing
from nearcast.core.wire import bus
from nearcast.core.wire.backend import AgentLink, Denied

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


# --- collection


class Collection:
    """Answers the orders to collect the records and first uses that leave this directory.

    They are read in one scan and answered batch after batch. There may be hundreds of thousands of them, and the
    controller gets its answers through a server that cuts off connections with too much output waiting. So a batch is
    sent once the previous one has arrived. A new collection scans again. During it, none of its topics is used for the
    first time, because the ring is closed for them, so the scan stays valid. Unused topics are ended before the scan,
    because the journal would keep them forever.
    """

    def __init__(self, broker: str, answer: Answering) -> None:
        self._broker = broker
        self._answer = answer
        self._scanning: dict[_Rings, bus.Collect] = {}  # scans in progress, with the newest order waiting for each
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
                link.find_first_uses(members, leaves, found_left)  # after these, on the same connection
            else:
                found_left(used, now_s)

        def found_left(used: dict[bytes, Record], now_s: float) -> None:
            first_uses.update(used)
            link.find_records(leaves, found_all)  # after the first uses: records replace them, never the reverse

        def found_all(records: dict[bytes, Record], now_s: float) -> None:
            order = self._scanning.pop(rings, None)
            if order is not None:
                self._scanned = (rings, Scanned(first_uses | records))
                self._send(order, self._scanned[1], link)

        link.find_first_uses(members, leaves, found)

    def _send(self, order: bus.Collect, scanned: Scanned, link: AgentLink) -> None:
        """Send a batch. From now on the controller knows its topics, and first uses among them are kept."""
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


# --- ending


class Ending:
    """Goes round the first uses on the server, and ends those that are not in use (PROTOCOL "How topics end").

    A topic without a placement lives on its directory, whether its first use is written there or not. So the first use
    may go when neither a publisher nor a subscriber holds the topic. A client that still relies on it finds none when
    it connects, and asks the directory, which writes the same again, or a newer one if the membership has changed.
    Topics that the controller knows have a record. While the ring changes, nothing ends, because first uses are being
    collected. First uses on a broker that is not the topic's directory have no meaning, and end like the others.
    """

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self._begins_s: float | None = None
        self._cursor: bytes | None = None  # position in this round; None between rounds
        self._waiting = False  # for the server
        self.ended = 0  # first uses

    def clear(self) -> None:
        """A round ends with its connection to the server."""
        self._cursor, self._waiting = None, False

    def tick(self, link: AgentLink, now_s: float) -> None:
        """Take the next step, or begin the next round. A step takes a few milliseconds of the server's time."""
        next_s = now_s + self.timing.idle_s
        if self._begins_s is None or self._begins_s > next_s:  # the latter: the cluster now uses a shorter T_idle
            self._begins_s = next_s
        if self._waiting or (self._cursor is None and now_s < self._begins_s):
            return
        if self._cursor is None:
            self._begins_s, self._cursor = next_s, b"0"
        self._waiting = True
        link.read_members(partial(self._look, link))

    def _look(self, link: AgentLink, document: bytes | None, now_s: float) -> None:
        membership = _read(document)
        if membership is None or membership.previous_ring is not None or self._cursor is None:
            self.clear()
        else:
            link.scan_first_uses(self._cursor, partial(self._end, link, membership.version))

    def _end(self, link: AgentLink, members: int, cursor: bytes, topics: Sequence[bytes]) -> None:
        self._cursor = cursor if cursor != b"0" else None
        link.end_unused(members, topics, self._ended)

    def _ended(self, count: int) -> None:
        self._waiting = False
        self.ended += count


def _read(document: bytes | None) -> Membership | None:
    """The membership on the server, if there is one with a ring."""
    membership = read_membership(document)
    return membership if membership is not None and membership.ring else None


# --- recollection


class Recollection:
    """What this broker's server knows about the cluster, for a leader whose store has lost its data.

    The membership and all records are read in one scan and answered batch after batch. First uses are left out, because
    the journal does not need them.
    """

    def __init__(self, broker: str, answer: Callable[[bus.Answer], None]) -> None:
        self._broker = broker
        self._answer = answer
        self._scanning: bus.Recall | None = None  # the newest order waiting for a scan
        self._scanned: Scanned | None = None

    def clear(self) -> None:
        """A scan ends with its connection to the server."""
        self._scanning = self._scanned = None

    def order(self, order: bus.Recall, link: AgentLink) -> None:
        if order.after and self._scanned is not None:
            self._send(order, self._scanned, None)
            return
        under_way, self._scanning = self._scanning is not None, order
        if not under_way:
            self._scan(link)

    def _scan(self, link: AgentLink) -> None:
        found: list[Membership | None] = []

        def read(document: bytes | None, now_s: float) -> None:
            found.append(read_membership(document))

        def scanned(records: dict[bytes, Record], now_s: float) -> None:
            order, self._scanning = self._scanning, None
            if order is not None:
                self._scanned = Scanned(records)
                self._send(order, self._scanned, found[0])

        link.read_members(read)
        link.find_records(lambda topic: True, scanned)

    def _send(self, order: bus.Recall, scanned: Scanned, membership: Membership | None) -> None:
        batch, more = scanned.batch(order.after)
        if not more:
            self._scanned = None
        records = {topic: scanned.records[topic] for topic in batch}
        self._answer(bus.Answer(self._broker, order.order, records=records, more=more, membership=membership))


# --- one topic


def look_up(broker: str, order: bus.Lookup, link: AgentLink, answer: Answering) -> None:
    """Answer with the record of a topic; a first use becomes one."""
    version, topic = order.membership.version, order.topic.encode()

    def kept(records: dict[bytes, Record], now_s: float) -> None:
        if topic in records:
            answer(bus.Answer(broker, order.order, records={order.topic: records[topic]}))

    def looked_up(found: Record | Unreadable | Membership | Denied | None, now_s: float) -> None:
        if isinstance(found, Record):
            link.keep_first_uses(order.term, {topic: found}, kept)

    link.end_unused(version, [topic], lambda _: None)  # a client may have written something that is not a first use
    link.look_up(topic, version, looked_up)
