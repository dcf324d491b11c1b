"""Slow consumers: results wait in storage, topic messages are dropped and counted, and who takes nothing is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import pytest
from gateway_world import WAIT_S, Worlds
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from nearcast.subscriber.transport import register
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

LARGE = {"id": 1, "message": "x" * 200_000}  # some of these fill the buffers of two sockets
EXECUTIONS = 60


async def slow_socket(url: str) -> ClientConnection:
    """Its buffers are small, and it reads nothing ahead."""
    host, _, port = url.removeprefix("http://").partition(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    raw.connect((host, int(port)))
    raw.setblocking(False)
    return await connect(f"ws://{host}:{port}/ws", sock=raw, max_size=None, max_queue=1, ping_interval=None)


async def say(connection: ClientConnection, **frame: Any) -> None:
    await connection.send(json.dumps(frame))


async def hear(connection: ClientConnection) -> dict[str, Any]:
    heard: dict[str, Any] = json.loads(await asyncio.wait_for(connection.recv(), WAIT_S))
    return heard


async def subscribed(url: str) -> tuple[ClientConnection, str]:
    connection = await slow_socket(url)
    await say(connection, type="login", user="ann", token=await register(url, "ann"))
    assert (await hear(connection))["type"] == "welcome"
    await say(connection, type="subscribe", ref=1, channel="by_kind", parameters={"kind": "fire"})
    done = await hear(connection)
    assert done["type"] == "done"
    return connection, done["subscription"]


def test_what_a_slow_consumer_has_no_room_for_follows_from_storage(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway(outbox_frames=4)
            connection, fire = await subscribed(url)
            for _ in range(EXECUTIONS):
                await w.data.execute({fire: [LARGE]})
            (session,) = w.gateways["b1"]._sessions.values()
            await until(lambda: session._lagging)
            frames: list[dict[str, Any]] = []
            while not frames or frames[-1].get("execution") != EXECUTIONS:
                frames.append(await hear(connection))
            assert [f["execution"] for f in frames if f["type"] == "result"] == list(range(1, EXECUTIONS + 1))
            assert {f["type"] for f in frames} == {"result", "lagging"}
            await w.data.execute({fire: [{"id": 2, "message": "live again"}]})
            while (frame := await hear(connection))["type"] != "result":
                assert frame["type"] == "lagging"
            assert frame["execution"] == EXECUTIONS + 1
            await connection.close()

    asyncio.run(scenario())


def test_a_consumer_that_takes_nothing_is_disconnected_with_the_reason(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway(outbox_frames=4, stall_s=0.5)
            connection, fire = await subscribed(url)
            for _ in range(EXECUTIONS):
                await w.data.execute({fire: [LARGE]})
            await until(lambda: not w.gateways["b1"]._sessions)
            last = {}
            with contextlib.suppress(ConnectionClosed):
                while True:
                    last = await hear(connection)
            assert last == {"type": "bye", "reason": "you read nothing for 0.5 s"}

    asyncio.run(scenario())
