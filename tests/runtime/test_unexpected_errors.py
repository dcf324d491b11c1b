"""Errors that nobody thought of end no long-lived task: it goes on, the log says so once, and `problem` shows it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

import nearcast
from nearcast.agent.process import Agent
from nearcast.core.agent.machine import Identity
from nearcast.core.controller.effects import Ask
from nearcast.core.controller.planner import Proposing
from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.names import PROVIDER_CHANNEL
from nearcast.core.model.placement import Mode
from nearcast.core.wire import bus
from nearcast.errors import ClusterError
from nearcast.runtime import workers
from nearcast.runtime.console import Console
from nearcast.runtime.controller import Controller
from nearcast.runtime.provider import DryProvider, ProviderDesk
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.runtime.store import MemoryStore
from nearcast.runtime.workers import KINDS_MAX, Troubles
from nearcast.testing.waiting import until

NOBODY = "redis://127.0.0.1:1"  # none of this needs a bus
TEST_S = 20.0
log = logging.getLogger("test.troubles")


def fails(patch: pytest.MonkeyPatch, owner: Any, name: str, times: int = 1) -> list[int]:
    """The next calls of a method raise an error of no kind that anybody expects; how many did, in a list."""
    original, raised = getattr(owner, name), [0]

    def surprise() -> None:
        if raised[0] < times:
            raised[0] += 1
            raise LookupError("a surprise")

    def called(*args: Any, **options: Any) -> Any:
        surprise()
        return original(*args, **options)

    async def awaited(*args: Any, **options: Any) -> Any:
        surprise()
        return await original(*args, **options)

    patch.setattr(owner, name, awaited if inspect.iscoroutinefunction(original) else called)
    return raised


# --- the log and the problem


def test_the_first_error_of_a_kind_is_logged_with_its_traceback_and_the_rest_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Troubles(log)
    for _ in range(500):
        found.note("a tick", LookupError("a surprise"))
    assert [(record.getMessage(), record.exc_info is not None) for record in caplog.records] == [
        ("a tick failed, and continues", True)
    ]
    monkeypatch.setattr(workers, "SHOWN_S", 0.0)
    found.note("a tick", LookupError("a surprise"))
    assert caplog.records[-1].getMessage() == "a tick failed 500 more times: LookupError('a surprise')"
    assert found.of("a tick") == "failed 501 times, last: LookupError('a surprise')"


def test_however_many_kinds_there_are_the_log_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    found = Troubles(log)
    for number in range(3 * KINDS_MAX):
        found.note(f"part {number}", LookupError())
    assert len(caplog.records) == KINDS_MAX + 1


def test_a_trouble_is_a_problem_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Troubles(log)
    assert found.problem == ""
    found.note("a tick", LookupError("a surprise"))
    assert found.problem == "a tick failed: LookupError('a surprise')"
    monkeypatch.setattr(workers, "SHOWN_S", 0.0)
    assert found.problem == ""


# --- agents and controllers


@contextlib.asynccontextmanager
async def a_cluster() -> AsyncIterator[tuple[LocalServer, LocalServer, Agent, Controller]]:
    async with await LocalServer.start(name="store") as store, await LocalServer.start(name="b1") as server:
        agent, controller = Agent(Identity("b1", server.url), server.url, store.url), Controller(store.url)
        await controller.start()
        await agent.start()
        try:
            yield store, server, agent, controller
        finally:
            await agent.stop()
            await controller.stop()


async def is_member(store: LocalServer) -> bool:
    with contextlib.suppress(ClusterError, KeyError):  # nobody leads yet, or it is not known yet
        async with Console(store.url) as console:
            return (await console.state(timeout_s=1.0)).brokers["b1"].state == "member"
    return False


async def forms(store: LocalServer) -> None:
    await until(lambda: is_member(store), "b1 is a member", TEST_S)


async def moved(console: Console) -> bool:
    with contextlib.suppress(ClusterError):  # what was lost with the connections is asked again
        await console.move("t", Mode.SINGLE, ("b1",), timeout_s=5.0)
        return True
    return False


@pytest.mark.parametrize("method", ["tick", "received", "connected", "lost", "outgoing"])
@pytest.mark.parametrize("who", ["agent", "controller"])
def test_a_machine_that_fails_goes_on_and_shows_it(who: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with a_cluster() as (store, _, agent, controller):
            await forms(store)
            process = agent if who == "agent" else controller
            raised = fails(monkeypatch, process._machine, method)
            for connection in list(process._driver._connections.values()):  # type: ignore[union-attr]
                assert connection._transport is not None
                connection._transport.abort()
            await until(lambda: raised == [1])
            await until(lambda: "a surprise" in process.problem)
            async with Console(store.url) as console:  # which takes both of them
                await until(lambda: moved(console), "a topic is moved", TEST_S)

    asyncio.run(scenario())


def test_what_an_owner_does_with_notes_ends_no_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        controller = Controller(NOBODY, store=MemoryStore())
        raised = fails(monkeypatch, controller, "on_note")
        await controller.start()
        await until(lambda: raised == [1] and controller.leads)
        await controller.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["campaigned", "committed", "loaded"])
def test_an_answer_of_the_store_that_cannot_be_taken_ends_no_desk(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        controller = Controller(NOBODY, store=MemoryStore())
        raised = fails(monkeypatch, controller._machine, method)
        await controller.start()
        await until(lambda: controller.leads)
        if method == "committed":
            leader = controller._machine.leading
            assert leader is not None
            leader.ledger.write({MEMBERSHIP_KEY: leader.journal.membership})
        await until(lambda: raised == [1])
        await until(lambda: controller.leads)
        assert "a surprise" in controller._troubles.problem
        assert all(state.startswith("running") for state in controller._desk._workers.health.values())  # type: ignore[union-attr]
        await controller.stop()

    asyncio.run(scenario())


def test_a_policy_whose_answer_cannot_be_taken_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Confused:
        name = "confused"

        def propose(self, *snapshot: Any) -> Any:
            return "more brokers, please"

    async def scenario() -> None:
        controller = Controller(NOBODY, store=MemoryStore(), policy=Confused())
        heard: list[object] = []

        def answered(number: int, proposal: Any, now_s: float) -> None:
            heard.append(proposal)
            raise TypeError("what is this?")

        monkeypatch.setattr(controller._machine, "answered", answered)
        await controller.start()
        await controller._think(Ask(1, Proposing(Confused()), _View()))
        assert heard == ["more brokers, please"]
        assert "what is this?" in controller.problem
        await controller.stop()

    class _View:
        def snapshot(self) -> tuple[object, object]:
            return object(), object()

    asyncio.run(scenario())


# --- clients


def test_a_connection_that_cannot_even_be_tried_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(url: str) -> str:
        raise LookupError("a surprise")

    async def scenario() -> None:
        with pytest.raises(ClusterError, match="a surprise"):
            async with asyncio.timeout(TEST_S), nearcast.Client(NOBODY, resolve=lost, bootstrap_s=1.0):
                pass

    asyncio.run(scenario())


# --- providers


def test_a_provider_that_fails_in_its_own_way_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        provider = DryProvider()
        raised = fails(monkeypatch, provider, "rent")
        async with await LocalServer.start() as server:
            asker = Requester(server.url)
            async with ProviderDesk(server.url, provider) as desk:
                await asker.ask("PUBLISH", PROVIDER_CHANNEL, bus.encode(bus.Rent("a", 1)))
                await until(lambda: raised == [1])
                await until(lambda: "a surprise" in desk.problem)
                await asker.ask("PUBLISH", PROVIDER_CHANNEL, bus.encode(bus.Rent("a", 1)))
                await until(lambda: provider.calls == [("rent", "a")])
            await asker.close()

    asyncio.run(scenario())
