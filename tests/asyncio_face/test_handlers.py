"""Handlers and run(): the same with redis-py on one server and with nearcast on a cluster."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.testing.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("asyncio_face_handlers")]

WAIT_S = 5.0


class Heard:
    """A handler that keeps what it is given."""

    def __init__(self):
        self.items = []

    def sync(self, item):
        self.items.append((item["type"], item["channel"], item["data"]))

    async def later(self, item):
        await asyncio.sleep(0)  # a handler that gives way
        self.sync(item)

    async def until(self, count):
        await until(lambda: len(self.items) >= count, f"{count} are heard", WAIT_S)
        return self.items


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture(params=["sync", "later"])
def handler(request, heard):
    return getattr(heard, request.param)


async def heard_by_somebody(client, channel, data):
    """Publish it when the subscription is there: before that nobody would hear it."""
    await until(lambda: client.publish(channel, data), f"somebody hears {channel}", WAIT_S)


async def confirmed(pubsub, count=1):
    for _ in range(count):
        assert (await pubsub.get_message(timeout=WAIT_S))["type"].endswith("subscribe")


async def test_a_handler_takes_the_message(client, pubsub, channel, said, heard, handler):
    await pubsub.subscribe(channel + "2", **{channel: handler})
    await confirmed(pubsub, 2)
    await client.publish(channel, "x")
    assert await pubsub.get_message(timeout=WAIT_S) is None
    assert heard.items == [("message", said(channel), said("x"))]
    await client.publish(channel + "2", "y")
    assert (await pubsub.get_message(timeout=WAIT_S))["data"] == said("y")
    assert pubsub.channels == {said(channel): handler, said(channel + "2"): None}


async def test_a_handler_of_a_pattern(client, pubsub, channel, said, heard, handler):
    await pubsub.psubscribe(**{channel + "*": handler})
    await pubsub.subscribe(channel)
    await confirmed(pubsub, 2)
    await client.publish(channel, "x")
    found = [await pubsub.get_message(timeout=WAIT_S) for _ in range(2)]
    assert [item and item["type"] for item in found] == ["message", None]
    assert heard.items == [("pmessage", said(channel), said("x"))]


async def test_a_subscription_object_brings_its_handler(face, client, pubsub, channel, said, heard):
    await pubsub.subscribe(face.module.Subscription(channel, heard.sync), face.module.Subscription(channel + "2"))
    await confirmed(pubsub, 2)
    await client.publish(channel, "x")
    assert await pubsub.get_message(timeout=WAIT_S) is None
    assert heard.items == [("message", said(channel), said("x"))]


async def test_subscribing_again_changes_the_handler(client, pubsub, channel, said, heard):
    await pubsub.subscribe(**{channel: heard.sync})
    await pubsub.subscribe(channel)
    await confirmed(pubsub, 2)
    await client.publish(channel, "x")
    assert (await pubsub.get_message(timeout=WAIT_S))["data"] == said("x")
    assert heard.items == []


async def test_listen_leaves_out_what_handlers_take(client, pubsub, channel, said, heard, handler):
    await pubsub.subscribe(channel + "2", **{channel: handler})
    await confirmed(pubsub, 2)
    await client.publish(channel, "x")
    await client.publish(channel + "2", "y")
    async for item in pubsub.listen():
        assert item["data"] == said("y")
        break
    assert heard.items == [("message", said(channel), said("x"))]


async def test_an_error_of_a_handler_is_raised_and_reading_goes_on(client, pubsub, channel, said):
    def refuse(item):
        raise LookupError(item["data"])

    await pubsub.subscribe(channel + "2", **{channel: refuse})
    await confirmed(pubsub, 2)
    await client.publish(channel, "x")
    with pytest.raises(LookupError):
        await pubsub.get_message(timeout=WAIT_S)
    await client.publish(channel + "2", "y")
    assert (await pubsub.get_message(timeout=WAIT_S))["data"] == said("y")


async def test_run_gives_everything_to_the_handlers(client, pubsub, channel, said, heard, handler):
    await pubsub.subscribe(**{channel: handler})
    await pubsub.psubscribe(**{channel + "?": handler})
    running = asyncio.create_task(pubsub.run(poll_timeout=0.05))
    await heard_by_somebody(client, channel, "x")
    await heard.until(1)
    await heard_by_somebody(client, channel + "2", "y")
    assert await heard.until(2) == [
        ("message", said(channel), said("x")),
        ("pmessage", said(channel + "2"), said("y")),
    ]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_run_goes_on_with_channels_subscribed_meanwhile(client, pubsub, channel, said, heard):
    await pubsub.subscribe(**{channel: heard.sync})
    running = asyncio.create_task(pubsub.run(poll_timeout=0.05))
    await heard_by_somebody(client, channel, "x")
    await heard.until(1)
    await pubsub.subscribe(**{channel + "2": heard.later})
    await heard_by_somebody(client, channel + "2", "y")
    assert (await heard.until(2))[1:] == [("message", said(channel + "2"), said("y"))]
    running.cancel()


async def test_run_wants_a_handler_for_everything(face, pubsub, channel, heard):
    await pubsub.subscribe(channel, **{channel + "2": heard.sync})
    with pytest.raises(face.module.PubSubError, match=channel):
        await pubsub.run()
    await pubsub.unsubscribe(channel)
    await confirmed(pubsub, 3)
    await pubsub.psubscribe(channel + "*")
    with pytest.raises(face.module.PubSubError, match=channel):
        await pubsub.run()


async def test_run_ends_with_the_error_of_a_handler(client, pubsub, channel):
    def refuse(item):
        raise LookupError("refused")

    await pubsub.subscribe(**{channel: refuse})
    running = asyncio.create_task(pubsub.run(poll_timeout=0.05))
    await heard_by_somebody(client, channel, "x")
    with pytest.raises(LookupError, match="refused"):
        await asyncio.wait_for(running, WAIT_S)


@pytest.mark.parametrize("kind", ["sync", "later"])
async def test_run_gives_errors_to_their_handler_and_goes_on(client, pubsub, channel, said, heard, kind):
    errors = []

    def refuse_once(item):
        if not errors:
            raise LookupError("refused")
        heard.sync(item)

    def note(error, which):
        errors.append((type(error), which is pubsub))

    async def note_later(error, which):
        await asyncio.sleep(0)  # a handler that gives way
        note(error, which)

    await pubsub.subscribe(**{channel: refuse_once})
    on_error = note if kind == "sync" else note_later
    running = asyncio.create_task(pubsub.run(exception_handler=on_error, poll_timeout=0.05))
    await heard_by_somebody(client, channel, "x")
    await client.publish(channel, "y")
    assert await heard.until(1) == [("message", said(channel), said("y"))]
    assert errors == [(LookupError, True)]
    running.cancel()


async def test_a_handler_may_leave_its_own_channel(client, pubsub, channel, said):
    seen = []

    async def once(item):
        seen.append(item["data"])
        await pubsub.unsubscribe(item["channel"])

    await pubsub.subscribe(**{channel: once})
    await confirmed(pubsub)
    await client.publish(channel, "x")
    ends = [item["type"] async for item in pubsub.listen()]
    assert ends == ["unsubscribe"]
    assert seen == [said("x")]
    assert await client.publish(channel, "y") == 0
