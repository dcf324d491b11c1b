"""Traffic: publishers and subscribers on several topics of one server, at a given rate.

All messages of a topic have the same length, so a subscriber knows from the number of bytes it has read where each one
begins and ends. Of every chunk it reads the time of the oldest message that the chunk completes, and takes it for all
of them: no message is taken to be faster than it was.

A message counts from the moment it is written. At most `IN_FLIGHT_MAX_BYTES` are ever in flight in all. So a server
that falls behind holds the publishers back, and never cuts off a subscriber.
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
from nearcast.runtime.profiling.configuration import Configuration

# The backlog at which Valkey starts its timer for cutting a subscriber off; also a bound for its memory.
IN_FLIGHT_MAX_BYTES = 8 << 20
PACE_S = 0.001  # between two writes

_TIME = Struct(">Q")
_TIME_AT = HEADER_BYTES - _TIME.size  # the last field of the header


class _Subscriber(End):
    """Counts what it hears, and how late it was."""

    def __init__(self, traffic: Traffic, topic: _Topic) -> None:
        super().__init__(traffic)
        self._traffic = traffic
        self._topic = topic
        self._received_bytes = 0
        self._begun_ns = 0  # when the message that has come in part was written; 0: not known

    def prepare(self, link: ValkeyLink) -> None:
        link.subscribe(self._topic.channel)

    def heard(self, data: bytes) -> None:
        size, time_at = self._topic.push_bytes, self._topic.time_at
        before, received = self._received_bytes, len(data)
        self._received_bytes = after = before + received
        self._traffic.received_bytes += received
        if completed := after // size - before // size:
            at = time_at - before % size
            written_ns = _TIME.unpack_from(data, at)[0] if at >= 0 else self._begun_ns
            if written_ns:
                self._traffic.heard(written_ns, completed)
            self._begun_ns = 0
        at = received - after % size + time_at
        if 0 <= at <= received - _TIME.size:
            self._begun_ns = _TIME.unpack_from(data, at)[0]


class _Topic:
    def __init__(self, traffic: Traffic, configuration: Configuration) -> None:
        self.channel = MEASURING + secrets.token_hex(8).encode()
        payload_bytes = configuration.payload_bytes
        frame_bytes = HEADER_BYTES + payload_bytes
        head = b">3\r\n$7\r\nmessage\r\n$%d\r\n%b\r\n$%d\r\n" % (len(self.channel), self.channel, frame_bytes)
        self.time_at = len(head) + _TIME_AT
        self.push_bytes = len(head) + frame_bytes + len(CRLF)
        self.publishers = [PublisherEnd(traffic, self.channel) for _ in range(configuration.publishers)]
        self.subscribers = [_Subscriber(traffic, self) for _ in range(configuration.subscribers)]
        self._payload = b"\0" * payload_bytes
        self._packer, self._prefix = publish_command(self.channel, payload_bytes)
        self._turn = 0

    def send(self, count: int, at_ns: int) -> None:
        """The publishers take turns."""
        end = self.publishers[self._turn % len(self.publishers)]
        self._turn += 1
        if end.connection is not None:
            message = self._packer.pack(self._prefix, DATA, 0, 0, self._turn, at_ns, self._payload, CRLF)
            end.connection.write(message * count)


class Traffic:
    """The connections of one run. Open it with `await Traffic.open(...)`, and use it with `async with`."""

    def __init__(self, configuration: Configuration) -> None:
        self.latencies: list[tuple[float, int]] = []  # seconds, and how many messages took that long at most
        self.sent = 0
        self.received_bytes = 0
        self._topics = [_Topic(self, configuration) for _ in range(configuration.topics)]
        self._subscribers = configuration.subscribers
        self._push_bytes = self._topics[0].push_bytes  # the names of all channels have the same length
        rate_per_s = configuration.rate_per_s
        self._rate_per_s = None if rate_per_s is None else rate_per_s * configuration.topics
        self._next = 0  # the topic whose turn it is
        self._problem: asyncio.Future[ClusterError] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, url: str, credentials: Credentials, configuration: Configuration) -> Self:
        traffic = cls(configuration)
        try:
            # Publishers first: their test messages must not reach subscribers.
            for end in traffic._ends():
                await end.open(url, credentials)
        except BaseException:
            await traffic.close()
            raise
        return traffic

    def _ends(self) -> list[End]:
        publishers = [end for topic in self._topics for end in topic.publishers]
        return [*publishers, *(end for topic in self._topics for end in topic.subscribers)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for end in self._ends():
            end.close()
        await asyncio.sleep(0)  # lets the transports close their sockets

    def fail(self, problem: ClusterError) -> None:
        if not self._problem.done():
            self._problem.set_result(problem)

    def heard(self, written_ns: int, messages: int) -> None:
        self.latencies.append(((time.monotonic_ns() - written_ns) / 1e9, messages))

    @property
    def received(self) -> int:
        """Messages delivered, to all subscribers together."""
        return self.received_bytes // self._push_bytes

    @property
    def in_flight_bytes(self) -> int:
        return self.sent * self._subscribers * self._push_bytes - self.received_bytes

    async def publish(self, seconds: float) -> None:
        """Publish at the rate of the configuration, on all topics in turn, as far as there is room."""
        begun_s, before = time.monotonic(), self.sent
        while (elapsed_s := time.monotonic() - begun_s) < seconds:
            count = self._room()
            if self._rate_per_s is not None:
                count = min(count, int(self._rate_per_s * elapsed_s) - (self.sent - before))
            self._send(count)
            await self.wait(PACE_S)

    def _room(self) -> int:
        """How many more messages may be in flight. One always may, however large, if nothing else is."""
        free_bytes = IN_FLIGHT_MAX_BYTES - self.in_flight_bytes
        return max(free_bytes // (self._subscribers * self._push_bytes), int(self.in_flight_bytes <= 0))

    def _send(self, count: int) -> None:
        if count <= 0:
            return
        topics, at_ns = self._topics, time.monotonic_ns()
        share, rest = divmod(count, len(topics))
        for step in range(min(count, len(topics))):
            topics[(self._next + step) % len(topics)].send(share + (step < rest), at_ns)
        self._next = (self._next + count) % len(topics)
        self.sent += count

    async def wait(self, seconds: float) -> None:
        await asyncio.wait([self._problem], timeout=seconds)
        if self._problem.done():
            raise self._problem.result()
