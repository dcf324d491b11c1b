"""Local clusters: they come up, their parts die and come back, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import nearcast
from nearcast.core.model.journal import BrokerState
from nearcast.core.model.placement import Mode
from nearcast.errors import ServerFailed, UsageError
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.waiting import until, wait_until

pytestmark = pytest.mark.live

PROGRAM = """
import asyncio, json
from nearcast.runtime.guardian import guardian
from nearcast.testing.cluster import LocalCluster

async def main():
    async with await LocalCluster.start(brokers=2) as cluster:
        pids = [*cluster.pids.values(), guardian().pid]
        print(json.dumps({"pids": pids, "folder": str(cluster._folder)}), flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def running(pid: int) -> bool:
    """Is there such a process? One that has ended and only waits for its parent does not count."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def still_running(pids: list[int], within_s: float = 5.0) -> list[int]:
    with suppress(AssertionError):  # who is left is told
        wait_until(lambda: not any(map(running, pids)), within_s=within_s)
    return [pid for pid in pids if running(pid)]


async def until_state(cluster: LocalCluster, broker: str, wanted: BrokerState) -> float:
    """Seconds until the controller says so."""
    console, begun_s = await cluster.console(), time.monotonic()

    async def is_so() -> bool:
        return (await console.state()).brokers[broker].state == wanted

    await until(is_so, f"{broker} is {wanted}", 10.0)
    return time.monotonic() - begun_s


def test_a_cluster_of_named_brokers_carries_messages_and_leaves_nothing() -> None:
    async def scenario() -> tuple[list[int], Path]:
        async with await LocalCluster.start(["paris", "rome"], sites={"rome": "south"}, controllers=2) as cluster:
            assert set(cluster.urls) == {"paris", "rome"}
            brokers = (await (await cluster.console()).state()).brokers
            assert {name: view.site for name, view in brokers.items()} == {"paris": "local", "rome": "south"}
            async with nearcast.connect(cluster.urls["rome"]) as client:
                subscription = await client.subscribe("t")
                await client.publish("t", b"hello")
                event = await subscription.get()
                assert isinstance(event, nearcast.Message)
                assert event.payload == b"hello"
            assert cluster.ended == []
            assert len(cluster.pids) == 7
            return list(cluster.pids.values()), cluster._folder

    pids, folder = asyncio.run(scenario())
    assert still_running(pids) == []
    assert not folder.exists()


def test_agents_and_controllers_come_back() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=2, controllers=2) as cluster:
            console = await cluster.console()
            await cluster.kill_agent("b1")
            assert cluster.ended == ["agent-b1"]
            await cluster.restart_agent("b1")
            for number in (0, 1):
                await cluster.kill_controller(number)
            assert cluster.ended == ["controller-0", "controller-1"]
            await cluster.restart_controller(1)
            await cluster.until_members()
            moved = await console.move("t", Mode.ALL_SUBSCRIBERS, ("b1", "b2"))
            assert moved.placement.brokers == ("b1", "b2")
            await cluster.add_broker("b3", site="south")
            assert (await console.state()).brokers["b3"].site == "south"
            with pytest.raises(UsageError, match="already has a broker 'b3'"):
                await cluster.add_broker("b3")
            with pytest.raises(UsageError, match="no broker 'b9'"):
                await cluster.kill_agent("b9")

    asyncio.run(scenario())


def test_a_servers_death_is_seen_at_once_and_again_after_it_came_back() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=2) as cluster:
            url = cluster.urls["b1"]
            for _ in range(2):
                await cluster.kill_server("b1")
                # Without the watched process it would take T_dead: 3 s.
                assert await until_state(cluster, "b1", BrokerState.DEAD) < 2.0
                await cluster.restart_server("b1")
                await cluster.until_members()
                assert cluster.urls["b1"] == url

    asyncio.run(scenario())


def test_a_cluster_that_does_not_come_up_shows_the_logs() -> None:
    async def scenario() -> None:
        begun_s = time.monotonic()
        with pytest.raises(ServerFailed, match=r"agent-bad name ended(.|\n)*agent-bad name: error: bad broker name"):
            await LocalCluster.start(["b1", "bad name"])
        assert time.monotonic() - begun_s < 15  # it does not wait for what cannot come

    asyncio.run(scenario())


def test_a_broker_that_does_not_join_in_time_is_named() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=1) as cluster:
            cluster.pause()
            with pytest.raises(ServerFailed, match=r"b1 did not join within 1 s(.|\n)*agent-b1: (.|\n)*controller-0: "):
                await cluster.until_members(timeout_s=1)
            cluster.resume()
            await cluster.until_members()

    asyncio.run(scenario())


def test_nothing_is_left_when_the_program_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        told = json.loads(program.stdout.readline())
        assert len(told["pids"]) == 7
        assert all(map(running, told["pids"]))
        program.kill()
    assert still_running(told["pids"]) == []
    assert not Path(told["folder"]).exists()
