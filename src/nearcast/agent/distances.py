"""The part of the agent process that measures distances, and works out which brokers are near a topic's clients.

It answers probes, probes the other brokers, and estimates how far clients are from brokers they have not probed. The
arithmetic needs NumPy, and runs in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from nearcast.agent.detours import Detours
from nearcast.agent.locating import Locating
from nearcast.core.model.bounds import Bounds, BoundsOfTopics
from nearcast.core.model.distances import BrokerDistances, TopicDistances, latency_s
from nearcast.core.wire.probes import Prober
from nearcast.runtime.probing import Probing

if TYPE_CHECKING:
    from nearcast.agent.estimates import Estimates
    from nearcast.core.agent.clients import RoundTrips
    from nearcast.core.agent.followers import Taken
    from nearcast.core.agent.machine import Agent as Machine

LOOK_S = 0.5  # between two looks at what clients have said
LISTEN_AGAIN_S = 2.0
TOPICS_AT_ONCE = 2000
PROBED_BROKERS = 1000  # an agent measures its distance to all others

log = logging.getLogger("nearcast.agent")


class ProbeOptions(msgspec.Struct, frozen=True):
    """Where an agent answers probes. Port 0: any that is free. `via`: a table of detours to others."""

    host: str = "0.0.0.0"
    port: int = 0
    via: Path | None = None


class Distances:
    """A part of the agent process. Without NumPy it only answers probes and measures brokers."""

    def __init__(self, machine: Machine, options: ProbeOptions) -> None:
        self._machine = machine
        self._options = options
        self._prober = Prober(random.Random(), targets=PROBED_BROKERS)
        self._detours = Detours(options.via)
        self._probing = Probing(
            self._prober, tick=self._aim, changed=self._measured, answers=True, resolve=self._detours.resolve
        )
        self._members = -1  # version of the membership we aim by
        self._bounds: Bounds = {}
        self._locating = Locating(random.Random())
        self._told: BrokerDistances | None = None  # the leader's last message
        self._estimates: Estimates | None = None
        self._task: asyncio.Task[None] | None = None
        self._problem = ""

    @property
    def problem(self) -> str:
        return self._problem

    async def start(self) -> None:
        self._estimates = _estimates(self._machine.identity.broker)
        self._task = asyncio.create_task(self._run())

    async def _listen(self) -> None:
        """Another agent of this broker may have the port, and be about to end: try again until it is free."""
        while True:
            try:
                port = await self._probing.start(self._options.host, self._options.port)
            except OSError as error:
                self._problem = (
                    f"cannot answer probes at UDP port {self._options.port} ({error.strerror or error}): topics are not"
                    " kept near clients of this broker; free the port, or choose another with --probe"
                )
                await asyncio.sleep(LISTEN_AGAIN_S)
            else:
                self._problem = ""
                host = urlsplit(self._machine.identity.url).hostname or "127.0.0.1"
                self._machine.probes = f"udp://{f'[{host}]' if ':' in host else host}:{port}"
                return

    async def ended(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self._probing.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _aim(self) -> None:
        self._detours.look()
        membership = self._machine.membership
        if membership.version != self._members:
            self._members = membership.version
            own = self._machine.identity.broker
            others = {name: info.probes for name, info in membership.brokers.items() if info.probes and name != own}
            self._prober.aim(others)

    def _measured(self) -> None:
        self._machine.reporting.probed(self._prober.round_trips_s)

    async def _run(self) -> None:
        await self._listen()
        while True:
            await asyncio.sleep(LOOK_S)
            if self._estimates is not None:
                try:
                    await self._look(self._estimates)
                except Exception:  # one topic with strange clients must not end all estimates
                    log.exception("distances could not be estimated")

    def _locate(self, estimates: Estimates, told: BrokerDistances) -> bool:
        """Take one step with every message of the leader. Returns whether that changes the estimates."""
        if told is self._told:
            return False
        self._told = told
        if not told.centroids:
            return estimates.located({})
        own = self._machine.identity.broker
        here = self._locating.heard(told.coordinates, self._prober.round_trips_s)
        self._machine.reporting.located(here)
        return estimates.located(told.coordinates | {own: here})

    async def _look(self, estimates: Estimates) -> None:
        clients, membership = self._machine.reporting.clients, self._machine.membership
        told = self._machine.broker_distances
        news = estimates.between(told.round_trips_s, self._prober.round_trips_s, time.monotonic())
        if self._locate(estimates, told) or news or membership.bounds != self._bounds:
            self._bounds = membership.bounds
            clients.all_again()
        taken = clients.take(TOPICS_AT_ONCE)
        if not taken:
            return
        known = clients.round_trips_s(taken.clients)
        clients.again(await asyncio.to_thread(taken.concerned))
        found, sought = await asyncio.to_thread(_estimated, estimates, taken, known, membership.bounds)
        self._machine.reporting.estimated(found, sought, time.monotonic())


def _estimated(
    estimates: Estimates, taken: Taken, known: dict[int, RoundTrips], bounds: Bounds
) -> tuple[dict[str, TopicDistances | None], dict[str, set[str]]]:
    """Runs in a thread. The distances of topics; and by topic that misses its bound, the brokers to measure."""
    topics, bounds_of_topics = taken.complete(), BoundsOfTopics(bounds)
    found = estimates.of(topics, known)
    missing = [one for one in topics if _misses(found[one.topic], one.topic, bounds_of_topics)]
    return found, estimates.sought(missing, found)


def _misses(found: TopicDistances | None, topic: str, bounds: BoundsOfTopics) -> bool:
    bound = bounds.of(topic) if found is not None else None
    return found is not None and bound is not None and latency_s(found.now, bound) > bound.seconds


def _estimates(broker: str) -> Estimates | None:
    try:
        from nearcast.agent.estimates import Estimates
    except ModuleNotFoundError as missing:
        log.info("distances of topics are not estimated without %s: pip install 'nearcast[policies]'", missing.name)
        return None
    return Estimates(broker)
