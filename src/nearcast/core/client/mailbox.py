"""A mailbox: events waiting for the application, with a limit and a policy at the limit.

The consumer takes everything at once, so at most twice the limit is in memory.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from nearcast.core.model.message import Event, Gap, Interrupted, Message
from nearcast.errors import UsageError


class Overflow(StrEnum):
    """What to do when the application does not keep up."""

    DROP_OLDEST = "drop_oldest"  # and report what was dropped as Gaps
    DISCONNECT = "disconnect"  # end the subscription with SlowSubscriber
    BLOCK = "block"  # stop reading the sockets, but no longer than T_block; then drop the oldest


def parse_overflow(text: str) -> Overflow:
    try:
        return Overflow(text)
    except ValueError:
        raise UsageError(f"unknown overflow policy {text!r}: use one of {', '.join(Overflow)}") from None


class Mailbox:
    """The events that wait for one reader, of all the topics and patterns it reads."""

    __slots__ = (
        "_bytes",
        "_events",
        "_gaps",
        "_interrupted",
        "accept_foreign",
        "dropped",
        "ended",
        "limit",
        "limit_bytes",
        "overflow",
        "overflowed",
    )

    def __init__(self, limit: int, limit_bytes: int, overflow: Overflow, *, accept_foreign: bool) -> None:
        self.limit = limit
        self.limit_bytes = limit_bytes
        self.overflow = overflow
        self.accept_foreign = accept_foreign
        self.dropped = 0
        self.overflowed = False  # ended because it was full and its policy is DISCONNECT
        self.ended = False  # nothing is accepted any more
        self._events: list[Event] = []
        self._bytes = 0
        self._gaps: dict[tuple[str, int], Gap] = {}  # by line: a publisher numbers each topic separately
        self._interrupted: dict[str, Interrupted] = {}  # by topic

    def __len__(self) -> int:
        return len(self._events)

    @property
    def full(self) -> bool:
        return len(self._events) >= self.limit or self._bytes >= self.limit_bytes

    def put(self, events: list[Event], payload_bytes: int, *, foreign: bool = True) -> None:
        """`foreign`: whether the events may include messages that came without our envelope."""
        if self.ended:
            return
        if foreign and not self.accept_foreign:
            events = [event for event in events if type(event) is not Message or event.publisher is not None]
        self._events += events
        self._bytes += payload_bytes
        if len(self._events) > self.limit or self._bytes > self.limit_bytes:
            self._overflow()

    def take(self) -> list[Event]:
        """Everything that is waiting. Reports of dropped messages come first, because the oldest are dropped."""
        events = self._events
        if self._gaps or self._interrupted:
            events = [*self._gaps.values(), *self._interrupted.values(), *events]
            self._gaps, self._interrupted = {}, {}
        self._events, self._bytes = [], 0
        return events

    def _overflow(self) -> None:
        # The received byte count we were given includes headers, duplicates and foreign messages: count what is here.
        self._bytes = sum(map(_size, self._events))
        if len(self._events) <= self.limit and self._bytes <= self.limit_bytes:
            return
        if self.overflow is Overflow.DISCONNECT:
            self.ended = self.overflowed = True
            return
        if self.overflow is Overflow.BLOCK and len(self) <= 2 * self.limit and self._bytes <= 2 * self.limit_bytes:
            return  # the driver has stopped reading; what was already read still fits
        cut = self._overhang()
        for event in self._events[:cut]:
            self._drop(event)
        del self._events[:cut]

    def _overhang(self) -> int:
        """How many of the oldest must go: an eighth more than needed, so that dropping happens in large steps."""
        cut = max(0, len(self._events) - self.limit)
        excess = self._bytes - self.limit_bytes
        for event in self._events[:cut]:
            excess -= _size(event)
        while excess > 0 and cut < len(self._events):
            excess -= _size(self._events[cut])
            cut += 1
        return min(len(self._events), cut + self.limit // 8)

    def _drop(self, event: Event) -> None:
        self._bytes -= _size(event)
        if isinstance(event, Interrupted):
            before = self._interrupted.get(event.topic, event)
            self._interrupted[event.topic] = msgspec.structs.replace(event, since_s=before.since_s)
            return
        if isinstance(event, Message):
            self.dropped += 1
            if event.publisher is None or event.sequence is None:
                return
            event = Gap(event.topic, event.publisher, event.sequence, event.sequence, "the subscriber is too slow")
        line = (event.topic, event.publisher)
        gap = self._gaps.get(line)
        first = gap.first if gap else event.first
        self._gaps[line] = Gap(event.topic, event.publisher, first, event.last, event.reason)


def _size(event: Event) -> int:
    return len(event.payload) if isinstance(event, Message) else 0
