"""The sending side of a topic publisher: its buffer of messages, how they become commands, and its lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from nearcast.core.client.news import refused
from nearcast.core.wire.frames import CRLF, DATA, publish_command, word_of

if TYPE_CHECKING:
    from nearcast.core.client.publisher import TopicPublisher
    from nearcast.core.wire.backend import ClientLink
    from nearcast.errors import ClusterError


Entry = tuple[int, bytes | None, int]  # number, payload (None for a number that was given up), time


class PublishBuffer:
    """One topic's messages in order of their numbers: first those kept for repairs, then those in flight.

    It is one queue without an object per message: per-message objects make work for the garbage collector, and memory
    scattered across many topics slows a client down.
    """

    __slots__ = ("bytes", "first", "forgotten_bytes", "queue")

    def __init__(self, first: int) -> None:
        self.first = first  # number of the first message still here
        self.queue: deque[Any] = deque()  # payload and time of the first, payload and time of the second, ...
        self.bytes = 0  # of the payloads still here
        self.forgotten_bytes = 0  # of the payloads no longer here

    def empty(self, number: int) -> bool:
        """Remove the payload of a message. Returns whether there was one."""
        at = 2 * (number - self.first)
        payload = self.queue[at]
        if payload is None:
            return False
        self.queue[at] = None
        self._forget(len(payload))
        return True

    def newest(self, start: int) -> Iterator[Entry]:
        """The messages from a number on. Skipping those before it costs nothing."""
        queue = self.queue
        count = self.first + len(queue) // 2 - start
        if count == 1:  # the usual case with many topics
            return iter(((start, queue[-2], queue[-1]),))
        newest = list(islice(reversed(queue), 2 * count))
        return zip(range(start, start + count), newest[::-2], newest[-2::-2], strict=True)

    def between(self, start: int, end: int) -> Iterator[Entry]:
        """The messages from `start` to `end` that are here. Empty if the caller claims to have more than that."""
        if start > end:
            return iter(())
        first = max(start, self.first)
        span = islice(self.queue, 2 * (first - self.first), 2 * max(0, end + 1 - self.first))
        return zip(range(first, end + 1), span, span, strict=False)

    def trim(self, end: int, count: int, size: int) -> None:
        """Forget the oldest up to `end`, so that at most `count` of them and at most this many bytes remain."""
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


# --- packing


class Packing:
    """Turns what one client publishes on one topic into commands for servers.

    It handles many messages at once: what they have in common is looked up once.
    """

    __slots__ = ("_first", "_packer", "_prefix", "_publisher", "_size", "_topic")

    def __init__(self, topic: bytes, publisher: int, first: int) -> None:
        self._topic = topic
        self._publisher = publisher
        self._first = first  # number of the first message
        self._size = 0  # payload size the packer is for: usually all have the same
        self._packer, self._prefix = publish_command(topic, 0)

    def commands(self, entries: Iterable[Entry], epoch: int) -> list[bytes]:
        publisher, first = self._publisher, self._first
        size, pack, prefix = self._size, self._packer.pack, self._prefix
        commands: list[bytes] = []
        for sequence, payload, time_ns in entries:
            if type(payload) is not bytes or sequence == first:
                commands.append(self._command(sequence, payload, time_ns, epoch))
                continue
            if len(payload) != size:
                size = self._size = len(payload)
                self._packer, self._prefix = publish_command(self._topic, size)
                pack, prefix = self._packer.pack, self._prefix
            commands.append(pack(prefix, DATA, epoch, publisher, sequence, time_ns, payload, CRLF))
        return commands

    def _command(self, sequence: int, payload: bytes | None, time_ns: int, epoch: int) -> bytes:
        """The command for a message that differs from the others."""
        body = payload or b""
        packer, prefix = publish_command(self._topic, len(body))
        word = self.word(sequence, payload)
        return packer.pack(prefix, word, epoch, self._publisher, sequence, time_ns, body, CRLF)

    def word(self, sequence: int, payload: bytes | None) -> int:
        """The kind of a frame."""
        return word_of(payload, first=sequence == self._first > 1)


# --- lanes


class Lane:
    """One broker that a topic publisher writes to in one epoch (PROTOCOL, publisher rules 4, 7 and 9).

    Replies on a lane come in order, so it only needs to know how many have come.
    """

    __slots__ = ("broker", "counted", "link", "receivers", "retired", "sent", "skipped", "topic_publisher", "unleased")

    def __init__(self, topic_publisher: TopicPublisher, broker: str, counted: int) -> None:
        self.topic_publisher = topic_publisher
        self.broker = broker
        self.link: ClientLink | None = None  # set while the topic may be published there
        self.sent = self.counted = counted  # sequence numbers
        self.receivers: deque[int] = deque()  # of counted messages that other lanes have not counted yet
        self.unleased: list[int] = []  # replies that came while the broker had no lease
        self.retired = False
        self.skipped: tuple[tuple[int, ClusterError], ...] = ()  # refused behind the fence; they may yet run elsewhere

    def write(self, packed: dict[int, list[bytes]]) -> None:
        """Send what was not sent yet. `packed` has the commands from some numbers on: other lanes may need the same."""
        start, topic_publisher = self.sent + 1, self.topic_publisher
        commands = packed.get(start)
        if commands is None:
            commands = packed[start] = topic_publisher.commands_of(topic_publisher.unsent_after(self.sent))
        if self.link is not None:
            self.link.publish(commands, self)
            self.sent = topic_publisher.sequence

    def replied(self, receivers: list[int], now_s: float) -> None:
        if self.retired:
            self._replied_late(receivers)
            return
        link = self.link
        if link is None or now_s > link.lease_until_s or link.asking_members or self.unleased:
            self.unleased += receivers
            if link is not None:
                link.lease_waiters[self.topic_publisher] = None
            self.topic_publisher.client.attend(self.topic_publisher)
        else:
            self.topic_publisher.count(self, receivers)

    def refused(self, error: str, now_s: float) -> None:
        sequence, problem = self.counted + len(self.unleased) + 1, refused(self.broker, "the message", error)
        if self.retired:
            self.counted += 1
            self.skipped = (*self.skipped, (sequence, problem))
        else:
            self.topic_publisher.refuse(sequence, problem)
            self.replied([0], now_s)

    def _replied_late(self, receivers: list[int]) -> None:
        """Replies behind the fence acknowledge nothing, but a message refused before one that ran there has failed.

        A subscriber may have heard the publisher for the first time by the later one. When the refused one is sent
        again, it takes that for older than the first, and drops it.
        """
        self.counted += len(receivers)
        for sequence, problem in self.skipped:
            self.topic_publisher.refuse(sequence, problem)
        self.skipped = ()

    def count_leased(self, now_s: float) -> None:
        """The lease was proven after all: the broker had not been given up, so the replies count."""
        link = self.link
        if self.unleased and link is not None and now_s <= link.lease_until_s and not link.asking_members:
            receivers, self.unleased = self.unleased, []
            self.topic_publisher.count(self, receivers)

    def unblock(self) -> None:
        """The server may be ready for us by now: a lane that keeps nothing never has to wait for that."""

    def must_begin_again(self) -> bool:
        """The broker is back. Whether it takes a new lane to go on there."""
        return False

    def retire(self) -> None:
        """Nothing more is sent on it, and what it answers from now on acknowledges nothing."""
        self.retired = True
        self.topic_publisher.tried = max(self.topic_publisher.tried, self.sent)

    def reset(self) -> None:
        """The connection is gone: what was not counted is sent again."""
        self.topic_publisher.tried = max(self.topic_publisher.tried, self.sent)
        self.link = None
        self.sent = self.counted
        self.unleased.clear()
