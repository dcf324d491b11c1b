"""Who is subscribed: the same numbers from redis-py on one server and from nearcast on a cluster."""

from __future__ import annotations

import pytest

from nearcast.testing.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("asyncio_face_counts")]

WAIT_S = 5.0


@pytest.fixture
def pubsubs(client, world):
    pubsubs = [client.pubsub() for _ in range(3)]
    yield pubsubs
    for pubsub in pubsubs:
        world.runner.run(pubsub.aclose())


async def held(pubsub, channels=(), patterns=()):
    """Subscribe and return when it is confirmed; messages of earlier subscriptions may come before that."""
    if channels:
        await pubsub.subscribe(*channels)
    if patterns:
        await pubsub.psubscribe(*patterns)
    missing = len(channels) + len(patterns)
    while missing:
        message = await pubsub.get_message(timeout=WAIT_S)
        assert message
        missing -= message["type"] in ("subscribe", "psubscribe")


async def until_it_is(question, expected):
    """Servers see closed connections a little later."""

    async def is_it():
        return await question() == expected

    await until(is_it, f"{expected}", WAIT_S)


async def test_numsub_counts_pubsubs(client, pubsubs, channel, said):
    for index, pubsub in enumerate(pubsubs):
        await held(pubsub, [f"{channel}{number}" for number in range(index + 1)])
    names = [f"{channel}{number}" for number in range(4)]
    expected = [(said(name), 3 - index) for index, name in enumerate(names)]
    assert await client.pubsub_numsub(*names) == expected
    assert await client.pubsub_numsub() == []
    await pubsubs[0].aclose()
    await until_it_is(lambda: client.pubsub_numsub(names[0]), [(said(names[0]), 2)])
    await pubsubs[1].unsubscribe(names[0])
    await until_it_is(lambda: client.pubsub_numsub(names[0]), [(said(names[0]), 1)])


async def test_channels_names_each_once(client, pubsubs, channel, said):
    await held(pubsubs[0], [channel + "a", channel + "b"])
    await held(pubsubs[1], [channel + "b", channel + "c"], patterns=[channel + "*"])
    assert sorted(await client.pubsub_channels(channel + "*")) == [said(channel + end) for end in "abc"]
    assert await client.pubsub_channels(channel + "c*") == [said(channel + "c")]
    assert await client.pubsub_channels((channel + "d").encode()) == []
    assert said(channel + "a") in await client.pubsub_channels()
    await pubsubs[1].unsubscribe()
    await until_it_is(lambda: client.pubsub_channels(channel + "[bc]"), [said(channel + "b")])


async def test_numpat_counts_patterns_not_subscribers(client, pubsubs, channel):
    await until_it_is(client.pubsub_numpat, 0)
    await held(pubsubs[0], patterns=[channel + "*", channel + "?"])
    await held(pubsubs[1], patterns=[channel + "*"])
    assert await client.pubsub_numpat() == 2
    await pubsubs[0].punsubscribe(channel + "*")
    assert await client.pubsub_numpat() == 2
    await pubsubs[1].aclose()
    await until_it_is(client.pubsub_numpat, 1)


async def test_publish_returns_the_number_of_receivers(client, pubsubs, channel):
    assert await client.publish(channel, "x") == 0
    for count, pubsub in enumerate(pubsubs, 1):
        await held(pubsub, [channel])
        assert await client.publish(channel, "x") == count
    await held(pubsubs[0], patterns=[channel + "*", channel + "?*"])
    assert await client.publish(channel, "x") == 4
    for pubsub in pubsubs:
        await pubsub.aclose()
    await until_it_is(lambda: client.publish(channel, "x"), 0)
