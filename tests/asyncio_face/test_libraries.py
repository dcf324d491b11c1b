"""The calls by which libraries use redis.asyncio: pools, module names, raw responses, redis-py's own exceptions."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
import time

import pytest
import redis
import redis.asyncio
import redis.exceptions

import nearcast.asyncio
from nearcast import errors
from nearcast.asyncio.options import PubSubError, of_both_kinds

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("asyncio_face_libraries")]

WAIT_S = 5.0
NOBODY = "redis://127.0.0.1:1"  # a port at which nothing listens


async def take(pubsub, count=1):
    return [await pubsub.get_message(timeout=WAIT_S) for _ in range(count)]


# --- pools


async def test_redis_objects_share_a_pool_that_none_of_them_closes(face, world, channel):
    async with face.module.ConnectionPool.from_url(face.url, max_connections=5, db=0) as pool:
        first, second = (face.module.Redis(connection_pool=pool) for _ in range(2))
        assert first.connection_pool is second.connection_pool is pool
        pubsub = first.pubsub(ignore_subscribe_messages=True)
        await pubsub.subscribe(channel)
        await first.aclose()
        await take(pubsub)
        assert await second.publish(channel, "still open") == 1
        assert (await take(pubsub))[0]["data"] == b"still open"
        await second.aclose(close_connection_pool=True)


async def test_a_redis_object_made_from_a_pool_closes_it(face, world, channel):
    pool = face.module.BlockingConnectionPool.from_url(face.url, timeout=3, decode_responses=True)
    async with face.module.Redis.from_pool(pool) as client, client.pubsub() as pubsub:
        await pubsub.subscribe(channel)
        assert await client.publish(channel, "x") == 1
        assert [message["data"] for message in await take(pubsub, 2)] == [1, "x"]


async def test_a_pool_knows_what_it_was_told(face, world, channel):
    port = int(face.url.rsplit(":", 1)[1])
    pool = face.module.ConnectionPool(host="127.0.0.1", port=port, connection_class=face.module.Connection)
    assert pool.connection_kwargs["port"] == port
    assert pool.connection_class is face.module.Connection
    async with face.module.Redis(connection_pool=pool, decode_responses=True) as client:
        assert client.get_encoder().decode(b"x") == b"x"  # the pool's keywords, not those beside it
        assert await client.publish(channel, "x") == 0
    await pool.disconnect()


async def test_a_pool_of_redis_py_says_where_the_cluster_is(world, channel):
    pool = redis.asyncio.ConnectionPool.from_url(world.url, decode_responses=True)
    async with nearcast.asyncio.Redis(connection_pool=pool) as client, client.pubsub() as pubsub:
        await pubsub.subscribe(channel)
        assert await client.publish(channel, "x") == 1
        assert [message["data"] for message in await take(pubsub, 2)] == [1, "x"]


@pytest.mark.parametrize("module", [redis.asyncio, nearcast.asyncio])
def test_the_class_of_connections_says_how_to_connect(module):
    tls = module.ConnectionPool(connection_class=module.SSLConnection, host="h", port=7, password="x")
    path = module.ConnectionPool(connection_class=module.UnixDomainSocketConnection, path="/run/valkey.sock")
    pools = [nearcast.asyncio.Redis(connection_pool=pool).connection_pool for pool in (tls, path)]
    assert [pool.options.url for pool in pools] == ["rediss://h:7", "unix:///run/valkey.sock"]
    assert pools[0].options.credentials.password == "x"


def test_a_pool_of_redis_py_that_cannot_be_kept_is_refused():
    pool = redis.asyncio.ConnectionPool(credential_provider=redis.UsernamePasswordCredentialProvider("ann", "x"))
    with pytest.raises(errors.UsageError, match="give username and password"):
        nearcast.asyncio.Redis(connection_pool=pool)
    with pytest.raises(AttributeError, match="lends no connections"):
        nearcast.asyncio.ConnectionPool().get_connection  # noqa: B018 - looking it up is the test


# --- names


def test_modules_and_their_names_are_where_redis_py_has_them():
    for module, names in {
        "client": ("Redis", "StrictRedis", "PubSub"),
        "connection": ("BlockingConnectionPool", "Connection", "ConnectionPool", "SSLConnection"),
    }.items():
        theirs = importlib.import_module(f"redis.asyncio.{module}")
        ours = importlib.import_module(f"nearcast.asyncio.{module}")
        assert getattr(nearcast.asyncio, module) is ours
        assert all(hasattr(theirs, name) and hasattr(ours, name) for name in names)


# --- raw responses


async def test_responses_can_be_read_raw(client, pubsub, channel, said):
    await pubsub.subscribe(channel)
    await pubsub.psubscribe(channel[:-1] + "*")
    await client.publish(channel, "x")
    pattern, name = said(channel[:-1] + "*"), said(channel)
    assert await pubsub.parse_response() == [said("subscribe"), name, 1]
    assert await pubsub.parse_response(block=False, timeout=WAIT_S) == [said("psubscribe"), pattern, 2]
    responses = [await pubsub.parse_response(timeout=0) for _ in range(2)]
    message, match = sorted(responses, key=len)
    assert message == [said("message"), name, said("x")]
    assert match == [said("pmessage"), pattern, name, said("x")]
    assert await pubsub.parse_response(block=False, timeout=0.01) is None
    handled = await pubsub.handle_message(message)
    assert handled == {"type": "message", "pattern": None, "channel": name, "data": said("x")}


async def test_reading_raw_before_anything_is_subscribed_is_an_error(pubsub, world):
    with pytest.raises(RuntimeError):
        await pubsub.parse_response()


# --- exceptions


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.ConnectFailed("x"), redis.exceptions.ConnectionError),
        (errors.NotACluster("x"), redis.exceptions.ConnectionError),
        (errors.AuthenticationFailed("x"), redis.exceptions.AuthenticationError),
        (errors.AccessDenied("x"), redis.exceptions.NoPermissionError),
        (errors.Unavailable("x"), redis.exceptions.TimeoutError),
        (errors.InvalidTopic("x"), redis.exceptions.DataError),
        (errors.ProtocolError("x"), redis.exceptions.ResponseError),
        (errors.LimitReached("x"), redis.exceptions.RedisError),
        (errors.Closed("x"), redis.exceptions.RedisError),
        (PubSubError("x"), redis.exceptions.PubSubError),
    ],
)
def test_errors_are_of_both_kinds_where_redis_py_is_used(error, kind):
    both = of_both_kinds(error)
    assert isinstance(both, kind)
    assert isinstance(both, type(error))
    assert (str(both), type(both).__name__) == ("x", type(error).__name__)
    assert repr(both)
    assert of_both_kinds(both) is both


async def test_a_program_may_catch_the_exceptions_of_redis_py(face, world, channel):
    nowhere = face.module.Redis.from_url(NOBODY, retry=None)
    with pytest.raises(redis.exceptions.ConnectionError):
        await nowhere.publish(channel, "x")
    with pytest.raises(redis.exceptions.ConnectionError):
        await nowhere.pubsub().subscribe(channel)
    async with face.open() as client:
        with pytest.raises(redis.exceptions.DataError):
            await client.publish(channel, object())


async def test_a_server_that_is_down_is_reported_at_once(world, channel):
    began_s = time.monotonic()
    with pytest.raises(nearcast.asyncio.ConnectionError, match="cannot connect"):
        await nearcast.asyncio.Redis.from_url(NOBODY).publish(channel, "x")
    with pytest.raises(nearcast.asyncio.ConnectionError, match="cannot connect"):
        await nearcast.asyncio.Redis.from_url(NOBODY).pubsub().subscribe(channel)
    assert time.monotonic() - began_s < 1.0  # redis-py 5 tries once, redis-py 8 four times in about 4 s


def test_redis_py_is_not_imported_by_us():
    program = "import sys, nearcast, nearcast.asyncio; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_redis_py_errors_are_our_own():
    program = (
        "import asyncio, nearcast.asyncio as face, nearcast.errors as errors\n"
        "try:\n"
        f"    asyncio.run(face.Redis.from_url({NOBODY!r}).ping())\n"
        "except face.ConnectionError as error:\n"
        "    assert type(error) is errors.ConnectFailed\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- the shape of a library


class Relay:
    """As libraries that pass messages between processes do it: one pool, one PubSub, a task that reads, retries."""

    def __init__(self, module, url):
        self.module = module
        self.pool = module.ConnectionPool.from_url(url)
        self.client = module.client.Redis(connection_pool=self.pool)
        self.pubsub = self.client.pubsub()
        self.queues = {}
        self.reader = None

    async def subscribe(self, channel):
        self.queues[channel.encode()] = asyncio.Queue()
        await self.pubsub.subscribe(channel)
        self.reader = self.reader or asyncio.create_task(self._read())
        return self.queues[channel.encode()]

    async def _read(self):
        while True:
            try:
                if self.pubsub.subscribed:
                    message = await self.pubsub.get_message(ignore_subscribe_messages=True, timeout=0.1)
                    if message is not None:
                        self.queues[message["channel"]].put_nowait(message["data"])
                else:
                    await asyncio.sleep(0.01)  # as they do it
            except redis.exceptions.ConnectionError:
                await asyncio.sleep(0.1)  # as they do it

    async def close(self):
        self.reader.cancel()
        await asyncio.gather(self.reader, return_exceptions=True)
        await self.client.aclose(close_connection_pool=True)


async def test_a_relay_works_with_the_import_changed(face, world, channel):
    one, other = Relay(face.module, face.url), Relay(face.module, face.url)
    queues = [await relay.subscribe(channel) for relay in (one, other)]
    private = await other.subscribe(channel + "x")
    assert await one.client.publish(channel, "to all") == 2
    assert await one.client.publish(channel + "x", "to one") == 1
    async with asyncio.timeout(WAIT_S):
        assert [await queue.get() for queue in (*queues, private)] == [b"to all", b"to all", b"to one"]
    for relay in (one, other):
        await relay.close()
