"""Emulated links for UDP: a relay that delays and loses datagrams, and keeps their boundaries.

    client's socket ──> relay's port ══ delay + jitter, a share is lost ══> a socket per client ──> target
                    <──              ══════════════════════════════════                         <──

The target sees each client under an address of its own, so its answers find their way back. As on a real network, a
datagram may overtake another: jitter is drawn for each, and a link that becomes shorter is shorter at once.

Every queue has a limit. What is beyond it is dropped and counted, as is what a full or closed socket refuses.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Self

import msgspec

from nearcast.errors import UsageError

_HOST = "127.0.0.1"
_DATAGRAM_BYTES = 65_535  # no UDP datagram is larger
_READS_MOST = 64  # datagrams read at once, so that a flood does not keep the event loop to itself
QUEUED_MOST = 1024  # datagrams in flight, both directions together
SOURCES_MOST = 256  # clients that are told apart; beyond it the one silent for longest is forgotten

Source = tuple[str, int]


class DatagramShape(msgspec.Struct, frozen=True):
    """A link's figures: a datagram is lost with `loss_share`, or takes `delay_s` plus 0 to `jitter_s`, one way."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss_share: float = 0.0

    def __post_init__(self) -> None:
        if min(self.delay_s, self.jitter_s) < 0 or not 0 <= self.loss_share <= 1:
            raise UsageError(f"{self}: delay and jitter must be 0 or more, loss_share from 0 to 1")


class DatagramCounts(msgspec.Struct):
    """What became of datagrams, both directions together."""

    delivered: int = 0
    lost: int = 0  # on purpose
    dropped: int = 0  # the queue or a socket was full, or nobody listens there


class DatagramRelay:
    """A link to `target`, for any number of clients; they send to `port`. Make one with `DatagramRelay.start(...)`."""

    def __init__(self, target: Source, shape: DatagramShape, rng: random.Random, queued_most: int) -> None:
        self.target = target
        self.counts = DatagramCounts()
        self._shape = shape
        self._rng = rng
        self._queued_most = queued_most
        self._loop = asyncio.get_running_loop()
        self._queue: list[tuple[float, int, socket.socket, bytes, Source]] = []  # a heap by arrival
        self._number = 0  # orders datagrams with the same arrival
        self._timer: asyncio.TimerHandle | None = None
        self._socket = _bound()
        self._sources: OrderedDict[Source, socket.socket] = OrderedDict()  # the longest silent first

    @classmethod
    def start(
        cls,
        target: Source,
        shape: DatagramShape | None = None,
        *,
        rng: random.Random,
        queued_most: int = QUEUED_MOST,
    ) -> Self:
        """Listen on a free loopback port."""
        relay = cls(target, shape or DatagramShape(), rng, queued_most)
        relay._loop.add_reader(relay._socket, relay._read, relay._socket, relay._there)
        return relay

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def queued(self) -> int:
        return len(self._queue)

    def reshape(self, shape: DatagramShape) -> None:
        """Change the link for datagrams that enter from now on."""
        self._shape = shape

    def close(self) -> None:
        """Stop, and forget what is in flight."""
        if self._timer is not None:
            self._timer.cancel()
        self._queue.clear()
        for each in (self._socket, *self._sources.values()):
            self._close(each)
        self._sources.clear()

    # --- arrivals at the relay

    def _read(self, ready: socket.socket, enter: Callable[[bytes, Source], None]) -> None:
        for _ in range(_READS_MOST):
            try:
                data, sender = ready.recvfrom(_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            except OSError:  # an answer to an earlier datagram: nobody listens there
                self.counts.dropped += 1
                continue
            enter(data, sender)

    def _there(self, data: bytes, sender: Source) -> None:
        self._enter(self._outlet(sender), data, self.target)

    def _outlet(self, sender: Source) -> socket.socket:
        """The socket under which the target sees this client."""
        found = self._sources.get(sender)
        if found is None:
            if len(self._sources) >= SOURCES_MOST:
                self._close(self._sources.popitem(last=False)[1])
            found = self._sources[sender] = _bound()
            self._loop.add_reader(found, self._read, found, lambda data, _: self._enter(self._socket, data, sender))
        self._sources.move_to_end(sender)
        return found

    def _enter(self, outlet: socket.socket, data: bytes, receiver: Source) -> None:
        shape = self._shape
        if shape.loss_share and self._rng.random() < shape.loss_share:
            self.counts.lost += 1
        elif len(self._queue) >= self._queued_most:
            self.counts.dropped += 1
        else:
            jitter_s = shape.jitter_s * self._rng.random() if shape.jitter_s else 0.0
            self._number += 1
            arrival_s = time.monotonic() + shape.delay_s + jitter_s
            heapq.heappush(self._queue, (arrival_s, self._number, outlet, data, receiver))
            if self._queue[0][1] == self._number:  # it arrives before all others
                self._deliver()

    # --- arrivals at the other end

    def _deliver(self) -> None:
        """Send what has arrived, and set the timer for what has not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = time.monotonic()
        while self._queue and self._queue[0][0] <= now_s:
            _, _, outlet, data, receiver = heapq.heappop(self._queue)
            try:
                outlet.sendto(data, receiver)
            except OSError:  # full, or closed because its client was forgotten
                self.counts.dropped += 1
            else:
                self.counts.delivered += 1
        if self._queue:
            self._timer = self._loop.call_later(self._queue[0][0] - now_s, self._deliver)

    def _close(self, each: socket.socket) -> None:
        self._loop.remove_reader(each)
        each.close()


def _bound() -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setblocking(False)
    opened.bind((_HOST, 0))
    return opened
