"""The desk between controller and store: failures of any kind end neither the tasks nor the cluster's leadership."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from nearcast.core.controller.effects import Leadership
from nearcast.errors import ConnectFailed
from nearcast.runtime.controller import Controller
from nearcast.runtime.store import MemoryStore
from nearcast.testing.waiting import until

NOBODY = "redis://127.0.0.1:1"  # none of this needs a bus
LOAD_S = 1.6  # longer than a leadership lasts without being renewed
FSYNC_S = 0.6  # more than half of that time


class FlakyStore(MemoryStore):
    """Fails the first load, or the first of anything, in the way it was told."""

    def __init__(self, error: Exception, fails: str) -> None:
        super().__init__()
        self._error: Exception | None = error
        self._fails = fails

    async def campaign(self, candidate: str, stale: str, above: int = 0) -> Leadership:
        self._fail("campaign")
        return await super().campaign(candidate, stale, above)

    async def load(self, take: Callable[[dict[str, bytes]], None]) -> int:
        self._fail("load")
        return await super().load(take)

    def _fail(self, what: str) -> None:
        if what == self._fails and self._error is not None:
            error, self._error = self._error, None
            raise error


class SlowStore(MemoryStore):
    async def load(self, take: Callable[[dict[str, bytes]], None]) -> int:
        await asyncio.sleep(LOAD_S)  # slow
        return await super().load(take)


class SlowDisk(MemoryStore):
    """Each campaign waits for the disk, and one for the other: what comes meanwhile is written with the next."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def campaign(self, candidate: str, stale: str, above: int = 0) -> Leadership:
        self.asked += 1
        slow_s = FSYNC_S * (0.5 if self.asked % 2 else 1.0)  # the later one may be ready before
        await asyncio.sleep(slow_s)  # the disk
        return await super().campaign(candidate, stale, above)


async def led_within(seconds: float, *controllers: Controller) -> None:
    await until(lambda: any(controller.leads for controller in controllers), "one leads", seconds)


@pytest.mark.parametrize("fails", ["load", "campaign"])
@pytest.mark.parametrize("error", [ConnectFailed("closed by the server"), ValueError("a surprise")], ids=type)
def test_a_store_that_fails_once_is_asked_again(error: Exception, fails: str) -> None:
    async def scenario() -> None:
        controller = Controller(NOBODY, name="one", store=FlakyStore(error, fails))
        await controller.start()
        await led_within(2.0, controller)
        await controller.stop()

    asyncio.run(scenario())


def test_after_a_failed_load_another_controller_leads() -> None:
    async def scenario() -> None:
        store = FlakyStore(ConnectFailed("closed by the server"), "load")
        one, two = Controller(NOBODY, name="one", store=store), Controller(NOBODY, name="two", store=store)
        notes: list[str] = []
        one.on_note = notes.append
        await one.start()
        await two.start()
        await led_within(2.0, one, two)
        assert any("the journal could not be read: closed by the server" in note for note in notes)
        await one.stop()
        await two.stop()

    asyncio.run(scenario())


def test_what_the_store_does_wrong_is_shown() -> None:
    async def scenario() -> None:
        class Broken(MemoryStore):
            async def campaign(self, candidate: str, stale: str, above: int = 0) -> Leadership:
                raise ValueError("a surprise")

        controller = Controller(NOBODY, store=Broken())
        await controller.start()
        desk = controller._desk
        assert desk is not None
        await until(lambda: desk.problem == "a surprise", "it is shown")
        await controller.stop()

    asyncio.run(scenario())


def test_a_load_that_takes_longer_than_a_leadership_ends_in_leading() -> None:
    async def scenario() -> None:
        controller = Controller(NOBODY, store=SlowStore())
        await controller.start()
        await led_within(LOAD_S + 1.0, controller)
        assert controller._machine._term == 1
        await controller.stop()

    asyncio.run(scenario())


def test_a_slow_disk_does_not_cost_the_leadership() -> None:
    async def scenario() -> None:
        controller = Controller(NOBODY, store=SlowDisk())
        notes: list[str] = []
        controller.on_note = notes.append
        await controller.start()
        await led_within(FSYNC_S + 1.0, controller)
        await asyncio.sleep(4 * FSYNC_S)  # it leads all this time
        assert [note for note in notes if "no longer leads" in note] == []
        await controller.stop()

    asyncio.run(scenario())
