"""Subscribers are balanced between real gateways while results and topic messages flow: nothing lost, nothing twice.

Real servers, agents with gateways, controller and REST application; only Spark is played, by committing executions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import nearcast
from nearcast.core.wire import bus
from nearcast.core.wire.gateway import Result, TopicGap, TopicMessage
from nearcast.errors import ClusterError, Refused
from nearcast.runtime.console import Console
from nearcast.subscriber.client import Subscriber
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("heavy")]

WAIT_S = 60.0
SUBSCRIBERS = 12
TOPIC = "news"
THRESHOLDS = ("alpha=0.2", "beta_bytes_per_s=0", "gamma=10", "theta_bytes_per_s=0")  # no shuffle but on request
OPTIONS = ["--balance", "ldm", "--balance-every", "1", *(part for one in THRESHOLDS for part in ("--balance-set", one))]


class Crowd:
    """Subscribers that all log in at one gateway, and everything that came to each."""

    def __init__(self) -> None:
        self.subscribers: list[Subscriber] = []
        self.came: dict[str, list[Any]] = {}
        self._readers: list[asyncio.Task[None]] = []

    async def come(self, url: str, stack: contextlib.AsyncExitStack) -> None:
        for number in range(SUBSCRIBERS):
            subscriber = await stack.enter_async_context(Subscriber.connect(url, f"u{number:02d}"))
            await subscriber.subscribe("by_kind", kind=f"kind-{number}")
            await subscriber.subscribe_topic(TOPIC)
            self.came[subscriber.user] = []
            self.subscribers.append(subscriber)
            self._readers.append(asyncio.create_task(self._read(subscriber)))
        stack.push_async_callback(self._stop)

    async def _read(self, subscriber: Subscriber) -> None:
        async for event in subscriber.events():
            self.came[subscriber.user].append(event)

    async def _stop(self) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def executions(self, user: str) -> list[int]:
        return [event.execution for event in self.came[user] if isinstance(event, Result)]

    def payloads(self, user: str) -> list[str]:
        return [event.payload for event in self.came[user] if isinstance(event, TopicMessage)]

    def gaps(self) -> list[TopicGap]:
        return [event for events in self.came.values() for event in events if isinstance(event, TopicGap)]


class Traffic:
    """Executions that give every subscription a row, and messages of one topic, until told to end."""

    def __init__(self, data: Any, url: str, crowd: Crowd) -> None:
        self.executions: list[int] = []
        self.messages = 0
        self._data = data
        self._url = url
        self._held = [held for subscriber in crowd.subscribers for held in subscriber.held]
        self.ended = asyncio.Event()
        self._ending = asyncio.Event()

    async def run(self) -> None:
        async with nearcast.connect(self._url) as client:
            await asyncio.gather(self._execute(), self._publish(client))
        self.ended.set()

    def end(self) -> None:
        self._ending.set()

    async def ended_after(self, executions: int) -> None:
        """Go on until there have been this many, and return when nothing is under way any more."""
        await until(lambda: len(self.executions) >= executions, "executions")
        self.end()
        await self.ended.wait()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), seconds)

    async def _execute(self) -> None:
        while not self._ending.is_set():
            rows = [{"id": len(self.executions), "message": "x" * 500}]
            self.executions.append(await self._data.execute(dict.fromkeys(self._held, rows)))
            await self._pause(0.4)

    async def _publish(self, client: nearcast.Client) -> None:
        while not self._ending.is_set():
            await client.publish(TOPIC, f"message {self.messages}".encode())
            self.messages += 1
            await self._pause(0.02)


@contextlib.asynccontextmanager
async def a_skewed_cluster(folder: Path, data_cluster: Any) -> AsyncIterator[tuple[LocalCluster, Crowd, Traffic]]:
    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            await LocalCluster.start(3, gateways=True, controller_options=OPTIONS)
        )
        data = data_cluster(folder / "data", cluster.store_url)
        stack.push_async_callback(data.close)
        await data.start()
        await data.create_channel()
        console = await cluster.console()
        await until_state(console, lambda state: len(state.gateways) == 3)
        crowd = Crowd()
        await crowd.come(cluster.gateway_urls["b1"], stack)
        traffic = Traffic(data, cluster.urls["b2"], crowd)
        running = asyncio.create_task(traffic.run())
        try:
            yield cluster, crowd, traffic
        finally:
            traffic.end()
            await running


async def until_state(console: Console, true: Any) -> bus.State:
    """The first state of which it is true; the last one is shown if there is none."""
    states: list[bus.State] = []

    async def came() -> bool:
        states[:] = [await console.subscribers(timeout_s=WAIT_S)]
        return bool(true(states[0]))

    try:
        await until(came, within_s=WAIT_S)
    except AssertionError:
        decisions = [decision.text for decision in (await console.state()).decisions]
        pytest.fail(f"never came true: {[(state.gateways, state.moving) for state in states]}; decided: {decisions}")
    return states[0]


def counts(state: bus.State) -> list[int]:
    return sorted(view.subscribers for view in state.gateways.values())


def sessions(cluster: LocalCluster) -> dict[str, int]:
    """Connections that each gateway has open."""
    found = {}
    for broker, url in cluster.gateway_urls.items():
        with urlopen(f"{url}/health", timeout=WAIT_S) as answer:
            found[broker] = json.load(answer)["sessions"]
    return found


async def shuffled(console: Console) -> bus.State:
    """Moves that the controller has just decided may stand in the way of a shuffle."""
    states: list[bus.State] = []

    async def accepted() -> bool:
        with contextlib.suppress(Refused):
            states.append(await console.shuffle_subscribers(timeout_s=WAIT_S))
        return bool(states)

    await until(accepted, "a shuffle", WAIT_S)
    return states[0]


def test_balancing_and_a_shuffle_lose_and_repeat_nothing(tmp_path: Path, data_cluster: Any) -> None:
    async def scenario() -> None:
        async with a_skewed_cluster(tmp_path, data_cluster) as (cluster, crowd, traffic):
            console = await cluster.console()
            await until_state(console, lambda state: counts(state) == [4, 4, 4] and not state.moving)
            before = {subscriber.user: subscriber.moves for subscriber in crowd.subscribers}
            assert sum(before.values()) >= 8
            planned = await shuffled(console)
            await until_state(console, lambda state: sum(counts(state)) == SUBSCRIBERS and not state.moving)
            moved = [s.user for s in crowd.subscribers if s.moves > before[s.user]]
            assert planned.moving, "the shuffle moved nobody: this proved nothing"
            assert set(planned.moving) <= set(moved)
            user = crowd.subscribers[0]
            target = next(name for name in sorted(cluster.urls) if name != user.broker)
            with contextlib.suppress(ClusterError):  # balancing may have sent it back before we looked
                await console.move_subscriber(user.user, target, timeout_s=5.0)
            await _until_all_came(crowd, traffic)
            await _check_assignments(cluster, console, crowd)

    asyncio.run(scenario())


async def _until_all_came(crowd: Crowd, traffic: Traffic) -> None:
    assert traffic.messages > 50  # else the moves were not under load
    assert len(traffic.executions) >= 3
    await traffic.ended_after(len(traffic.executions) + 2)
    with contextlib.suppress(AssertionError):  # what is missing then is shown below
        await until(
            lambda: all(
                len(crowd.executions(user)) >= len(traffic.executions) and len(crowd.payloads(user)) >= traffic.messages
                for user in crowd.came
            )
        )
    await asyncio.sleep(0.5)  # for what comes twice
    assert crowd.gaps() == []
    sent = [f"message {number}" for number in range(traffic.messages)]
    assert {user: _wrong(crowd.executions(user), traffic.executions) for user in crowd.came} == dict.fromkeys(
        crowd.came
    )
    assert {user: _wrong(crowd.payloads(user), sent) for user in crowd.came} == dict.fromkeys(crowd.came)


def _wrong(came: list[Any], expected: list[Any]) -> str | None:
    """What is missing, repeated or out of order; None if nothing is."""
    if came == expected:
        return None
    missing = [one for one in expected if one not in came]
    repeated = sorted({one for one in came if came.count(one) > 1})
    return f"{len(came)} of {len(expected)} came; missing {missing[:10]}, repeated {repeated[:10]}, else out of order"


async def _check_assignments(cluster: LocalCluster, console: Console, crowd: Crowd) -> None:
    """Everybody is where the controller thinks, and nobody has a second session."""

    def settled(state: bus.State) -> bool:
        here = dict.fromkeys(state.gateways, 0)
        for subscriber in crowd.subscribers:
            here[subscriber.broker] += 1
        shown = {name: view.subscribers for name, view in state.gateways.items()}
        return not state.moving and shown == here == sessions(cluster)

    await until_state(console, settled)
