"""A collector without the rights it needs says so: feeds would stay empty without a word."""

from __future__ import annotations

import asyncio
import logging

import pytest

from nearcast.agent.collector import Collector
from nearcast.core.model.names import FEEDS, feed_keys
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

RIGHTS = {
    "the list of feeds": ["+@all", "~nc:other*"],
    "feed reports is not collected by this agent": ["+@all", f"~{FEEDS}"],
}


@pytest.mark.parametrize("said", RIGHTS)
def test_missing_rights_are_said_loudly(said: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with await LocalServer.start() as server:
            admin = Requester(server.url)
            await admin.ask("ACL", "SETUSER", "poor", "on", ">secret", "&*", *RIGHTS[said])
            stream = feed_keys("reports").stream
            await admin.ask("HSET", FEEDS, "reports", f'{{"topic": "t", "stream": "{stream}"}}')
            collector = Collector("b1", server.url, server.url.replace("redis://", "redis://poor:secret@"))
            task = asyncio.create_task(collector.serve())
            try:
                await until(lambda: any(said in record.getMessage() for record in caplog.records), said)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await admin.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert [record.levelname for record in caplog.records if said in record.getMessage()] == ["ERROR"], "once"
