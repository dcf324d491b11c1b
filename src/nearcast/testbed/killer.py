"""A killer: ends an agent or the controller with SIGKILL, starts it anew and waits until it is at work again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from nearcast.core.bus import State
from nearcast.errors import ClusterError, ServerFailed
from nearcast.testbed.cluster import LocalCluster

BACK_S = 20.0
POLL_S = 0.1


class Killer:
    """Of a cluster with one controller. `tell` gets a line for every kill and every return."""

    def __init__(self, cluster: LocalCluster, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._tell = tell

    async def agent(self, broker: str) -> None:
        self._tell(f"kill -9 of the agent of {broker}")
        begun_s, killed_at_s = time.monotonic(), time.time()
        await self._cluster.restart_agent(broker)
        # A broker outlives its agent for a while: only a later report proves that there is another.
        await self._until(lambda state: _reported_s(state, broker) > killed_at_s)
        self._tell(f"the agent of {broker} is back, it reports after {time.monotonic() - begun_s:.1f} s")

    async def controller(self) -> None:
        before = (await (await self._cluster.console()).overview()).leader
        self._tell("kill -9 of the controller")
        begun_s = time.monotonic()
        await self._cluster.restart_controller(0)
        await self._until(lambda state: state.leader != before)
        self._tell(f"the controller is back, it answers after {time.monotonic() - begun_s:.1f} s")

    async def _until(self, condition: Callable[[State], bool]) -> None:
        console, ends_s = await self._cluster.console(), time.monotonic() + BACK_S
        while time.monotonic() < ends_s:
            try:
                if condition(await console.overview(timeout_s=1.0)):
                    return
            except ClusterError:
                continue  # nobody leads at the moment
            await asyncio.sleep(POLL_S)
        raise ServerFailed(f"what was killed is not back after {BACK_S:g} s; is this machine overloaded?")


def _reported_s(state: State, broker: str) -> float:
    report = state.brokers[broker].report
    return report.at_s if report is not None else 0.0
