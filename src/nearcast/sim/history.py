"""The history of a simulated run: what really happened on the servers and in the store, for the checkers.

Servers report what they execute, and the store what was committed. Nothing in the simulated system reads the history.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.journal import BrokerEntry, BrokerState, TopicEntry, decode_entry
from nearcast.core.model.names import RESERVED
from nearcast.core.model.placement import Placement, Record
from nearcast.core.wire.batches import decode_batch
from nearcast.core.wire.frames import (
    ASK,
    BATCH,
    FIRSTS,
    HEADER,
    HEADER_BYTES,
    NUMBERED,
    SKIPS,
    decode_record,
    decode_repair,
)

if TYPE_CHECKING:
    from nearcast.sim.network import Timeline
    from nearcast.sim.valkey.server import Session, SimServer
    from nearcast.sim.world import World


Number = tuple[bytes, int, int]  # topic, publisher, sequence


class Run(msgspec.Struct, frozen=True, gc=False):
    """A frame that a server executed, and the epoch of the topic's record there at that moment."""

    server: str
    epoch: int
    at_s: float
    record_epoch: int


class Unready(msgspec.Struct, frozen=True):
    """A subscriber that did not hold the new placement when an unforced move switched."""

    subscriber: str
    topic: bytes
    epoch: int
    at_s: float


class History:
    """Collects what happened, and notices violations that show only at the moment they happen."""

    def __init__(self, timeline: Timeline, world: World) -> None:
        self._timeline = timeline
        self._world = world
        self.runs: dict[tuple[int, bytes, int], list[Run]] = defaultdict(list)
        self.placements: dict[tuple[bytes, int], Placement] = {}
        self.begun: dict[tuple[int, bytes], set[int]] = defaultdict(set)  # numbers that start a line again
        self.given_up_s: dict[str, float] = {}  # broker -> since when the journal has it as dead
        self.given_up: list[tuple[str, float, float]] = []  # past intervals: (broker, from, to)
        self._doubted: set[str] = set()  # given up by a journal that has since been lost
        self.unready: list[Unready] = []
        self.faults: list[str] = []  # violations noticed as they happened
        self.kept_in: dict[Number, set[bytes]] = defaultdict(set)  # message -> streams
        self.streams: dict[bytes, list[Number]] = defaultdict(list)  # what each has ever got, in order
        self.skipped: Counter[bytes] = Counter()  # numbers in each that carry no message
        self.memory_lost = False  # by a server, and with it what was kept there
        self.moves = 0
        self.forced: list[bytes] = []  # topics, once for each move that did not wait for all subscribers
        self.messages = 0
        self._records: dict[tuple[str, bytes], Record] = {}  # on each server now
        self._fenced: dict[tuple[str, bytes], int] = {}  # highest epoch each server was ever switched to
        self._previous: dict[tuple[bytes, int], Placement] = {}  # (topic, new epoch) -> placement before
        self._switched: set[tuple[bytes, int]] = set()
        self._rested: dict[bytes, tuple[int, float]] = {}  # the epoch a topic last came to rest in, and when

    # --- servers

    def published(self, server: SimServer, channel: bytes, payload: bytes, receivers: Collection[Session]) -> None:
        if channel.startswith(RESERVED):
            self._repaired(payload, receivers)
            return
        if len(payload) < HEADER_BYTES:
            return
        word, epoch, publisher, first, _ = HEADER.unpack_from(payload)
        words = [item[0] for item in decode_batch(payload) or ()] if word == BATCH else [word]
        record = self._records.get((server.name, channel))
        run = Run(server.name, epoch, self._timeline.now_s, record.epoch if record is not None else 0)
        for sequence, kind in enumerate(words, first):
            if kind in NUMBERED:
                self.runs[(publisher, channel, sequence)].append(run)
                self.messages += 1
            if kind in FIRSTS:
                self.begun[publisher, channel].add(sequence)

    def appended(self, stream: bytes, topic: bytes, batch: bytes) -> None:
        """A server has kept a batch."""
        _, _, publisher, first, _ = HEADER.unpack_from(batch)
        for sequence, (word, _, _) in enumerate(decode_batch(batch) or (), first):
            if word in SKIPS:
                self.skipped[stream] += 1
            else:
                self.kept_in[topic, publisher, sequence].add(stream)
                self.streams[stream].append((topic, publisher, sequence))

    def _repaired(self, payload: bytes, receivers: Collection[Session]) -> None:
        """A repair, or a request for one. If all is well, it is on an inbox."""
        repair = decode_repair(payload)
        if repair is None:
            return
        topic, frame = repair
        word, _, publisher, sequence, _ = HEADER.unpack_from(frame)
        clients = {session.name for session in receivers}  # a client that was cut off may still have its old connection
        if word == ASK and len(clients) > 1:
            self.faults.append(f"invariant 10: a request for repair reached {len(clients)} clients")
        if word in FIRSTS:
            self.begun[publisher, topic].add(sequence)

    def installed(self, server: SimServer, topic: bytes, data: bytes) -> None:
        record = decode_record(data)
        key = (server.name, topic)
        before = self._records.get(key)
        if before is not None and (record.version < before.version or record.epoch < before.epoch):
            self.faults.append(f"invariant 1: {server.name} went back from {before.version} to {record.version}")
        self._records[key] = record
        self._fenced[key] = max(record.epoch, self._fenced.get(key, 0))
        self.followed(topic, record.placement)
        self.followed(topic, record.next)
        given_up = server.name in self.given_up_s  # a late order there switches no client
        if record.version % 4 == 0 and (topic, record.epoch) not in self._switched and not given_up:
            self._switched.add((topic, record.epoch))
            if record.forced:
                self.forced.append(topic)
            else:
                self._look_for_unready(topic, record.placement)
        elif record.version % 4 == 1:
            self._check_settled(topic, record)

    def wiped(self, server: SimServer) -> None:
        """A broker starts over: its agent has deleted its records, but nothing that is kept."""
        self._forget_records(server.name)

    def restarted(self, server: str) -> None:
        """The server lost its memory."""
        self.memory_lost = True
        self._forget_records(server)

    def _forget_records(self, server: str) -> None:
        for key in [key for key in self._records if key[0] == server]:
            del self._records[key]

    def followed(self, topic: bytes, placement: Placement | None) -> None:
        """A record or a client has this placement."""
        if placement is None:
            return
        known = self.placements.setdefault((topic, placement.epoch), placement)
        if known is not placement and known != placement:
            self.faults.append(f"invariant 1: epoch {placement.epoch} of {topic!r} is {known} and {placement}")

    def _check_settled(self, topic: bytes, record: Record) -> None:
        previous = self._previous.get((topic, record.epoch))
        for broker in previous.brokers if previous is not None else ():
            # A broker given up since the topic last rested counts as fenced, even if it has joined again as a new one.
            fenced = self._fenced.get((broker, topic), 0) >= record.epoch
            if not fenced and not self._given_up_since(broker, self._rested.get(topic, (0, 0.0))[1]):
                self.faults.append(f"invariant 3: epoch {record.epoch} of {topic!r} settled before {broker} was fenced")

    def _look_for_unready(self, topic: bytes, placement: Placement) -> None:
        for subscriber in self._world.subscribers:
            topic_subscriber = subscriber.machine.topic_subscribers.get(topic)
            if topic_subscriber is None or not topic_subscriber.whole or subscriber.left_s is not None:
                continue
            client = subscriber.machine.client_id
            if not all(self._world.holds(client, broker, topic) for broker in placement.readers(client)):
                self.unready.append(Unready(subscriber.name, topic, placement.epoch, self._timeline.now_s))

    # --- store

    def committed(self, changes: dict[str, bytes], now_s: float) -> None:
        for key, value in changes.items():
            entry = decode_entry(key, value)
            if isinstance(entry, BrokerEntry):
                self._broker(key.removeprefix("broker/"), entry, now_s)
            elif isinstance(entry, TopicEntry):
                topic = key.removeprefix("topic/").encode()
                if entry.move is not None:
                    self._previous[(topic, entry.move.target.epoch)] = entry.placement
                elif self._rested.get(topic, (-1, 0.0))[0] != entry.placement.epoch:  # otherwise only rewritten
                    self.moves += 1
                    self._rested[topic] = (entry.placement.epoch, now_s)

    def store_lost(self) -> None:
        """The store has lost data: the last decisions may be forgotten."""
        self._doubted = set(self.given_up_s)

    def _broker(self, name: str, entry: BrokerEntry, now_s: float) -> None:
        doubted = name in self._doubted
        self._doubted.discard(name)
        if entry.state is BrokerState.DEAD:
            self.given_up_s.setdefault(name, now_s)
        elif doubted and entry.state in (BrokerState.MEMBER, BrokerState.LEAVING):  # it did not have to join again
            del self.given_up_s[name]
        elif name in self.given_up_s and entry.state is BrokerState.MEMBER:
            self.given_up.append((name, self.given_up_s.pop(name), now_s))

    def _given_up_since(self, broker: str, since_s: float) -> bool:
        return broker in self.given_up_s or any(name == broker and to_s >= since_s for name, _, to_s in self.given_up)

    def was_given_up(self, broker: str, at_s: float) -> bool:
        if broker in self.given_up_s and at_s >= self.given_up_s[broker]:
            return True
        return any(name == broker and from_s <= at_s < to_s for name, from_s, to_s in self.given_up)
