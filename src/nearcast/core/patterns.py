"""A pattern flow: what one client receives by a pattern (PROTOCOL, subscriber rule 9).

A pattern subscriber is attached to every broker, so it is always ready and no move waits for it. What is left to do is
to put each topic's messages in order. The control twin of the pattern brings the records of all matching topics; a
move is open for us from its PREPARE until every old member has switched, and frames of its epoch wait for that.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.lines import Lines
from nearcast.core.mailbox import Mailbox
from nearcast.core.message import Event, Interrupted, Message
from nearcast.core.names import CONTROL, PATTERNS, RECORDS, RESERVED, decode_topic
from nearcast.core.record import Record
from nearcast.core.wire import Resync, decode_control, decode_record, encode_resync

if TYPE_CHECKING:
    from nearcast.core.client import Client
    from nearcast.core.link import Link, Reply

SCAN_COUNT = 1000  # records per HSCAN step


class _Place:
    """One topic at one broker, as a pattern subscriber sees it."""

    __slots__ = ("fenced", "floor")

    def __init__(self) -> None:
        self.fenced = 0
        self.floor = 0

    def admits(self, epoch: int) -> bool:
        return epoch >= self.fenced


class _Matched:
    """One matching topic."""

    def __init__(self, flow: PatternFlow, topic: bytes) -> None:
        client = flow.client
        self.flow = flow
        self.lines = Lines(decode_topic(topic), self, client.timing, client.limits)
        self.places: dict[str, _Place] = {}
        self.moves: dict[int, frozenset[str]] = {}  # new epoch -> old members that have not switched yet
        self.last_broker = ""

    def place(self, broker: str) -> _Place:
        return self.places.setdefault(broker, _Place())

    def record(self, broker: str, record: Record) -> None:
        place = self.place(broker)
        place.fenced = max(place.fenced, record.epoch)
        if record.next is not None:
            self._open_move(record.next.epoch, record.placement.brokers)
        if record.previous is not None:
            self._open_move(record.epoch, record.previous.brokers)
        self._close_moves()

    def _open_move(self, epoch: int, members: tuple[str, ...]) -> None:
        self.moves.setdefault(epoch, frozenset(members))

    def _close_moves(self) -> None:
        for epoch, members in list(self.moves.items()):
            if not any(self.flow.is_open(broker) and self.place(broker).fenced < epoch for broker in members):
                del self.moves[epoch]

    def older_open(self, epoch: int) -> bool:
        self._close_moves()
        return any(opened <= epoch for opened in self.moves)


class PatternFlow:
    def __init__(self, client: Client, pattern: bytes) -> None:
        self.client = client
        self.pattern = pattern
        self.name = decode_topic(pattern)
        self.mailboxes: list[Mailbox] = []
        self.waiting: list[object] = []
        self.joined = False
        self._links: dict[str, Link] = {}
        self._scanned: set[str] = set()  # brokers whose open moves are known
        self._matched: dict[bytes, _Matched] = {}
        self._interrupted: Interrupted | None = None
        self._resync_at_s: float | None = None

    def add(self, mailbox: Mailbox, token: object) -> None:
        self.mailboxes.append(mailbox)
        if self.joined:
            self.client.joined([token])
        else:
            self.waiting.append(token)

    # --- brokers

    def spread(self, now_s: float) -> None:
        """Attach to every member we are not attached to."""
        for broker in self.client.membership.brokers:
            if broker not in self._links:
                self.client.links.want(broker, self, now_s)

    def linked(self, link: Link, now_s: float) -> None:
        if link.broker in self._links:
            return
        self._links[link.broker] = link
        link.users.add(self)
        link.patterns[self.pattern] = partial(self._message, link.broker)
        link.patterns[CONTROL + self.pattern] = partial(self._control, link.broker)
        link.psubscribe(self.pattern, CONTROL + self.pattern)
        link.subscribe(PATTERNS)
        self._scan(link, b"0")

    def _scan(self, link: Link, cursor: bytes) -> None:
        scanned = partial(self._scan_step, link)
        link.send(scanned, "HSCAN", RECORDS, cursor, "MATCH", self.pattern, "COUNT", SCAN_COUNT)

    def _scan_step(self, link: Link, reply: Reply, now_s: float) -> None:
        if self._links.get(link.broker) is not link:
            return
        if isinstance(reply, list):
            cursor, pairs = reply
            for topic, value in zip(pairs[::2], pairs[1::2], strict=True):
                self._record(link.broker, topic, decode_record(value), now_s)
            if cursor != b"0":
                self._scan(link, cursor)
                return
        self._scanned.add(link.broker)
        self._check_whole(now_s)

    def unlinked(self, link: Link, now_s: float) -> None:
        broker = link.broker
        if self._links.get(broker) is not link:
            return
        del self._links[broker]
        self._scanned.discard(broker)
        if self.joined:
            self._interrupt(f"the connection to {broker} was lost", link.heard_s, now_s)
        for matched in self._matched.values():
            matched.lines.release(now_s, now_s + self.client.wall_offset_s)
            self._hand_over(matched, now_s)
        if broker in self.client.membership.brokers:
            self.client.links.want(broker, self, now_s)

    def forget(self, broker: str, now_s: float) -> None:
        for matched in self._matched.values():
            matched.places.pop(broker, None)
        self._check_whole(now_s)

    def is_open(self, broker: str) -> bool:
        return broker in self._links

    def close(self) -> None:
        for link in self._links.values():
            for pattern in (self.pattern, CONTROL + self.pattern):
                link.patterns.pop(pattern, None)
            link.punsubscribe(self.pattern, CONTROL + self.pattern)
            if not any(other is not self and other.is_open(link.broker) for other in self.client.patterns.values()):
                link.unsubscribe(PATTERNS)
            link.users.discard(self)

    # --- messages

    def _match(self, topic: bytes) -> _Matched:
        matched = self._matched.get(topic)
        if matched is None:
            if len(self._matched) >= self.client.limits.topics:
                del self._matched[next(iter(self._matched))]  # the oldest: its next message is a new baseline
            matched = self._matched[topic] = _Matched(self, topic)
        return matched

    def _message(self, broker: str, topic: bytes, payload: bytes, now_s: float) -> None:
        if not self.joined or topic.startswith(RESERVED):
            return
        matched = self._match(topic)
        matched.last_broker = broker
        matched.lines.run([payload], matched.place(broker), now_s, now_s + self.client.wall_offset_s)
        self._hand_over(matched, now_s)

    def _control(self, broker: str, channel: bytes, payload: bytes, now_s: float) -> None:
        news = decode_control(payload)
        if isinstance(news, Record):
            self._record(broker, channel[len(CONTROL) :], news, now_s)

    def _record(self, broker: str, topic: bytes, record: Record, now_s: float) -> None:
        if record.next is None and record.previous is None and topic not in self._matched:
            return  # a topic at rest needs no memory until it speaks
        matched = self._match(topic)
        matched.record(broker, record)
        if record.forced and self.joined:
            self._resync_at_s = now_s
            self.client.attend(self)
        matched.lines.release(now_s, now_s + self.client.wall_offset_s)
        self._hand_over(matched, now_s)

    def repair(self, topic: bytes, frame: bytes, now_s: float) -> None:
        matched = self._matched.get(topic)
        if matched is not None:
            matched.lines.repair(frame, now_s, now_s + self.client.wall_offset_s)
            self._hand_over(matched, now_s)

    def _hand_over(self, matched: _Matched, now_s: float) -> None:
        lines = matched.lines
        if lines.wants_repair:
            lines.wants_repair = False
            self._resync(matched)
        if lines.unsettled:
            self.client.attend(self)
        if lines.out:
            events, lines.out = [self._named(event) for event in lines.out], []
            size = sum(len(event.payload) for event in events if isinstance(event, Message))
            for mailbox in self.mailboxes:
                mailbox.put(events, size)
            self.client.wake(self.mailboxes)

    def _named(self, event: Event) -> Event:
        return msgspec.structs.replace(event, pattern=self.name) if isinstance(event, Message) else event

    # --- being whole, repair, time

    def _check_whole(self, now_s: float) -> None:
        if not self._scanned >= self.client.membership.brokers.keys():
            return
        self.joined = True
        self.client.joined(self.waiting)
        self.waiting = []
        if self._interrupted is not None:
            ended = msgspec.structs.replace(self._interrupted, until_s=now_s + self.client.wall_offset_s)
            self._interrupted = None
            self._report(ended)

    def _interrupt(self, reason: str, since_s: float, now_s: float) -> None:
        self._resync_at_s = now_s + self.client.rng.random() * self.client.timing.resync_s
        self.client.attend(self)
        if self._interrupted is None:
            self._interrupted = Interrupted(self.name, since_s + self.client.wall_offset_s, None, reason)
            self._report(self._interrupted)

    def _report(self, event: Interrupted) -> None:
        for mailbox in self.mailboxes:
            mailbox.put([event], 0)
        self.client.wake(self.mailboxes)

    def _resync(self, matched: _Matched) -> None:
        link = self._links.get(matched.last_broker)
        if link is not None and matched.lines.last:
            wish = Resync(self.client.client_id, dict(matched.lines.last))
            link.tell(CONTROL + matched.lines.topic.encode("utf-8", "surrogateescape"), encode_resync(wish))

    def tick(self, now_s: float) -> bool:
        """Returns whether it needs attention again."""
        unsettled = False
        for matched in self._matched.values():
            matched.lines.tick(now_s, now_s + self.client.wall_offset_s)
            self._hand_over(matched, now_s)
            unsettled = unsettled or matched.lines.unsettled
        if self._resync_at_s is not None and now_s >= self._resync_at_s and self._interrupted is None:
            self._resync_at_s = None
            for matched in self._matched.values():
                self._resync(matched)
        return unsettled or not self.joined or self._resync_at_s is not None
