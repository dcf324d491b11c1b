"""Emulated links: a TCP relay that delays, narrows and cuts the connections going through it.

Stands in for `tc netem`, which needs root and a kernel module. A `DelayedRelay` listens on a loopback port
and passes bytes to a target and back, with a one-way delay in each direction:

    client ──> relay's port ══ lane: token bucket, then delay + jitter, in order ══> target
           <──              ══ lane ═══════════════════════════════════════════════ <──

What differs from a real link: the TCP handshake is made with the relay and takes no time; bytes are held back
in a partition and not lost, because TCP would send them again; the delay is kept to about 1 ms, the event
loop's timers being no finer.
"""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Self, cast

from nearcast.testbed.lane import DIRECT, WRITE_BYTES, Direction, Lane, LinkShape, reset_connection

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
        """Listen on loopback (port 0: a free one). Each direction has a token bucket of its own.

        `limit_bytes` bounds what is in flight per connection and direction; a sender above it must wait. `back` is the
        shape of the way from the target; the same as `shape` if not given.
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
        """What the relay holds, in all connections, with its own cost per chunk."""
        return sum(lane.in_flight_bytes for each in self._connections for lane in each.lanes)

    @property
    def delivered_bytes(self) -> int:
        """What went through since the start, both directions."""
        return self._delivered_before_bytes + sum(each.delivered_bytes for each in self._connections)

    def partition(self) -> None:
        """Stop forwarding until `heal()`. Connections stay open; new ones are accepted but go nowhere."""
        self._there.cut = self._back.cut = True
        self._healed.clear()

    def heal(self) -> None:
        """Forward again, first what was held back."""
        self._there.cut = self._back.cut = False
        self._healed.set()
        for connection in self._connections:
            for lane in connection.lanes:
                lane.flush()

    def drop_connections(self) -> None:
        """Reset every connection on both sides; what was on its way is lost. New ones are welcome."""
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
    """Two sockets and the two lanes between them."""

    def __init__(self, relay: DelayedRelay) -> None:
        there, back = Lane(relay._there, self._finished), Lane(relay._back, self._finished)
        self.lanes = (there, back)
        self.near = _End(self, outgoing=there, incoming=back)
        self.far = _End(self, outgoing=back, incoming=there)
        self._relay = relay
        self._dialling: asyncio.Task[None] | None = None

    @property
    def delivered_bytes(self) -> int:
        return sum(lane.delivered_bytes for lane in self.lanes)

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
        """One lane is through to its end; the connection is over when both are."""
        if all(lane.finished for lane in self.lanes):
            for end in (self.near, self.far):
                if end.transport is not None:
                    end.transport.close()


class _End(asyncio.Protocol):
    """One of the two sockets of a connection: feeds the outgoing lane, drains the incoming one."""

    def __init__(self, connection: _Connection, *, outgoing: Lane, incoming: Lane) -> None:
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
        return True  # the other direction may still have something to say

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
