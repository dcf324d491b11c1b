"""Many subscribers of one gateway: one result, fetched once, to all of them."""

from __future__ import annotations

import asyncio
import time

import pytest
from gateway_world import Worlds, take_results

from nearcast.subscriber.client import Subscriber
from nearcast.testing.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("heavy")]

SUBSCRIBERS = 400
ROWS = [{"id": number, "message": "x" * 100} for number in range(10)]


def test_one_result_reaches_all_subscribers_of_a_gateway(world: Worlds, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> float:
        async with world() as w:
            url = await w.start_gateway(unknown_per_address=SUBSCRIBERS)
            await w.until_notified()
            register = w.gateways["b1"].users.register
            users = {user: await register(user) for user in (f"user{number}" for number in range(SUBSCRIBERS))}
            subscribers = [Subscriber.connect(url, user, token=token) for user, token in users.items()]
            await asyncio.gather(*(subscriber.__aenter__() for subscriber in subscribers))
            ids = set(await asyncio.gather(*(each.subscribe("by_kind", kind="fire") for each in subscribers)))
            assert len(ids) == 1
            assert w.data.held() == {"b1": 1}
            (fire,) = ids
            sessions = w.gateways["b1"]._sessions.values()
            await until(lambda: all(session.deliveries[fire].list_after() is None for session in sessions))
            fetched = w.data.requests["POST results"]
            begun_s = time.monotonic()
            await w.data.execute({fire: ROWS})
            for subscriber in subscribers:
                assert await take_results(subscriber, 1) == [1]
            elapsed_s = time.monotonic() - begun_s
            assert w.data.requests["POST results"] - fetched == 1
            await asyncio.gather(*(subscriber.close() for subscriber in subscribers))
            return elapsed_s

    elapsed_s = asyncio.run(scenario())
    with capsys.disabled():
        print(f"\none result to {SUBSCRIBERS} subscribers: {elapsed_s:.3f} s")
