"""A channel with the parameter `user`: everybody gets what is her own, whatever she asks for."""

from __future__ import annotations

import asyncio

import pytest
from gateway_world import ROW, Worlds, no_more, take, take_results

from nearcast.core.wire.gateway import Result
from nearcast.errors import Refused
from nearcast.subscriber.client import Subscriber
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

MINE = (
    "CREATE CHANNEL mine(kind STRING, user STRING) PERIOD 10 SECONDS AS "
    "SELECT id, message FROM NEW reports WHERE kind = :kind AND message = :user"
)


def test_two_users_with_the_same_parameters_never_see_each_others_results(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            await w.data.create_channel(MINE)
            urls = [await w.start_gateway(broker) for broker in ("b1", "b2")]
            for broker in ("b1", "b2"):
                await w.until_notified(broker)
            async with (
                Subscriber.connect(urls[0], "ann") as ann,
                Subscriber.connect(urls[0], "bob") as bob,
                Subscriber.connect(urls[1], "eve") as eve,
            ):
                people = {"ann": ann, "bob": bob, "eve": eve}
                held = {name: await one.subscribe("mine", kind="fire") for name, one in people.items()}
                assert len(set(held.values())) == 3
                for name in ("ann", "ANN", ""):
                    with pytest.raises(Refused, match="the login is"):
                        await eve.subscribe("mine", kind="fire", user=name)
                assert await ann.subscribe("mine", kind="fire", user="ann") == held["ann"]

                rows = {name: {"id": number, "message": name} for number, name in enumerate(people)}
                await w.data.execute({held[name]: [row] for name, row in rows.items()}, "mine")
                for name, one in people.items():
                    (event,) = await take(one, 1)
                    assert isinstance(event, Result)
                    assert (event.subscription, event.rows) == (held[name], [rows[name]])
                await w.data.execute({held["ann"]: [ROW]}, "mine")
                assert await take_results(ann, 1) == [2]

                with pytest.raises(Refused, match="no subscription"):
                    await eve.unsubscribe(held["ann"])
                assert all(no_more(one) for one in people.values())

    asyncio.run(scenario())


def test_a_cursor_for_anothers_subscription_gives_nothing(world: Worlds) -> None:
    """Who knows, or works out, the id of another's subscription names it when logging in."""

    async def scenario() -> None:
        async with world() as w:
            await w.data.create_channel(MINE)
            url = await w.start_gateway()
            await w.until_notified()
            async with Subscriber.connect(url, "ann") as ann:
                hers = await ann.subscribe("mine", kind="fire")
                await w.data.execute({hers: [ROW]}, "mine")
                assert await take_results(ann, 1) == [1]
                eve = Subscriber.connect(url, "eve")
                eve._progress.cursors[hers] = 0
                async with eve:
                    own = await eve.subscribe("mine", kind="fire")
                    await w.data.execute({hers: [ROW], own: [ROW]}, "mine")
                    (event,) = await take(eve, 1)
                    assert isinstance(event, Result)
                    assert (event.subscription, event.execution) == (own, 2)
                    await until(lambda: not no_more(ann))
                    assert no_more(eve)

    asyncio.run(scenario())
