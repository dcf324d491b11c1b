"""The agent process is a list of parts: they start in order and stop in reverse; the first that ends ends all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from nearcast.agent.parts import AgentSettings, Part, Parts, Task, assemble
from nearcast.core.agent.machine import Identity
from nearcast.core.model.names import READY_KEY
from nearcast.errors import ClusterError
from nearcast.runtime.controller import Controller
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.testing.waiting import until


class Recorded:
    """A part that writes down what is done with it."""

    def __init__(
        self,
        name: str,
        calls: list[str],
        *,
        start_fails: bool = False,
        start_waits: bool = False,
        stop_fails: bool = False,
    ) -> None:
        self._name = name
        self._calls = calls
        self._start_fails = start_fails
        self._start_waits = start_waits
        self._stop_fails = stop_fails
        self.problem = ""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        self._calls.append(f"start {self._name}")
        if self._start_fails:
            raise ClusterError(f"{self._name} does not start")
        if self._start_waits:
            await asyncio.Event().wait()

    async def ended(self) -> None:
        await asyncio.shield(self.over)

    async def stop(self) -> None:
        self._calls.append(f"stop {self._name}")
        if self._stop_fails:
            raise ClusterError(f"{self._name} does not stop")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 30))


def test_parts_start_in_order_and_stop_in_the_opposite_order() -> None:
    async def scenario() -> None:
        calls: list[str] = []
        parts = Parts([Recorded(name, calls) for name in "abc"])
        await parts.start()
        await parts.stop()
        assert calls == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]

    run(scenario())


def test_a_part_that_does_not_start_is_stopped_with_those_before_it() -> None:
    async def scenario() -> None:
        calls: list[str] = []
        parts = Parts([Recorded("a", calls), Recorded("b", calls, start_fails=True), Recorded("c", calls)])
        with pytest.raises(ClusterError, match="b does not start"):
            await parts.start()
        await parts.stop()
        assert calls == ["start a", "start b", "stop b", "stop a"]

    run(scenario())


def test_a_part_that_does_not_stop_keeps_no_other_running() -> None:
    async def scenario() -> None:
        calls: list[str] = []
        parts = Parts([Recorded("a", calls), Recorded("b", calls, stop_fails=True)])
        await parts.start()
        with pytest.raises(ClusterError, match="b does not stop"):
            await parts.stop()
        assert calls[-1] == "stop a"

    run(scenario())


def test_the_first_part_that_ends_ends_the_process_with_its_reason() -> None:
    async def scenario() -> None:
        recorded = [Recorded(name, []) for name in "ab"]
        parts = Parts(recorded)
        await parts.start()
        ending = asyncio.create_task(parts.ended())
        await asyncio.wait([ending], timeout=0.05)  # nothing has ended
        assert not ending.done()
        recorded[1].over.set_exception(ClusterError("refused"))
        with pytest.raises(ClusterError, match="refused"):
            await ending
        await parts.stop()

    run(scenario())


def test_a_part_that_ends_while_a_later_one_waits_to_start_ends_the_start_with_its_reason() -> None:
    async def scenario() -> None:
        calls: list[str] = []
        recorded = [Recorded("a", calls), Recorded("b", calls, start_waits=True), Recorded("c", calls)]
        parts = Parts(recorded)
        starting = asyncio.create_task(parts.start())
        await asyncio.wait([starting], timeout=0.05)  # b waits, for the store perhaps
        recorded[0].over.set_exception(ClusterError("refused"))
        with pytest.raises(ClusterError, match="refused"):
            await asyncio.wait_for(starting, 5)
        await parts.stop()
        assert calls == ["start a", "start b", "stop b", "stop a"]

    run(scenario())


def test_the_problems_of_all_parts_are_shown() -> None:
    async def scenario() -> None:
        recorded = [Recorded(name, []) for name in "abc"]
        parts = Parts(recorded)
        assert parts.problem == ""
        recorded[0].problem, recorded[2].problem = "no lease", "no rights"
        assert parts.problem == "no lease; no rights"

    run(scenario())


def test_a_task_runs_until_it_is_stopped_and_reports_its_failure() -> None:
    async def scenario() -> None:
        running, cancelled, fail = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def forever() -> None:
            running.set()
            try:
                await fail.wait()
                raise ClusterError("gone")
            finally:
                cancelled.set()

        task = Task(forever, lambda: "slow")
        assert task.problem == "slow"
        await task.start()
        await running.wait()
        await task.stop()
        assert cancelled.is_set()

        failing = Task(forever)
        assert failing.problem == ""
        await failing.start()
        fail.set()
        with pytest.raises(ClusterError, match="gone"):
            await failing.ended()
        await failing.stop()

    run(scenario())


@pytest.mark.live
def test_an_assembled_agent_serves_its_broker_and_reports_the_death_of_its_server() -> None:
    async def scenario() -> None:
        async with await LocalServer.start() as server, await LocalServer.start() as store:
            settings = AgentSettings(
                identity=Identity("b1", server.url), server_url=server.url, store_url=store.url, server_pid=server.pid
            )
            parts: Part = assemble(settings)
            controller, asking = Controller(store.url), Requester(server.url)
            await parts.start()
            await controller.start()
            try:
                await until(lambda: _exists(asking, READY_KEY), "the broker is ready")
                assert parts.problem == ""
                server.kill()
                await until(lambda: server.url in parts.problem, "the problem names the server that is gone")
            finally:
                await parts.stop()
                await controller.stop()
                await asking.close()

    run(scenario())


async def _exists(requester: Requester, key: str) -> bool:
    return await requester.ask("EXISTS", key) == 1
