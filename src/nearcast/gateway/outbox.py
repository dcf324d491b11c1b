"""The outbox: frames waiting for a subscriber, with a limit for each kind and a policy at the limit.

- Results are not taken beyond the limit; the caller leaves them in storage and catches up later.
- Topic messages are in no storage: the oldest go, and a `gap` with their count stands before what follows.
- Answers and notices are always taken. Their number is bounded elsewhere: by the operations not answered yet.

Results and messages are counted apart, so neither can crowd out the other.
"""

from __future__ import annotations

from collections import deque

from nearcast.gateway.frames import FromGateway, TopicGap, encode
from nearcast.gateway.settings import GatewaySettings

_SLOW = "the subscriber is too slow"


class Outbox:
    """Encoded frames, in order within each kind."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._frames: deque[tuple[bytes, bool]] = deque()  # and whether it is a result
        self._results = 0
        self._results_bytes = 0
        self._messages: deque[tuple[str, bytes]] = deque()
        self._messages_bytes = 0
        self._dropped: dict[str, int] = {}  # by topic, since the last gap was taken
        self.dropped = 0  # messages, over all time
        self._last: bytes | None = None

    def __len__(self) -> int:
        return len(self._frames) + len(self._messages) + len(self._dropped) + (self._last is not None)

    @property
    def has_room(self) -> bool:
        """Half of the results' limit is free: catching up in small steps would cost a list each."""
        limits = self._settings
        return 2 * self._results <= limits.outbox_frames and 2 * self._results_bytes <= limits.outbox_bytes

    def put(self, frame: FromGateway) -> None:
        """An answer or a notice."""
        self._frames.append((encode(frame), False))

    def put_last(self, frame: FromGateway) -> None:
        """Taken when nothing else waits."""
        self._last = encode(frame)

    def put_result(self, frame: bytes) -> bool:
        """Whether there was room. A result larger than the limit is taken if it is alone."""
        limits = self._settings
        if self._results and (
            self._results >= limits.outbox_frames or self._results_bytes + len(frame) > limits.outbox_bytes
        ):
            return False
        self._frames.append((frame, True))
        self._results += 1
        self._results_bytes += len(frame)
        return True

    def put_message(self, topic: str, frame: bytes) -> None:
        limits = self._settings
        self._messages.append((topic, frame))
        self._messages_bytes += len(frame)
        while len(self._messages) > limits.message_frames or self._messages_bytes > limits.message_bytes:
            oldest, dropped = self._messages.popleft()
            self._messages_bytes -= len(dropped)
            self._dropped[oldest] = self._dropped.get(oldest, 0) + 1
            self.dropped += 1

    def take(self) -> bytes | None:
        """The next frame; None if nothing waits."""
        if self._frames:
            frame, is_result = self._frames.popleft()
            if is_result:
                self._results -= 1
                self._results_bytes -= len(frame)
            return frame
        if self._dropped:
            topic, count = self._dropped.popitem()
            return encode(TopicGap(topic, count, _SLOW))
        if self._messages:
            _, frame = self._messages.popleft()
            self._messages_bytes -= len(frame)
            return frame
        last, self._last = self._last, None
        return last
