"""The subscriber's client: moves make before break, and other gateways when its own is gone."""

from __future__ import annotations

import asyncio

import pytest
from gateway_world import ROW, Worlds, no_more, take_results

from nearcast.core.wire.gateway import Result, TopicMessage
from nearcast.errors import Closed, ConnectFailed
from nearcast.subscriber import transport
from nearcast.subscriber.client import Subscriber
from nearcast.subscriber.transport import Progress
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live


def test_a_client_drops_what_it_has() -> None:
    progress = Progress()
    results = [progress.is_new(Result("s", "c", execution, [])) for execution in (1, 3, 3, 2, 4)]
    assert results == [True, True, False, False, True]
    messages = [
        progress.is_new(TopicMessage(topic, "", publisher, sequence, 0.0))
        for topic, publisher, sequence in [("t", "a", 1), ("t", "b", 1), ("u", "a", 1), ("t", "a", 1), ("t", "a", 2)]
    ]
    assert messages == [True, True, True, False, True]
    assert (progress.cursors, progress.repeats) == ({"s": 4}, 3)


@pytest.mark.parametrize("long_poll", [False, True], ids=["websocket", "long poll"])
def test_moves_between_gateways_lose_and_repeat_nothing(world: Worlds, long_poll: bool) -> None:
    async def scenario() -> None:
        async with world() as w:
            urls = {broker: await w.start_gateway(broker) for broker in ("b1", "b2")}
            async with Subscriber.connect(urls["b1"], "ann", long_poll=long_poll) as ann:
                fire = await ann.subscribe("by_kind", kind="fire")
                executing = asyncio.create_task(_execute(w.data, fire, 60))
                for move in range(6):
                    here, there = ("b1", "b2") if move % 2 == 0 else ("b2", "b1")
                    await until(lambda here=here: "ann" in w.gateways[here].online())
                    assert w.gateways[here].order_move("ann", there, urls[there])
                    assert w.gateways[here].order_move("ann", there, urls[there])  # orders are said again
                    await until(lambda move=move: ann.moves == move + 1)
                assert await take_results(ann, 60) == list(range(1, 61))
                await executing
                assert no_more(ann)
                assert (ann.broker, ann.moves, ann.reconnects) == ("b1", 6, 0)
                # Held where the user is, and nowhere else.
                await until(lambda: w.data.held() == {"b1": 1, "b2": 0})
                assert list(w.gateways["b2"].online()) == []
                await ann.subscribe("by_kind", kind="flood")
                assert w.data.held()["b1"] == 2

    asyncio.run(scenario())


async def _execute(data: object, subscription: str, count: int) -> None:
    for _ in range(count):
        await data.execute({subscription: [ROW]})  # type: ignore[attr-defined]
        await asyncio.sleep(0.02)  # paces them, so that the moves are made meanwhile


def test_an_order_to_a_gateway_that_does_not_answer_changes_nothing(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            async with Subscriber.connect(url, "ann") as ann:
                fire = await ann.subscribe("by_kind", kind="fire")
                assert w.gateways["b1"].order_move("ann", "b9", "http://127.0.0.1:1")
                assert not w.gateways["b1"].order_move("eve", "b9", "http://127.0.0.1:1")
                await w.data.execute({fire: [ROW]})
                assert await take_results(ann, 1) == [1]
                await ann.subscribe("by_kind", kind="flood")
                assert (ann.moves, ann.url) == (0, url)
            with pytest.raises(ConnectFailed):
                await Subscriber.connect("http://127.0.0.1:1", "bob").__aenter__()

    asyncio.run(scenario())


def test_when_its_gateway_is_gone_a_client_goes_to_another(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            urls = {broker: await w.start_gateway(broker) for broker in ("b1", "b2")}
            async with Subscriber.connect(urls["b1"], "ann") as ann:
                fire = await ann.subscribe("by_kind", kind="fire")
                await w.data.execute({fire: [ROW]})
                await w.stop_gateway("b1")
                await w.data.execute({fire: [ROW]})
                assert await take_results(ann, 2) == [1, 2]
                assert (ann.broker, ann.url) == ("b2", urls["b2"])
                assert w.data.held()["b2"] == 1

    asyncio.run(scenario())


def test_a_move_waits_for_what_the_gateway_is_still_to_do(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway it goes to would not know of the new subscription, and nobody would deliver it."""
    monkeypatch.setattr(transport, "LEAVE_S", 0.3)

    async def scenario() -> None:
        async with world() as w:
            urls = {broker: await w.start_gateway(broker) for broker in ("b1", "b2")}
            async with Subscriber.connect(urls["b1"], "ann") as ann:
                await ann.subscribe("by_kind", kind="fire")
                await w.data.stop()
                subscribing = asyncio.create_task(ann.subscribe("by_kind", kind="flood"))
                await until(lambda: ann._line and ann._line._unanswered, "it is asked")
                assert w.gateways["b1"].order_move("ann", "b2", urls["b2"])
                await asyncio.sleep(1.0)  # longer than LEAVE_S: nothing moves
                assert (ann.moves, ann.broker) == (0, "b1")
                await w.data.start()
                flood = await subscribing
                assert w.gateways["b1"].order_move("ann", "b2", urls["b2"])
                await until(lambda: ann.moves == 1)
                await w.data.execute({flood: [ROW]})
                assert await take_results(ann, 1) == [1]

    asyncio.run(scenario())


def test_results_that_wait_when_it_is_closed_come_at_the_next_login_and_not_before(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            async with Subscriber.connect(url, "ann") as ann:
                fire = await ann.subscribe("by_kind", kind="fire")
                for _ in range(3):
                    await w.data.execute({fire: [ROW]})
                await until(lambda: ann.cursors == {fire: 3})
                assert await take_results(ann, 1) == [1]
                closing = asyncio.create_task(ann.close())
                await asyncio.sleep(0)  # it begins
                with pytest.raises(Closed):
                    await ann.get()
                await closing
            async with Subscriber.connect(url, "ann", token=ann.token) as again:
                assert await take_results(again, 2) == [2, 3]
                assert no_more(again)

    asyncio.run(scenario())
