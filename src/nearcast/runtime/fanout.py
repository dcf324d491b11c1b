"""A fan-out finds out how much a server can send: a few publishers and many subscribers on one private channel.

The messages look like those of clients: a header with the time, and a payload. All have the same length, so a
subscriber knows from the number of bytes it has read where each one begins. Of every chunk it looks only at the time of
the oldest message. That keeps the measuring side several times cheaper than the server being measured.

At most one window of messages is ever in flight to the slowest subscriber, so the server's output buffers stay small,
and are empty once the fan-out is closed.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from struct import Struct
from types import TracebackType
from typing import Self

from nearcast.core.model.names import MEASURING
from nearcast.core.wire.backend import Credentials
from nearcast.core.wire.frames import CRLF, DATA, HEADER_BYTES, publish_command
from nearcast.core.wire.valkey import ValkeyLink
from nearcast.errors import ClusterError
from nearcast.runtime.ends import End, PublisherEnd

PUBLISHERS = 4  # in one turn a server reads some commands from each, as it does from many clients
PACE_S = 0.002  # between two writes when the rate is given

_TIME = Struct(">Q")
_TIME_AT = HEADER_BYTES - _TIME.size  # the last field of the header


class _Subscriber(End):
    received_bytes = 0

    def __init__(self, fanout: Fanout) -> None:
        super().__init__(fanout)
        self.fanout = fanout

    def prepare(self, link: ValkeyLink) -> None:
        link.subscribe(self.fanout.channel)

    def heard(self, data: bytes) -> None:
        before = self.received_bytes
        self.received_bytes = after = before + len(data)
        fanout = self.fanout
        time_at = -before % fanout.push_bytes + fanout.time_at
        if time_at + _TIME.size <= len(data):
            fanout.latencies_s.append((time.monotonic_ns() - _TIME.unpack_from(data, time_at)[0]) / 1e9)
        if before < fanout.mark_bytes <= after:
            fanout.passed()


class Fanout:
    """Publishers and subscribers on one server. Open it with `await Fanout.open(...)`, and use it with `async with`."""

    def __init__(self, payload_bytes: int) -> None:
        self.channel = MEASURING + secrets.token_hex(8).encode()
        self.latencies_s: list[float] = []  # of the oldest message of each chunk
        self.sent = 0
        self.held_back = False  # the last pace could not be kept: the slowest subscriber was a window behind
        self.mark_bytes = 0  # when every subscriber has read this far, more may be sent
        self._behind = 0  # subscribers that have not read this far
        self._window = 0
        self._payload = b"\0" * payload_bytes
        self._packer, self._prefix = publish_command(self.channel, payload_bytes)
        head = b">3\r\n$7\r\nmessage\r\n$%d\r\n%b\r\n$%d\r\n" % (
            len(self.channel),
            self.channel,
            HEADER_BYTES + payload_bytes,
        )
        self.time_at = len(head) + _TIME_AT
        self.push_bytes = len(head) + HEADER_BYTES + payload_bytes + len(CRLF)
        self._publishers = [PublisherEnd(self, self.channel) for _ in range(PUBLISHERS)]
        self._subscribers: list[_Subscriber] = []
        self._problem: asyncio.Future[ClusterError] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, url: str, credentials: Credentials, *, subscribers: int, payload_bytes: int) -> Self:
        fanout = cls(payload_bytes)
        try:
            # Publishers first: their test messages must not reach subscribers.
            for end in fanout._publishers:
                await end.open(url, credentials)
            for _ in range(subscribers):
                subscriber = _Subscriber(fanout)
                fanout._subscribers.append(subscriber)
                await subscriber.open(url, credentials)
        except BaseException:
            await fanout.close()
            raise
        return fanout

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self.stop()
        for end in (*self._publishers, *self._subscribers):
            end.close()
        await asyncio.sleep(0)  # lets the transports close their sockets

    def fail(self, problem: ClusterError) -> None:
        if not self._problem.done():
            self._problem.set_result(problem)

    @property
    def received(self) -> int:
        """Messages delivered, to all subscribers together."""
        return sum(subscriber.received_bytes for subscriber in self._subscribers) // self.push_bytes

    @property
    def on_its_way_bytes(self) -> int:
        """Bytes published but not delivered yet, to all subscribers together."""
        delivered = sum(subscriber.received_bytes for subscriber in self._subscribers)
        return self.sent * len(self._subscribers) * self.push_bytes - delivered

    # --- as fast as it goes

    async def keep(self, window: int, seconds: float) -> None:
        """Keep this many messages in flight, for this many seconds and until another window is set."""
        idle = not self._window
        self._window = max(2, window)
        if idle:
            self._send(self._window // 2)
            self._go_on()
        await self.wait(seconds)

    def stop(self) -> None:
        """Send no more; what was sent is still delivered."""
        self._window = self._behind = self.mark_bytes = 0

    def passed(self) -> None:
        """One more subscriber has read up to the mark."""
        self._behind -= 1
        if self._behind == 0:
            self._go_on()

    def _go_on(self) -> None:
        """Send half a window more, and mark where the next half may follow."""
        while self._window and not self._behind:
            self.mark_bytes = self.sent * self.push_bytes
            self._send(self._window // 2)
            self._behind = sum(end.received_bytes < self.mark_bytes for end in self._subscribers)

    # --- at a given rate

    async def pace(self, per_s: float, window: int, seconds: float) -> None:
        """Publish this many messages per second, but never more than a window ahead of the slowest subscriber."""
        self.stop()
        self.held_back = False
        begun_s, before = time.monotonic(), self.sent
        while (elapsed_s := time.monotonic() - begun_s) < seconds:
            slowest = min(end.received_bytes for end in self._subscribers) // self.push_bytes
            due = int(per_s * elapsed_s) - (self.sent - before)
            room = slowest + window - self.sent
            self.held_back = self.held_back or due > room
            self._send(min(due, room))
            await self.wait(PACE_S)

    async def wait(self, seconds: float) -> None:
        await asyncio.wait([self._problem], timeout=seconds)
        if self._problem.done():
            raise self._problem.result()

    def _send(self, count: int) -> None:
        if count <= 0:
            return
        at_ns = time.monotonic_ns()
        message = self._packer.pack(self._prefix, DATA, 0, 0, self.sent, at_ns, self._payload, CRLF)
        share, rest = divmod(count, PUBLISHERS)
        for number, end in enumerate(self._publishers):
            if (part := share + (number < rest)) and end.connection is not None:
                end.connection.write(message * part)
        self.sent += count
