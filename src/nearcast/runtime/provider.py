"""Provisioning: a provider starts servers when the cluster needs more, and stops them when it needs fewer.

A provider has two calls. The desk listens for what the controller asks, and makes the calls one after another. Both
must be idempotent, because the controller repeats every request until it sees the effect. A request that the controller
no longer repeats when its turn comes is skipped: the broker may carry topics again, or may no longer be needed. To use
the machines of a cloud, write the two calls and run a desk beside the controller:

    async with ProviderDesk(store_url, MyCloud()):
        ...
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, Self

from nearcast.core.controller.departures import SAY_AGAIN_S
from nearcast.core.model.names import PROVIDER_CHANNEL
from nearcast.core.wire import bus
from nearcast.errors import NearcastError
from nearcast.runtime.requester import Requester
from nearcast.runtime.workers import Troubles, Workers

LISTEN_S = 1.0  # how often the desk makes sure that it is connected
WAITING_MAX = 1000  # calls; more are dropped, since the controller repeats them
WANTED_S = 3 * SAY_AGAIN_S  # a call not repeated for this long is no longer wanted

log = logging.getLogger("nearcast.provider")


class Provider(Protocol):
    """Starts and stops servers for the cluster. Both calls must be idempotent."""

    async def rent(self, broker: str) -> None:
        """Start a server and its agent under this name, unless they run already."""

    async def release(self, broker: str, url: str) -> None:
        """Stop the agent and the server of this broker, if it is at this URL. It no longer carries topics."""


class DryProvider:
    """Starts and stops nothing, only reports what it was asked: shows what a policy would do before you pay for it."""

    def __init__(self, say: Callable[[str], None] = log.info) -> None:
        self.calls: list[tuple[str, str]] = []
        self._say = say

    async def rent(self, broker: str) -> None:
        self._note("rent", broker)

    async def release(self, broker: str, url: str) -> None:
        self._note("release", broker)

    def _note(self, verb: str, broker: str) -> None:
        if not self.calls or self.calls[-1] != (verb, broker):
            self.calls.append((verb, broker))
            self._say(f"would {verb} {broker}")


class ProviderDesk:
    """Listens to the controller, and makes the provider's calls."""

    def __init__(self, store_url: str, provider: Provider) -> None:
        self._provider = provider
        self._requester = Requester(store_url)
        self._calls: asyncio.Queue[bus.ToProvider | None] = asyncio.Queue()
        self._requested_s: dict[bus.ToProvider, float] = {}  # calls that wait or are being made: when last asked for
        self._troubles = Troubles(log)
        self._listening = Workers(self._troubles)
        self._serving: asyncio.Task[None] | None = None

    @property
    def problem(self) -> str:
        """The last unexpected error, if recent; empty if there was none."""
        return self._troubles.problem

    async def __aenter__(self) -> Self:
        await self._requester.listen(PROVIDER_CHANNEL, self._heard)
        self._listening.start("listening to the controller", self._stay_connected)
        self._serving = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Wait for the call in progress: half a server is worse than none."""
        await self._requester.close()
        await self._listening.stop()
        while not self._calls.empty():
            self._calls.get_nowait()
        self._calls.put_nowait(None)
        if self._serving is not None:
            await self._serving

    def _heard(self, payload: bytes) -> None:
        call = bus.decode_for_provider(payload)
        if call is None:
            return
        if call not in self._requested_s:
            if len(self._requested_s) >= WAITING_MAX:
                return
            self._calls.put_nowait(call)
        self._requested_s[call] = _now_s()

    async def _stay_connected(self) -> None:
        while True:
            await asyncio.sleep(LISTEN_S)
            try:
                await self._requester.ask("PING")
            except NearcastError as error:
                log.warning("%s", error)

    async def _serve(self) -> None:
        while (call := await self._calls.get()) is not None:
            if _now_s() - self._requested_s[call] < WANTED_S:
                await self._make(call)
            del self._requested_s[call]

    async def _make(self, call: bus.ToProvider) -> None:
        try:
            if isinstance(call, bus.Rent):
                await self._provider.rent(call.broker)
            else:
                await self._provider.release(call.broker, call.url)
        except (NearcastError, OSError) as error:
            log.warning("%s of %s failed: %s", type(call).__name__.lower(), call.broker, error)
        except Exception as error:  # a bug in the provider; the controller asks again
            self._troubles.note(f"the provider's {type(call).__name__.lower()}", error)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
