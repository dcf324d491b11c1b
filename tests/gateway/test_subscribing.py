"""Subscriptions through gateways: shared, counted at the data cluster, fetched once, caught up after an absence."""

from __future__ import annotations

import asyncio

import pytest
from gateway_world import ROW, Worlds, no_more, take, take_results

from nearcast.core.wire.gateway import Missed, Result
from nearcast.core.wire.gateway import Refused as RefusedFrame
from nearcast.errors import AuthenticationFailed, Closed, Refused
from nearcast.subscriber.client import Subscriber
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live


def test_identical_subscriptions_are_one_at_the_data_cluster_and_fetched_once_by_each_gateway(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            urls = [await w.start_gateway(broker) for broker in ("b1", "b2")]
            for broker in ("b1", "b2"):
                await w.until_notified(broker)
            users = [Subscriber.connect(urls[number % 2], f"user{number}") for number in range(6)]
            for user in users:
                await user.__aenter__()
            ids = {await user.subscribe("by_kind", kind="fire") for user in users}
            assert len(ids) == 1
            (fire,) = ids
            flood = await users[0].subscribe("by_kind", kind="flood")
            assert w.data.held() == {"b1": 2, "b2": 1}
            assert w.data.catalog.channels.numbers("by_kind").held == 2
            await until(lambda: all(len(g.online()) == 3 for g in w.gateways.values()))

            fetched = w.data.requests["POST results"]
            await w.data.execute({fire: [ROW], flood: [ROW, ROW]})
            first = {event.subscription: event for event in await take(users[0], 2) if isinstance(event, Result)}
            assert (first[fire].rows, first[flood].rows) == ([ROW], [ROW, ROW])
            for user in users[1:]:
                assert await take_results(user, 1) == [1]
            # Each gateway fetches each backend subscription once; the two of b1 together, or one after the other.
            assert w.data.requests["POST results"] - fetched in (2, 3)

            for user in users[:5]:
                await user.unsubscribe(fire)
            await until(lambda: w.data.held() == {"b1": 1, "b2": 1})
            await users[5].unsubscribe(fire)
            await until(lambda: w.data.held() == {"b1": 1, "b2": 0})
            with pytest.raises(Refused, match="no subscription"):
                await users[5].unsubscribe(fire)
            for user in users:
                await user.close()

    asyncio.run(scenario())


def test_a_new_subscriber_gets_what_comes_and_not_what_was(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            async with Subscriber.connect(url, "ann") as ann, Subscriber.connect(url, "bob") as bob:
                fire = await ann.subscribe("by_kind", kind="fire")
                await w.data.execute({fire: [ROW]})
                assert await take_results(ann, 1) == [1]
                assert await bob.subscribe("by_kind", kind="fire") == fire
                assert bob.held[fire].from_execution == 2
                await w.data.execute({fire: [ROW]})
                assert await take_results(bob, 1) == [2]
                with pytest.raises(Refused, match="unknown channel"):
                    await ann.subscribe("nowhere")
                with pytest.raises(Refused, match="kind"):
                    await ann.subscribe("by_kind", knid="fire")

    asyncio.run(scenario())


def test_the_owner_of_a_subscription_that_was_set_aside_is_told_why(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            async with Subscriber.connect(url, "ann") as ann:
                fire = await ann.subscribe("by_kind", kind="fire")
                await w.data.execute({fire: [ROW]})
                assert await take_results(ann, 1) == [1]
                token = ann.token
            subscriptions, numbers = w.data.catalog.subscriptions, w.data.catalog.channels.numbers("by_kind")
            subscriptions.set_aside("by_kind", numbers.version, {fire: "division by zero"})
            async with Subscriber.connect(url, "ann", token=token) as ann:
                (told,) = await take(ann, 1)
                assert isinstance(told, RefusedFrame)
                assert told.problem == f"subscription {fire} is set aside: division by zero"
                with pytest.raises(Refused, match="division by zero"):
                    await ann.subscribe("by_kind", kind="fire")
                await ann.unsubscribe(fire)
                await until(lambda: w.data.held() == {"b1": 0})
                assert await ann.subscribe("by_kind", kind="fire") == fire
                await w.data.execute({fire: [ROW]})
                assert await take_results(ann, 1) == [2]

    asyncio.run(scenario())


@pytest.mark.parametrize("long_poll", [False, True], ids=["websocket", "long poll"])
def test_who_was_offline_gets_what_was_missed(world: Worlds, long_poll: bool) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway(catch_up_executions=5)
            async with Subscriber.connect(url, "ann", long_poll=long_poll) as ann:
                fire = await ann.subscribe("by_kind", kind="fire")
                await w.data.execute({fire: [ROW]})
                assert await take_results(ann, 1) == [1]
            assert w.data.held() == {"b1": 1}
            for _ in range(3):
                await w.data.execute({fire: [ROW]})
            async with Subscriber.connect(url, "ann", token=ann.token, long_poll=long_poll) as again:
                assert again.held[fire].parameters == {"kind": "fire"}
                assert await take_results(again, 3) == [2, 3, 4]
                await w.data.execute({fire: [ROW]})
                assert await take_results(again, 1) == [5]
            for _ in range(8):
                await w.data.execute({fire: [ROW]})
            async with Subscriber.connect(url, "ann", token=ann.token, long_poll=long_poll) as late:
                missed, *events = await take(late, 6)
                assert missed == Missed(fire, 5, 8)
                assert [event.execution for event in events if isinstance(event, Result)] == [9, 10, 11, 12, 13]
                assert no_more(late)

    asyncio.run(scenario())


def test_what_was_not_acknowledged_comes_again_at_the_next_login(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            ann = Subscriber.connect(url, "ann")
            await ann.__aenter__()
            fire = await ann.subscribe("by_kind", kind="fire")
            for _ in range(3):
                await w.data.execute({fire: [ROW]})
            assert await take_results(ann, 2) == [1, 2]  # asking for the second acknowledged the first
            await ann.close(acknowledge=False)
            async with Subscriber.connect(url, "ann", token=ann.token) as again:
                assert await take_results(again, 2) == [2, 3]

    asyncio.run(scenario())


def test_a_second_login_of_a_user_ends_the_first(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            async with Subscriber.connect(url, "ann") as ann:
                fire = await ann.subscribe("by_kind", kind="fire")
                async with Subscriber.connect(url, "ann", token=ann.token) as second:
                    with pytest.raises(Closed, match="logged in elsewhere"):
                        await asyncio.wait_for(ann.get(), 20)
                    await w.data.execute({fire: [ROW]})
                    assert await take_results(second, 1) == [1]
                    with pytest.raises(Refused, match="already registered"):
                        await Subscriber.connect(url, "ann", tokens=None).__aenter__()
                    with pytest.raises(AuthenticationFailed, match="not for this user"):
                        await Subscriber.connect(url, "bob", token=ann.token).__aenter__()

    asyncio.run(scenario())


def test_subscriptions_that_are_asked_for_at_once_count_together(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway(subscriptions=8)
            async with Subscriber.connect(url, "ann") as ann:
                asked = [ann.subscribe("by_kind", kind=f"kind{number}") for number in range(30)]
                answers = await asyncio.gather(*asked, return_exceptions=True)
                assert sum(isinstance(answer, str) for answer in answers) == 8
                assert w.data.held() == {"b1": 8}
                ended = next(answer for answer in answers if isinstance(answer, str))
                await ann.unsubscribe(ended)
                await ann.subscribe("by_kind", kind="one more")

    asyncio.run(scenario())
