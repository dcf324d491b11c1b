"""One direction of an emulated link: how long bytes travel, and the bytes that are on their way.

`LinkShape` says what the link is like. A `Direction` is what all connections of a relay share in one
direction: the token bucket and the switch that cuts it. A `Lane` carries the bytes of one connection in one
direction, in order, and holds at most one timer: the next arrival.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from nearcast.errors import UsageError

CHUNK_COST_BYTES = 128  # what Python keeps per chunk; counted, or small chunks would pass the limit unseen
WRITE_BYTES = 256 * 1024  # per write to a socket; what the event loop reads at once is no more
PIECE_S = 0.005  # a narrow link hands over what it carries in this time, not whole reads,
PIECE_BYTES = 1500  # but no less than an Ethernet frame
QUEUE_S = 0.1  # what a narrow link lets wait before it stops reading, as a router's queue would
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER for 0 s


@dataclass(frozen=True, slots=True)
class LinkShape:
    """Bytes wait for the token bucket (rate and burst), then travel `delay_s` plus 0 to `jitter_s`."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = math.inf
    burst_bytes: int = 64 * 1024

    def __post_init__(self) -> None:
        if min(self.delay_s, self.jitter_s, self.burst_bytes) < 0 or self.bytes_per_s <= 0:
            raise UsageError(f"{self}: delay, jitter and burst must be 0 or more, bytes_per_s above 0")


DIRECT = LinkShape()


class Direction:
    """What all connections share in one direction of a link."""

    def __init__(self, shape: LinkShape, rng: random.Random, limit_bytes: int) -> None:
        self.cut = False
        self.narrow = math.isfinite(shape.bytes_per_s)
        self.limit_bytes = limit_bytes
        self.piece_bytes = WRITE_BYTES
        self._shape = shape
        self._rng = rng
        self._busy_until_s = -math.inf
        if self.narrow:
            travel_s = shape.delay_s + shape.jitter_s + QUEUE_S
            self.limit_bytes = int(min(limit_bytes, shape.bytes_per_s * travel_s + shape.burst_bytes))
            self.piece_bytes = max(PIECE_BYTES, int(shape.bytes_per_s * PIECE_S))

    def arrival_s(self, size: int, now_s: float) -> float:
        """When bytes that enter now come out, if nothing is ahead of them in their own connection."""
        shape, departure_s = self._shape, now_s
        if self.narrow:
            # The token bucket as a clock: a byte keeps the link busy for 1/rate, and the bytes of a burst may
            # leave before their time.
            self._busy_until_s = max(self._busy_until_s, now_s) + size / shape.bytes_per_s
            departure_s = max(now_s, self._busy_until_s - shape.burst_bytes / shape.bytes_per_s)
        jitter_s = shape.jitter_s * self._rng.random() if shape.jitter_s else 0.0
        return departure_s + shape.delay_s + jitter_s


class Lane:
    """One direction of one connection, from the socket `source` to the socket `sink`."""

    def __init__(self, direction: Direction, on_finished: Callable[[], None]) -> None:
        self.in_flight_bytes = 0
        self.delivered_bytes = 0
        self.finished = False
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self.sink_full = False
        self._direction = direction
        self._on_finished = on_finished
        self._loop = asyncio.get_running_loop()
        self._chunks: deque[tuple[float, bytes | memoryview]] = deque()
        self._last_arrival_s = -math.inf
        self._ending: tuple[float, bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        self._discarding = False

    def push(self, data: bytes) -> None:
        """Bytes enter the lane."""
        if self._discarding:
            return
        now_s, step = self._loop.time(), self._direction.piece_bytes
        view = memoryview(data)
        for start in range(0, len(data), step):
            piece = view[start : start + step] if len(data) > step else data
            self._chunks.append((self._arrival_s(len(piece), now_s), piece))
            self.in_flight_bytes += len(piece) + CHUNK_COST_BYTES
        if self._timer is None:
            self.flush()
        else:
            self._throttle()

    def end(self, *, reset: bool) -> None:
        """The sender has finished, or its connection broke; this travels behind its bytes."""
        if not self._discarding:
            self._ending = (self._arrival_s(0, self._loop.time()), reset)
            self.flush()

    def discard(self) -> None:
        """Nobody is there to receive: forget what is on its way and what is still to come."""
        self._discarding = True
        self._chunks.clear()
        self._ending = None
        self.in_flight_bytes = 0
        self.flush()

    def flush(self) -> None:
        """Write what has arrived, set the timer for what has not, and pause or resume the sender."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._loop.time()
        while self._chunks and self._chunks[0][0] <= now_s and self._passable():
            self._write_arrived(now_s)
        if self._passable():
            if self._chunks:
                self._timer = self._loop.call_at(self._chunks[0][0], self.flush)
            elif self._ending is not None:
                self._finish(*self._ending, now_s)
        self._throttle()

    def _arrival_s(self, size: int, now_s: float) -> float:
        # Jitter must not let bytes overtake each other.
        self._last_arrival_s = max(self._last_arrival_s, self._direction.arrival_s(size, now_s))
        return self._last_arrival_s

    def _passable(self) -> bool:
        sink = self.sink
        return sink is not None and not (self.sink_full or self._direction.cut or sink.is_closing())

    def _write_arrived(self, now_s: float) -> None:
        """One write of bounded size, so that a sink that fills up says so before it holds all we have."""
        batch, size = [], 0
        while self._chunks and self._chunks[0][0] <= now_s and size < WRITE_BYTES:
            piece = self._chunks.popleft()[1]
            batch.append(piece)
            size += len(piece)
        self.in_flight_bytes -= size + len(batch) * CHUNK_COST_BYTES
        self.delivered_bytes += size
        assert self.sink is not None
        # Not writelines(): before Python 3.12.9 and 3.13.2 it never asks to pause (CVE-2024-12254).
        self.sink.write(batch[0] if len(batch) == 1 else b"".join(batch))

    def _finish(self, arrival_s: float, reset: bool, now_s: float) -> None:
        if arrival_s > now_s:
            self._timer = self._loop.call_at(arrival_s, self.flush)
            return
        assert self.sink is not None
        self._ending = None
        if reset:
            reset_connection(self.sink)
        else:
            self.finished = True
            self.sink.write_eof()
            self._on_finished()

    def _throttle(self) -> None:
        limit_bytes = self._direction.limit_bytes
        if self.source is None:
            return
        if self._reading and self.in_flight_bytes > limit_bytes:
            self._reading = False
            self.source.pause_reading()
        elif not self._reading and self.in_flight_bytes <= limit_bytes // 2:
            self._reading = True
            self.source.resume_reading()


def reset_connection(transport: asyncio.WriteTransport) -> None:
    """Close so that the other side sees a reset, not an orderly end."""
    connection = transport.get_extra_info("socket")
    if connection is not None and not transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    transport.abort()
