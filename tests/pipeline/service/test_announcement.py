"""Where the data cluster is said again and again, whatever happens to the one who says it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from nearcast.core.model.names import DATA_KEY
from nearcast.pipeline.service import process
from nearcast.pipeline.service.process import Announcement
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.runtime.workers import Troubles
from nearcast.testing.waiting import until

WAIT_S = 10.0


def test_an_announcement_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    original, raised = process.RespConnection, []

    def surprise(url: str) -> Any:
        if not raised:
            raised.append(url)
            raise LookupError("a surprise")
        return original(url)

    async def scenario() -> None:
        monkeypatch.setattr(process, "RENEW_S", 0.05)
        monkeypatch.setattr(process, "RespConnection", surprise)
        troubles = Troubles(logging.getLogger("test"))
        async with await LocalServer.start() as store, asyncio.timeout(WAIT_S):
            asker = Requester(store.url)
            announcing = asyncio.create_task(Announcement(store.url, "http://here", troubles).keep())
            await until(lambda: asker.ask("EXISTS", DATA_KEY), "it is announced")
            assert "a surprise" in troubles.problem
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)
            await asker.close()

    asyncio.run(scenario())
