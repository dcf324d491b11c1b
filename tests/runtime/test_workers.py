"""Workers survive what nobody thought of, and say so."""

from __future__ import annotations

import asyncio
import logging

from nearcast.runtime.workers import Troubles, Workers


def test_a_worker_that_fails_begins_again_and_tells_its_health() -> None:
    async def scenario() -> None:
        workers, turns, served = (
            Workers(Troubles(logging.getLogger("test"))),
            iter([RecursionError("too deep"), KeyError("x")]),
            asyncio.Event(),
        )

        async def job() -> None:
            for error in turns:
                raise error
            served.set()
            await asyncio.Event().wait()

        async def short() -> None:
            pass

        workers.start("backend subscriptions", job)
        workers.start("topics", short)
        await asyncio.wait_for(served.wait(), 5.0)
        assert workers.health == {
            "backend subscriptions": "running; failed 2 times, last: KeyError('x')",
            "topics": "done",
        }
        await workers.stop()

    asyncio.run(scenario())
