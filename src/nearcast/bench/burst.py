"""A burst: one measurement of one way to publish, from the first message sent to the last one received."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from nearcast.errors import Unavailable

PAYLOAD = b"x" * 200
TASKS = 64  # concurrent publishers where each awaits its message
WINDOW = 4000  # messages in flight at most: what nearcast allows per topic, given to all sides
LOST_S = 10.0  # a message not received after so long is lost
LOOK_S = 0.0005  # how often we look whether all has come; 0.1 % of a burst of half a second


class Receiver(Protocol):
    received: int  # messages its subscriber got, ever


class Peer(Receiver, Protocol):
    """A library, connected to the server as publisher and as subscriber of one topic, in this process."""

    async def publish(self) -> object: ...


@dataclass(frozen=True)
class Limit:
    """A burst ends at whichever comes first."""

    seconds: float = 0.5
    messages: float = math.inf


class Burst:
    """How much one side may still send, and has sent."""

    def __init__(self, receiver: Receiver, limit: Limit) -> None:
        self.sent = 0
        self._receiver = receiver
        self._received_before = receiver.received
        self._messages = limit.messages
        self._begun_s = perf_counter()
        self._until_s = self._begun_s + limit.seconds

    def take(self, wanted: int) -> int:
        """How many of the wanted messages are to be sent now; 0 when the burst is over."""
        if perf_counter() >= self._until_s:
            return 0
        taken = int(min(wanted, self._messages - self.sent))
        self.sent += taken
        return taken

    @property
    def in_flight(self) -> int:
        return self.sent - (self._receiver.received - self._received_before)

    async def room(self) -> None:
        """Let the subscriber catch up, where the library itself does not see to that."""
        while True:
            if self.in_flight <= WINDOW:
                return
            await asyncio.sleep(0)

    async def finish(self) -> float:
        """Wait for the last message; returns messages per second."""
        lost_at_s = perf_counter() + LOST_S
        while True:
            if self.in_flight <= 0:
                return self.sent / (perf_counter() - self._begun_s)
            if perf_counter() > lost_at_s:
                raise Unavailable(f"{self.in_flight} of {self.sent} messages did not arrive: run the benchmark again")
            await asyncio.sleep(LOOK_S)


Send = Callable[[Burst], Awaitable[None]]


async def rate_of(receiver: Receiver, send: Send, limit: Limit) -> float:
    """Messages per second of one burst."""
    gc.collect()  # nobody pays for the garbage of the one before
    burst = Burst(receiver, limit)
    await send(burst)
    return await burst.finish()


def by_tasks(peer: Peer) -> Send:
    """Many tasks, each awaiting its message before it sends the next."""

    async def worker(burst: Burst) -> None:
        while burst.take(1):
            await peer.publish()

    async def send(burst: Burst) -> None:
        await asyncio.gather(*(worker(burst) for _ in range(TASKS)))

    return send
