"""Probing over a real socket: runs a prober, and answers the probes of others. IPv4 alone."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

from nearcast.core.client.machine import Client
from nearcast.core.client.presence import BehindOf
from nearcast.core.model.settings import RateLimit
from nearcast.core.wire.probes import Prober, answer_to

TICK_MIN_S, TICK_MAX_S = 0.05, 0.5
ANSWERS_PER_S, ANSWERS_BURST = 5000.0, 1000.0  # a flood of probes must not keep an agent from its work
LOOK_UP_S = 60.0  # between two looks at where a host name leads

log = logging.getLogger("nearcast.probing")

Endpoint = tuple[str, int]
Resolve = Callable[[str], str]


class HostNames:
    """Where host names lead. They are looked up in the background: the loop never waits for a name server."""

    def __init__(self) -> None:
        self._found: dict[Endpoint, tuple[float, Endpoint | None]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def endpoint(self, host: str, port: int) -> Endpoint | None:
        """The address, as far as it is known by now."""
        now_s = time.monotonic()
        looked_s, found = self._found.get((host, port), (-LOOK_UP_S, None))
        if now_s - looked_s >= LOOK_UP_S:
            self._found[host, port] = (now_s, found)
            task = asyncio.create_task(self._look_up(host, port))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        return found

    async def _look_up(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError) as error:  # the latter: it cannot be a name
            log.debug("%s is not found: %s", host, error)
        else:
            host_found, port_found = found[0][4][:2]
            self._found[host, port] = (time.monotonic(), (str(host_found), int(port_found)))

    def close(self) -> None:
        for task in self._asking:
            task.cancel()


class Probing(asyncio.DatagramProtocol):
    """One UDP socket. `tick` is called before each of the prober's ticks, `changed` when it has news."""

    def __init__(
        self,
        prober: Prober,
        *,
        tick: Callable[[], None],
        changed: Callable[[], None],
        answers: bool = False,
        resolve: Resolve | None = None,
    ) -> None:
        self.answered = 0
        self.ignored = 0  # probes beyond the limit
        self._prober = prober
        self._on_tick = tick
        self._changed = changed
        self._answers = answers
        self._resolve = resolve
        self._names = HostNames()
        self._limit = RateLimit(ANSWERS_PER_S, ANSWERS_BURST)
        self._told = 0
        self._transport: asyncio.DatagramTransport | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, host: str = "0.0.0.0", port: int = 0) -> int:
        """Open the socket, and begin to probe. Returns its port. Raises OSError if it cannot be opened."""
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, local_addr=(host, port))
        assert self._transport is not None
        self._run()
        return int(self._transport.get_extra_info("sockname")[1])

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._names.close()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Endpoint) -> None:
        now_s = time.monotonic()
        answer = answer_to(data) if self._answers else None
        if answer is None:
            self._prober.answered(data, now_s)
        elif self._limit.room(now_s) >= 1 and self._transport is not None:
            self._limit.spend(1)
            self.answered += 1
            self._transport.sendto(answer, addr)
        else:
            self.ignored += 1

    def error_received(self, exc: Exception) -> None:
        """Somewhere nobody listens. Whoever does not answer is out of reach; nothing else follows from it."""

    def _run(self) -> None:
        self._on_tick()
        for url, datagram in self._prober.tick(time.monotonic()):
            self._send(url, datagram)
        if self._prober.version != self._told:
            self._told = self._prober.version
            self._changed()
        wait_s = min(TICK_MAX_S, max(TICK_MIN_S, self._prober.next_s - time.monotonic()))
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._run)

    def _send(self, url: str, datagram: bytes) -> None:
        try:
            parts = urlsplit(self._resolve(url) if self._resolve is not None else url)
        except (LookupError, ValueError):  # no address, or an emulated network without it: as if nobody answered
            return
        endpoint = self._names.endpoint(parts.hostname or "", parts.port or 0)
        if endpoint is not None and self._transport is not None:
            self._transport.sendto(datagram, endpoint)


class ClientProbes:
    """A client measures how far brokers are, and tells their agents. Where UDP is not let through it knows nothing."""

    def __init__(self, machine: Client, resolve: Resolve | None, *, enabled: bool) -> None:
        self._machine = machine
        self._enabled = enabled
        self._prober = Prober(random.Random())
        self._probing = Probing(self._prober, tick=self._aim, changed=self._measured, resolve=resolve)
        self._aimed: tuple[int, frozenset[str], frozenset[str]] = (-1, frozenset(), frozenset())

    async def start(self) -> None:
        try:
            if self._enabled:
                await self._probing.start()
        except OSError as error:
            log.warning("distances are not measured: %s", error)

    def stop(self) -> None:
        self._probing.stop()

    def count_behind(self, behind: BehindOf) -> None:
        """For a gateway: from now on, agents also hear how far its users are, as this function says by topic."""
        self._machine.presence.behind = behind

    def _aim(self) -> None:
        membership = self._machine.membership
        used = frozenset(link.broker for link in self._machine.links.all_up())
        sought = self._machine.presence.sought(time.monotonic())
        if (membership.version, used, sought) != self._aimed:
            self._aimed = (membership.version, used, sought)
            addresses = {name: info.probes for name, info in membership.brokers.items() if info.probes}
            self._prober.aim(addresses, used, sought)

    def _measured(self) -> None:
        self._machine.presence.probed(self._prober.round_trips_s)
