"""Controllers that are stopped in good order: the one that waits leads at once, and a dead store holds up nobody."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.core.model.settings import Timing
from nearcast.runtime import controller as controller_module
from nearcast.runtime.controller import Controller
from nearcast.runtime.servers import LocalServer
from nearcast.runtime.store import MemoryStore
from nearcast.testing.waiting import until

NOBODY = "redis://127.0.0.1:1"  # the store in memory needs no bus
PATIENT = Timing(leader_s=4.0, lease_s=10.0, dead_s=12.0, heartbeat_s=1.0)


async def until_it_leads(controller: Controller) -> None:
    await until(lambda: controller.leads, "it leads")


@pytest.mark.live
def test_who_waits_takes_over_long_before_the_lead_would_have_ended() -> None:
    async def scenario() -> None:
        async with await LocalServer.start(name="store") as store:
            first, second = (Controller(store.url, timing=PATIENT) for _ in range(2))
            await first.start()
            await until_it_leads(first)
            await second.start()
            try:
                await first.stop()
                assert not first.leads
                async with asyncio.timeout(PATIENT.leader_s):  # it campaigns four times in that
                    await until_it_leads(second)
            finally:
                await second.stop()

    asyncio.run(scenario())


class DeafStore(MemoryStore):
    """Answers campaigns, and nothing after somebody has resigned."""

    async def resign(self, candidate: str) -> None:
        await asyncio.Event().wait()


def test_a_store_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(controller_module, "RESIGN_S", 0.1)
        controller = Controller(NOBODY, store=DeafStore())
        await controller.start()
        await until_it_leads(controller)
        async with asyncio.timeout(5):
            await controller.stop()

    asyncio.run(scenario())
