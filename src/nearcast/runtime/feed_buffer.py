"""Events of a feed between the subscription and the stream, in the form in which they are appended.

The collecting agent removes what was appended. The one that stands by keeps what the other may not have appended yet.
"""

from __future__ import annotations

from collections import deque

from nearcast.core.message import Event, Gap, Message

BUFFER_EVENTS_MAX = 50_000
BUFFER_BYTES_MAX = 64 << 20

Entry = tuple[bytes | str, ...]  # six, as APPEND takes them


class FeedBuffer:
    """Oldest first. At its limits the oldest are dropped, and `dropped_ms` says how far that reaches."""

    def __init__(self, events_max: int = BUFFER_EVENTS_MAX, bytes_max: int = BUFFER_BYTES_MAX) -> None:
        self._entries: deque[tuple[float, Entry]] = deque()
        self._bytes = 0
        self._events_max = events_max
        self._bytes_max = bytes_max
        self.dropped_ms = 0.0  # when the newest of those that were dropped came; 0: none was

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        return len(self._entries) >= self._events_max or self._bytes >= self._bytes_max

    def add(self, events: list[Event], now_ms: float) -> None:
        for event in events:
            entry = _entry(event)
            self._entries.append((now_ms, entry))
            self._bytes += len(entry[5])
        while len(self._entries) > self._events_max or self._bytes > self._bytes_max:
            self.dropped_ms = self._entries[0][0]
            self.remove(1)

    def interrupted(self, topic: str, text: str) -> None:
        """Say before all else that something may be missing."""
        self._entries.appendleft((0.0, _interruption(topic, text)))
        self._bytes += len(text)

    def first(self, count: int, size: int) -> list[Entry]:
        """The oldest: at most `count`, and no more bytes than `size` unless one alone has more."""
        found: list[Entry] = []
        for _, entry in self._entries:
            size -= len(entry[5])
            if found and (size < 0 or len(found) >= count):
                break
            found.append(entry)
        return found

    def remove(self, count: int) -> None:
        for _ in range(count):
            _, entry = self._entries.popleft()
            self._bytes -= len(entry[5])

    def forget(self, before_ms: float) -> None:
        """What came before is not needed."""
        while self._entries and self._entries[0][0] < before_ms:
            self.remove(1)


def _entry(event: Event) -> Entry:
    if isinstance(event, Message):
        sent = f"{event.published_at:.6f}"
        return "m", event.topic, str(event.publisher), str(event.sequence), sent, event.payload
    if isinstance(event, Gap):
        text = f"messages {event.first} to {event.last} are missing: {event.reason}"
        return "g", event.topic, str(event.publisher), str(event.first), str(event.last), text
    if event.until_s is None:
        return _interruption(event.topic, f"messages may be missing since {event.since_s:.3f}: {event.reason}")
    extent = f"from {event.since_s:.3f} to {event.until_s:.3f}"
    return _interruption(event.topic, f"messages may be missing {extent}: {event.reason}")


def _interruption(topic: str, text: str) -> Entry:
    return "i", topic, "", "", "", text
