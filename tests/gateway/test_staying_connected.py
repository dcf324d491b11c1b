"""A client stays connected without harm: it pauses, it ignores what is new, and it stops where nothing helps."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from gateway_world import WAIT_S, Worlds
from websockets.asyncio.server import ServerConnection, serve

from nearcast.core.wire.gateway import Result, TopicGap, decode_for_subscriber
from nearcast.errors import AuthenticationFailed, ClusterError, ProtocolError
from nearcast.subscriber.client import Subscriber

pytestmark = pytest.mark.live

Behaviour = Callable[[ServerConnection], Awaitable[None]]


@contextlib.asynccontextmanager
async def a_gateway_that(behaves: Behaviour) -> AsyncIterator[str]:
    """Welcomes everyone who logs in, and then does this."""

    async def session(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(json.dumps({"type": "welcome", "broker": "b1", "subscriptions": []}))
        await behaves(connection)

    async with serve(session, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_a_client_whose_sessions_end_at_once_pauses_longer_each_time() -> None:
    async def scenario() -> None:
        logins = 0

        async def ends(connection: ServerConnection) -> None:
            nonlocal logins
            logins += 1

        async with a_gateway_that(ends) as url, Subscriber.connect(url, "ann", token="t"):
            await asyncio.sleep(2.0)  # the time that the logins are counted in
        assert 2 <= logins <= 8  # pauses of 0.1, 0.2, 0.4, 0.8 s, each by up to a half shorter

    asyncio.run(scenario())


def test_frames_of_unknown_types_are_ignored() -> None:
    async def scenario() -> None:
        async def speaks(connection: ServerConnection) -> None:
            for frame in (
                {"type": "novelty", "x": [1]},
                {"type": "result", "subscription": "s-1", "channel": "s", "execution": 1, "rows": [], "new": 1},
            ):
                await connection.send(json.dumps(frame))
            await connection.wait_closed()

        async with a_gateway_that(speaks) as url, Subscriber.connect(url, "ann", token="t") as ann:
            event = await asyncio.wait_for(ann.get(), WAIT_S)
            assert isinstance(event, Result)
            assert ann.reconnects == 0

    asyncio.run(scenario())
    with pytest.raises(ProtocolError):
        decode_for_subscriber('{"type":"result"}')
    with pytest.raises(ProtocolError):
        decode_for_subscriber("[]")


@pytest.mark.parametrize("long_poll", [False, True], ids=["websocket", "long poll"])
def test_a_client_whose_token_is_refused_stops_and_tells_the_program(world: Worlds, long_poll: bool) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            port = int(url.rpartition(":")[2])
            with pytest.raises(AuthenticationFailed):
                async with Subscriber.connect(url, "bob", token="1.aa", long_poll=long_poll):
                    pass
            async with Subscriber.connect(url, "ann", long_poll=long_poll) as ann:
                await w.stop_gateway("b1")
                await w.data._store.ask("DEL", "nc:keys")
                await w.start_gateway(port=port)
                with pytest.raises(AuthenticationFailed, match="token"):
                    await asyncio.wait_for(ann.get(), WAIT_S)
                with pytest.raises(AuthenticationFailed):
                    await ann.subscribe("by_kind", kind="fire")

    asyncio.run(scenario())


def test_what_nobody_thought_of_is_told_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async def stays(connection: ServerConnection) -> None:
            await connection.wait_closed()

        async def surprise(self: Subscriber) -> None:
            raise LookupError("a surprise")

        monkeypatch.setattr(Subscriber, "_stay_connected", surprise)
        async with a_gateway_that(stays) as url, Subscriber.connect(url, "ann", token="t") as ann:
            with pytest.raises(ClusterError, match="a surprise"):
                await asyncio.wait_for(ann.get(), WAIT_S)

    asyncio.run(scenario())


def test_a_frame_that_cannot_be_handled_ends_the_line_and_not_the_subscriber(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        original, raised = Subscriber._take, []

        def take(self: Subscriber, frame: Any) -> None:
            if not raised:
                raised.append(frame)
                raise LookupError("a surprise")
            original(self, frame)

        async def speaks(connection: ServerConnection) -> None:
            await connection.send(json.dumps({"type": "gap", "topic": "t", "count": 1, "reason": "x"}))
            await connection.wait_closed()

        monkeypatch.setattr(Subscriber, "_take", take)
        async with a_gateway_that(speaks) as url, Subscriber.connect(url, "ann", token="t") as ann:
            assert isinstance(await asyncio.wait_for(ann.get(), WAIT_S), TopicGap)

    asyncio.run(scenario())
