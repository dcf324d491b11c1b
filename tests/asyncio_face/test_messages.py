"""Subscribing, messages and confirmations: the same with redis-py on one server and with nearcast on a cluster."""

from __future__ import annotations

import asyncio
import time

import pytest

import nearcast
from nearcast.testing.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("asyncio_face_messages")]

WAIT_S = 5.0


def confirmation(kind, channel, count):
    return {"type": kind, "pattern": None, "channel": channel, "data": count}


def message(channel, data):
    return {"type": "message", "pattern": None, "channel": channel, "data": data}


def pmessage(pattern, channel, data):
    return {"type": "pmessage", "pattern": pattern, "channel": channel, "data": data}


async def take(pubsub, count):
    return [await pubsub.get_message(timeout=WAIT_S) for _ in range(count)]


async def has_come(pubsub):
    """What was published has reached this side. Redis needs no waiting: what is asked later is done later."""
    if isinstance(pubsub.connection, nearcast.Client):
        await pubsub.connection.sync()


async def begun(reading):
    """Give a reader the time to wait wherever it waits, which nothing shows."""
    await asyncio.sleep(0.02)
    assert not reading.done()


async def nothing_comes(pubsub):
    return await pubsub.get_message(timeout=0.05) is None


# --- confirmations


async def test_confirmations_count_what_is_held(pubsub, channel, said):
    await pubsub.subscribe(channel, channel + "2")
    await pubsub.psubscribe(channel + "*")
    assert await take(pubsub, 3) == [
        confirmation("subscribe", said(channel), 1),
        confirmation("subscribe", said(channel + "2"), 2),
        confirmation("psubscribe", said(channel + "*"), 3),
    ]
    assert pubsub.channels == {said(channel): None, said(channel + "2"): None}
    assert pubsub.patterns == {said(channel + "*"): None}


async def test_subscribing_again_confirms_again_but_delivers_once(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await pubsub.subscribe(channel)
    assert await take(pubsub, 2) == [confirmation("subscribe", said(channel), 1)] * 2
    assert await client.publish(channel, "x") == 1
    assert await take(pubsub, 1) == [message(said(channel), said("x"))]
    assert await nothing_comes(pubsub)


async def test_names_may_be_given_as_a_list_in_bytes_and_text(pubsub, channel, said):
    await pubsub.subscribe([channel, (channel + "2").encode()], channel + "3")
    await pubsub.psubscribe([channel + "?"])
    assert [item["channel"] for item in await take(pubsub, 4)] == [said(channel + end) for end in ("", "2", "3", "?")]


async def test_leaving_one_channel(client, pubsub, channel, said):
    await pubsub.subscribe(channel, channel + "2")
    await take(pubsub, 2)
    await pubsub.unsubscribe(channel)
    assert pubsub.subscribed
    assert await take(pubsub, 1) == [confirmation("unsubscribe", said(channel), 1)]
    assert list(pubsub.channels) == [said(channel + "2")]
    assert await client.publish(channel, "nobody") == 0
    assert await client.publish(channel + "2", "one") == 1
    assert await take(pubsub, 1) == [message(said(channel + "2"), said("one"))]


async def test_leaving_all_channels_keeps_the_patterns(pubsub, channel, said):
    await pubsub.subscribe(channel, channel + "2")
    await pubsub.psubscribe(channel + "*")
    await take(pubsub, 3)
    await pubsub.unsubscribe()
    ends = await take(pubsub, 2)
    assert {(item["type"], item["channel"]) for item in ends} == {
        ("unsubscribe", said(channel)),
        ("unsubscribe", said(channel + "2")),
    }
    assert [item["data"] for item in ends] == [2, 1]
    assert pubsub.channels == {}
    await pubsub.punsubscribe()
    assert await take(pubsub, 1) == [confirmation("punsubscribe", said(channel + "*"), 0)]
    assert not pubsub.subscribed


async def test_leaving_what_was_never_held(pubsub, channel, said):
    await pubsub.unsubscribe(channel)
    await pubsub.unsubscribe()
    await pubsub.punsubscribe()
    assert await take(pubsub, 3) == [
        confirmation("unsubscribe", said(channel), 0),
        confirmation("unsubscribe", None, 0),
        confirmation("punsubscribe", None, 0),
    ]
    assert not pubsub.subscribed


async def test_a_channel_is_held_until_its_end_was_read(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await take(pubsub, 1)
    await client.publish(channel, "last")
    await has_come(pubsub)
    await pubsub.unsubscribe(channel)
    assert pubsub.subscribed
    assert await take(pubsub, 1) == [message(said(channel), said("last"))]
    assert pubsub.subscribed
    assert await take(pubsub, 1) == [confirmation("unsubscribe", said(channel), 0)]
    assert not pubsub.subscribed


async def test_coming_back_before_the_end_was_read(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await pubsub.unsubscribe(channel)
    await pubsub.subscribe(channel)
    assert [item["data"] for item in await take(pubsub, 3)] == [1, 0, 1]
    assert pubsub.subscribed
    assert await client.publish(channel, "x") == 1
    assert await take(pubsub, 1) == [message(said(channel), said("x"))]


async def test_coming_back_later(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await pubsub.unsubscribe(channel)
    await take(pubsub, 2)
    assert await client.publish(channel, "unheard") == 0
    await pubsub.subscribe(channel)
    assert await take(pubsub, 1) == [confirmation("subscribe", said(channel), 1)]
    await client.publish(channel, "heard")
    assert await take(pubsub, 1) == [message(said(channel), said("heard"))]


async def test_confirmations_can_be_ignored_by_the_object(client, channel, said):
    async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe(channel)
        assert await take(pubsub, 1) == [None]
        await client.publish(channel, "x")
        assert await take(pubsub, 1) == [message(said(channel), said("x"))]


async def test_confirmations_can_be_ignored_by_the_call(pubsub, channel, said):
    await pubsub.subscribe(channel, channel + "2")
    assert await pubsub.get_message(ignore_subscribe_messages=True, timeout=WAIT_S) is None
    assert await take(pubsub, 1) == [confirmation("subscribe", said(channel + "2"), 2)]


# --- messages


async def test_a_message_by_pattern(client, pubsub, channel, said):
    await pubsub.psubscribe(channel + "[ab]")
    await take(pubsub, 1)
    for end in "abc":
        await client.publish(channel + end, end)
    expected = [pmessage(said(channel + "[ab]"), said(channel + end), said(end)) for end in "ab"]
    assert sorted(await take(pubsub, 2), key=lambda item: item["data"]) == expected
    assert await nothing_comes(pubsub)


async def test_channel_and_pattern_both_match(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await pubsub.psubscribe(channel + "*")
    await take(pubsub, 2)
    assert await client.publish(channel, "x") == 2
    assert await take(pubsub, 2) == [
        message(said(channel), said("x")),
        pmessage(said(channel + "*"), said(channel), said("x")),
    ]


async def test_what_can_be_published(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await take(pubsub, 1)
    cases = [
        ("text", "text"),
        ("grün", "grün"),
        (b"bytes", "bytes"),
        (bytearray(b"array"), "array"),
        (memoryview(b"view"), "view"),
        (7, "7"),
        (-1.5, "-1.5"),
        (1e100, "1e+100"),
        ("", ""),
        ("x" * 100_000, "x" * 100_000),
    ]
    for sent, read in cases:
        assert await client.publish(channel, sent) == 1
        assert await take(pubsub, 1) == [message(said(channel), said(read))]


async def test_what_cannot_be_published(face, client, channel):
    for value in (None, True, ["x"], {"x": 1}, object()):
        with pytest.raises(face.module.DataError):
            await client.publish(channel, value)


async def test_bytes_that_are_no_text(client, pubsub, channel, said, decode):
    await pubsub.subscribe(channel)
    await take(pubsub, 1)
    await client.publish(channel, b"\xff\x00\r\n")
    await client.publish(channel, "after")
    if decode:
        with pytest.raises(UnicodeDecodeError):
            await take(pubsub, 1)
    else:
        assert await take(pubsub, 1) == [message(said(channel), b"\xff\x00\r\n")]
    assert await take(pubsub, 1) == [message(said(channel), said("after"))]


@pytest.mark.parametrize("decode", [False], ids=["bytes"], indirect=True)  # redis-py 8 takes the str "PONG" apart
async def test_a_pong_stands_among_the_messages(client, pubsub, channel):
    await pubsub.subscribe(channel)
    await take(pubsub, 1)
    await pubsub.ping()
    await pubsub.ping("hello")
    pongs = [{"type": "pong", "pattern": None, "channel": None, "data": data} for data in (b"", b"hello")]
    assert await take(pubsub, 2) == pongs
    assert await client.ping() is True


async def test_two_pubsubs_are_two_receivers(client, channel, said):
    async with client.pubsub() as one, client.pubsub() as two:
        await one.subscribe(channel)
        await two.subscribe(channel)
        await take(one, 1)
        await take(two, 1)
        assert await client.publish(channel, "x") == 2
        assert await take(one, 1) == await take(two, 1) == [message(said(channel), said("x"))]
        await one.unsubscribe()
        await take(one, 1)
        assert await client.publish(channel, "y") == 1
        assert await take(two, 1) == [message(said(channel), said("y"))]
        assert await nothing_comes(one)


# --- waiting


async def test_reading_before_subscribing(pubsub):
    with pytest.raises(RuntimeError, match=r"subscribe\(\)"):
        await pubsub.get_message()


async def test_how_long_get_message_waits(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await take(pubsub, 1)
    start_s = time.monotonic()
    assert await pubsub.get_message() is None
    assert await pubsub.get_message(timeout=0) is None
    assert time.monotonic() - start_s < 0.5
    start_s = time.monotonic()
    assert await pubsub.get_message(timeout=0.2) is None
    assert 0.19 < time.monotonic() - start_s < 1
    reading = asyncio.create_task(pubsub.get_message(timeout=None))
    await asyncio.sleep(0.1)  # longer than the others have waited
    assert not reading.done()
    await client.publish(channel, "x")
    assert await reading == message(said(channel), said("x"))


async def test_polling_without_ever_waiting(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await take(pubsub, 1)
    await client.publish(channel, "x")
    until_s = time.monotonic() + WAIT_S
    while (found := await pubsub.get_message()) is None:
        assert time.monotonic() < until_s
    assert found == message(said(channel), said("x"))


async def test_listening_until_everything_is_left(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    heard = []
    async for item in pubsub.listen():
        heard.append(item)
        if item["type"] == "subscribe":
            await client.publish(channel, "x")
        elif item["type"] == "message":
            await pubsub.unsubscribe(channel)
    assert heard == [
        confirmation("subscribe", said(channel), 1),
        message(said(channel), said("x")),
        confirmation("unsubscribe", said(channel), 0),
    ]


async def test_listening_to_nothing_ends_at_once(pubsub):
    assert [item async for item in pubsub.listen()] == []


async def test_leaving_a_listen_loop_loses_nothing(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await take(pubsub, 1)
    for number in range(5):
        await client.publish(channel, number)
    async for item in pubsub.listen():
        assert item == message(said(channel), said("0"))
        break
    assert [item["data"] for item in await take(pubsub, 4)] == [said(str(number)) for number in range(1, 5)]


async def test_subscribing_while_another_task_reads(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await take(pubsub, 1)
    reading = asyncio.create_task(take(pubsub, 2))
    await begun(reading)
    await pubsub.subscribe(channel + "2")
    await until(lambda: client.publish(channel + "2", "x"), "it is heard", WAIT_S)
    assert await reading == [
        confirmation("subscribe", said(channel + "2"), 2),
        message(said(channel + "2"), said("x")),
    ]


# --- cancellation and the end


async def test_a_cancelled_reader_takes_nothing_away(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await take(pubsub, 1)
    reading = asyncio.create_task(pubsub.get_message(timeout=None))
    await begun(reading)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await client.publish(channel, "x")
    assert await take(pubsub, 1) == [message(said(channel), said("x"))]


async def test_cancelling_again_and_again_while_messages_come(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await take(pubsub, 1)

    async def publish():
        for number in range(150):
            await client.publish(channel, number)
            await asyncio.sleep(0)  # messages come one by one

    publishing = asyncio.create_task(publish())
    heard = []
    while len(heard) < 150:
        reading = asyncio.create_task(pubsub.get_message(timeout=None))
        await asyncio.sleep(0)  # cancelled at its beginning, or a moment later
        if len(heard) % 3:
            await asyncio.sleep(0.0005)  # the moment
        reading.cancel()
        item = (await asyncio.gather(reading, return_exceptions=True))[0]
        if not isinstance(item, asyncio.CancelledError):
            heard.append(item["data"])
        await asyncio.sleep(0)  # others have their turn
    await publishing
    assert heard == [said(str(number)) for number in range(150)]
    assert await nothing_comes(pubsub)


async def test_the_pubsub_as_context_manager(client, channel):
    async with client.pubsub() as pubsub:
        await pubsub.subscribe(channel)
        assert pubsub.subscribed
    assert not pubsub.subscribed
    assert pubsub.channels == {}
    assert pubsub.connection is None
    with pytest.raises(RuntimeError):
        await pubsub.get_message()


async def test_a_closed_pubsub_can_be_used_again(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await take(pubsub, 1)
    await pubsub.aclose()
    await pubsub.subscribe(channel)
    assert await take(pubsub, 1) == [confirmation("subscribe", said(channel), 1)]
    await client.publish(channel, "x")
    assert await take(pubsub, 1) == [message(said(channel), said("x"))]


async def test_the_client_as_context_manager(face, channel):
    async with face.open() as client:
        async with client:
            assert await client.publish(channel, "x") == 0
        assert await client.ping()
    assert await client.ping()  # it connects again
    await client.aclose()
    await client.aclose()
    assert await (await face.open()).initialize() is not None


async def test_closing_while_another_task_reads(face, pubsub, channel):
    await pubsub.subscribe(channel)
    await take(pubsub, 1)
    reading = asyncio.create_task(pubsub.get_message(timeout=None))
    await begun(reading)
    await pubsub.aclose()
    with pytest.raises(face.module.ConnectionError):
        await asyncio.wait_for(reading, WAIT_S)


async def test_nobody_answers(face):
    client = face.module.Redis(host="127.0.0.1", port=1, socket_connect_timeout=0.3, retry=None)
    for call in (client.ping(), client.publish("c", "x"), client.pubsub().subscribe("c")):
        with pytest.raises(face.module.ConnectionError):
            await call
    await client.aclose()
