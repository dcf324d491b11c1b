"""Emulated links: a TCP relay that delays, limits and cuts the connections that go through it.

It replaces `tc netem`, which needs root and a kernel module. A `DelayedRelay` listens on a loopback port and passes
bytes to a target and back, with a one-way delay in each direction:

    client ──> relay's port ══ conduit: token bucket, then delay + jitter, in order ══> target
           <──              ══ conduit ═══════════════════════════════════════════════ <──

Differences from a real link: the TCP handshake is made with the relay and takes no time; in a partition bytes are held
back and not lost, because TCP would send them again; the delay is accurate to about 1 ms, because the event loop's
timers are no finer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast

from nearcast.errors import UsageError

# --- one direction of a link


CHUNK_COST_BYTES = 128  # Python's own memory per chunk; counted, or many small chunks would exceed the limit unnoticed
WRITE_BYTES = 256 * 1024  # per write to a socket; the event loop reads no more than this at once
PIECE_S = 0.005  # a slow link passes on what it carries in this time, instead of whole reads,
PIECE_BYTES = 1500  # but at least an Ethernet frame
QUEUE_S = 0.1  # how much may wait on a slow link before it stops reading, like a router's queue
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER for 0 s


@dataclass(frozen=True, slots=True)
class LinkShape:
    """A link's figures: bytes wait for the token bucket (rate and burst), then take `delay_s` plus 0 to `jitter_s`."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = math.inf
    burst_bytes: int = 64 * 1024

    def __post_init__(self) -> None:
        if min(self.delay_s, self.jitter_s, self.burst_bytes) < 0 or self.bytes_per_s <= 0:
            raise UsageError(f"{self}: delay, jitter and burst must be 0 or more, bytes_per_s above 0")


DIRECT = LinkShape()


class Direction:
    """What all connections of a relay share in one direction: the token bucket, and the switch that cuts it."""

    def __init__(self, shape: LinkShape, rng: random.Random, limit_bytes: int) -> None:
        self.cut = False
        self._rng = rng
        self._limit_bytes = limit_bytes
        self._busy_until_s = -math.inf
        self.reshape(shape)

    def reshape(self, shape: LinkShape) -> None:
        """Change the link for bytes that enter from now on. Those in flight arrive as they would have."""
        self._shape = shape
        self.narrow = math.isfinite(shape.bytes_per_s)
        self.limit_bytes, self.piece_bytes = self._limit_bytes, WRITE_BYTES
        if self.narrow:
            travel_s = shape.delay_s + shape.jitter_s + QUEUE_S
            self.limit_bytes = int(min(self._limit_bytes, shape.bytes_per_s * travel_s + shape.burst_bytes))
            self.piece_bytes = max(PIECE_BYTES, int(shape.bytes_per_s * PIECE_S))

    def arrival_s(self, size: int, now_s: float) -> float:
        """When bytes that enter now will arrive, if nothing is ahead of them in their own connection."""
        shape, departure_s = self._shape, now_s
        if self.narrow:
            # The token bucket as a clock: a byte keeps the link busy for 1/rate, and the bytes of a burst may
            # leave before their time.
            self._busy_until_s = max(self._busy_until_s, now_s) + size / shape.bytes_per_s
            departure_s = max(now_s, self._busy_until_s - shape.burst_bytes / shape.bytes_per_s)
        jitter_s = shape.jitter_s * self._rng.random() if shape.jitter_s else 0.0
        return departure_s + shape.delay_s + jitter_s


class Conduit:
    """One direction of one connection, from the socket `source` to the socket `sink`.

    It keeps bytes in order, and has at most one timer, for the next arrival.
    """

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
        """Bytes enter the conduit."""
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
        """The sender has finished, or its connection broke. The other side learns of it after the last bytes."""
        if not self._discarding:
            self._ending = (self._arrival_s(0, self._loop.time()), reset)
            self.flush()

    def discard(self) -> None:
        """There is no receiver any more: drop what is in flight and what is still to come."""
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
        # Neither jitter nor a delay that became shorter must let bytes overtake each other.
        self._last_arrival_s = max(self._last_arrival_s, self._direction.arrival_s(size, now_s))
        return self._last_arrival_s

    def _passable(self) -> bool:
        sink = self.sink
        return sink is not None and not (self.sink_full or self._direction.cut or sink.is_closing())

    def _write_arrived(self, now_s: float) -> None:
        """Make one write of limited size, so that a sink that fills up can pause us before it holds everything."""
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
            with contextlib.suppress(OSError):  # the receiver is gone already, and nobody has told us yet
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


# --- the relay


__all__ = ["DIRECT", "DelayedRelay", "LinkShape"]

_HOST = "127.0.0.1"
_LIMIT_BYTES = 8 * 1024 * 1024  # in flight per connection and direction: 80 MB/s over 100 ms


class DelayedRelay:
    """A link to `target`; clients connect to `port`. Make one with `await DelayedRelay.start(...)`."""

    def __init__(self, target: tuple[str, int], there: Direction, back: Direction) -> None:
        self.target = target
        self._there = there
        self._back = back
        self._healed = asyncio.Event()
        self._healed.set()
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._delivered_before_bytes = 0

    @classmethod
    async def start(
        cls,
        target: tuple[str, int],
        shape: LinkShape = DIRECT,
        *,
        rng: random.Random,
        port: int = 0,
        limit_bytes: int = _LIMIT_BYTES,
        back: LinkShape | None = None,
    ) -> Self:
        """Listen on loopback (port 0: any free port). Each direction has its own token bucket.

        `limit_bytes` limits what is in flight per connection and direction; a sender above it must wait. `back` is the
        shape of the way back from the target; by default the same as `shape`.
        """
        relay = cls(target, Direction(shape, rng, limit_bytes), Direction(back or shape, rng, limit_bytes))
        relay._server = await asyncio.get_running_loop().create_server(relay._accept, _HOST, port)
        return relay

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def in_flight_bytes(self) -> int:
        """What the relay holds in all connections, including its own cost per chunk."""
        return sum(conduit.in_flight_bytes for each in self._connections for conduit in each.conduits)

    @property
    def delivered_bytes(self) -> int:
        """What has been delivered since the start, in both directions."""
        return self._delivered_before_bytes + sum(each.delivered_bytes for each in self._connections)

    def reshape(self, shape: LinkShape, *, back: LinkShape | None = None) -> None:
        """Change delays and limits of all connections, which stay open and in order.

        Bytes that enter after the delay has become shorter still arrive after those in flight: they wait for them.
        """
        self._there.reshape(shape)
        self._back.reshape(back or shape)

    def partition(self) -> None:
        """Stop forwarding until `heal()`. Connections stay open; new ones are accepted, and wait until then."""
        self._there.cut = self._back.cut = True
        self._healed.clear()

    def heal(self) -> None:
        """Forward again, first what was held back."""
        self._there.cut = self._back.cut = False
        self._healed.set()
        for connection in self._connections:
            for conduit in connection.conduits:
                conduit.flush()

    def drop_connections(self) -> None:
        """Reset every connection on both sides; what is in flight is lost. New ones are accepted."""
        for connection in self._connections:
            connection.reset()

    async def close(self) -> None:
        """Stop listening and reset what is open."""
        assert self._server is not None
        self._server.close()
        while self._connections:
            self.drop_connections()
            await asyncio.sleep(0)
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._delivered_before_bytes += connection.delivered_bytes

    def _accept(self) -> asyncio.Protocol:
        return _Connection(self).near


class _Connection:
    """Two sockets and the two conduits between them."""

    def __init__(self, relay: DelayedRelay) -> None:
        there, back = Conduit(relay._there, self._finished), Conduit(relay._back, self._finished)
        self.conduits = (there, back)
        self.near = _End(self, outgoing=there, incoming=back)
        self.far = _End(self, outgoing=back, incoming=there)
        self._relay = relay
        self._dialling: asyncio.Task[None] | None = None

    @property
    def delivered_bytes(self) -> int:
        return sum(conduit.delivered_bytes for conduit in self.conduits)

    def reset(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
        for end in (self.near, self.far):
            if end.transport is not None:
                reset_connection(end.transport)

    def opened(self, end: _End) -> None:
        if end is self.near:
            self._relay._connections.add(self)
            self._dialling = asyncio.create_task(self._dial())
            self._dialling.add_done_callback(lambda _: self.forget_if_over())

    def forget_if_over(self) -> None:
        dialled = self._dialling is not None and self._dialling.done()
        if dialled and self.near.transport is None and self.far.transport is None:
            self._relay._forget(self)

    async def _dial(self) -> None:
        await self._relay._healed.wait()
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.far, *self._relay.target)
        except OSError:
            self.reset()

    def _finished(self) -> None:
        """One conduit has finished; the connection is over when both have."""
        if all(conduit.finished for conduit in self.conduits):
            for end in (self.near, self.far):
                if end.transport is not None:
                    end.transport.close()


class _End(asyncio.Protocol):
    """One of the two sockets of a connection. It feeds the outgoing conduit and drains the incoming one."""

    def __init__(self, connection: _Connection, *, outgoing: Conduit, incoming: Conduit) -> None:
        self.transport: asyncio.Transport | None = None
        self._connection = connection
        self._outgoing = outgoing
        self._incoming = incoming

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_BYTES)
        self._outgoing.source = self._incoming.sink = self.transport
        self._connection.opened(self)
        self._incoming.flush()

    def data_received(self, data: bytes) -> None:
        self._outgoing.push(data)

    def eof_received(self) -> bool:
        self._outgoing.end(reset=False)
        return True  # the other direction may still send

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = self._outgoing.source = self._incoming.sink = None
        self._incoming.discard()
        if error is not None:
            self._outgoing.end(reset=True)
        self._connection.forget_if_over()

    def pause_writing(self) -> None:
        self._incoming.sink_full = True

    def resume_writing(self) -> None:
        self._incoming.sink_full = False
        self._incoming.flush()
