"""Transports: what is refused before a login, and long polls that do what WebSockets do."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest
from gateway_world import ROW, WAIT_S, Worlds
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from nearcast.subscriber.transport import register
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live


def ws(url: str) -> str:
    return url.replace("http", "ws", 1) + "/ws"


async def all_frames(url: str, *sent: str | bytes) -> tuple[list[dict[str, Any]], int | None]:
    """What a gateway answers until it closes, and the code it closes with."""
    frames = []
    connection = await connect(ws(url))
    try:
        for text in sent:
            await connection.send(text)
        while True:
            frames.append(json.loads(await asyncio.wait_for(connection.recv(), WAIT_S)))
    except ConnectionClosed as closed:
        return frames, closed.rcvd.code if closed.rcvd else None


def test_limits_hold_before_a_login(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway(login_s=0.3, frame_bytes=2000, unknown_per_address=2)
            frames, code = await all_frames(url)
            assert (frames, code) == ([{"type": "bye", "reason": "no login within 0.3 s"}], 1000)
            frames, code = await all_frames(url, "x" * 3000)
            assert (frames, code) == ([], 1009)
            frames, _ = await all_frames(url, b"\x00\xff")
            assert [frame["type"] for frame in frames] == ["refused", "bye"]
            frames, _ = await all_frames(url, '{"type":"login","user":"ann","token":"1.aa"}')
            assert "not a token" in frames[0]["problem"]
            silent = [await connect(ws(url)) for _ in range(2)]
            with pytest.raises(InvalidStatus) as refused:
                await connect(ws(url))
            assert refused.value.response.status_code == 429
            for connection in silent:
                await connection.close()
            await until(lambda: not w.gateways["b1"]._open)

    asyncio.run(scenario())


def test_a_connection_that_says_nothing_or_too_little_is_cut(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            host, _, port = (await w.start_gateway()).removeprefix("http://").partition(":")
            streams = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
            streams[1][1].write(b"GET /health HTTP/1.1\r\nHost: x\r\n")
            for reader, writer in streams:
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
                writer.close()

    asyncio.run(scenario())


def test_only_listed_origins_and_the_own_host_may_connect(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway(origins=("https://city.example.com",))
            for origin in ("https://city.example.com", url, None):
                connection = await connect(ws(url), origin=origin)  # type: ignore[arg-type]
                await connection.close()
            with pytest.raises(InvalidStatus) as refused:
                await connect(ws(url), origin="https://evil.example.com")  # type: ignore[arg-type]
            assert refused.value.response.status_code == 403
            async with httpx.AsyncClient(trust_env=False) as http:
                evil = {"Origin": "https://evil.example.com"}
                assert (await http.post(f"{url}/register", json={"user": "ann"}, headers=evil)).status_code == 403
                good = {"Origin": "https://city.example.com"}
                answer = await http.post(f"{url}/register", json={"user": "ann"}, headers=good)
                assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (201, good["Origin"])

    asyncio.run(scenario())


def test_refused_logins_are_bounded_per_minute(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway(refused_logins_per_minute=3)
            async with httpx.AsyncClient(trust_env=False) as http:
                bad = {"user": "ann", "token": "1.aa"}
                codes = [(await http.post(f"{url}/session", json=bad)).status_code for _ in range(4)]
            assert codes == [401, 401, 401, 429]
            with pytest.raises(InvalidStatus):
                await connect(ws(url))

    asyncio.run(scenario())


def test_a_long_poll_that_got_lost_is_asked_again_and_one_that_ends_is_forgotten(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway(poll_s=1.0)
            token = await register(url, "ann")
            async with httpx.AsyncClient(base_url=url, timeout=WAIT_S, trust_env=False) as http:
                opened = await http.post("/session", json={"user": "ann", "token": token})
                frames = f"/session/{opened.json()['session']}/frames"

                async def poll(after: int, wait_s: float = 10.0) -> tuple[list[dict[str, Any]], int]:
                    answer = (await http.get(frames, params={"after": after, "wait_s": wait_s})).json()
                    return answer["frames"], answer["last"]

                (welcome,), last = await poll(0)
                assert welcome["type"] == "welcome"
                wanted = [
                    {"type": "subscribe", "ref": 1, "channel": "by_kind", "parameters": {"kind": "fire"}},
                    {"type": "shout"},
                ]
                assert (await http.post(frames, json=wanted)).status_code == 202
                answers: dict[str, dict[str, Any]] = {}
                while len(answers) < 2:
                    got, last = await poll(last)
                    answers |= {frame["type"]: frame for frame in got}
                assert "shout" in answers["refused"]["problem"]
                fire = answers["done"]["subscription"]
                await w.data.execute({fire: [ROW]})
                once = await poll(last)
                assert once[0][0]["rows"] == [ROW]
                assert await poll(last) == once  # the first answer may have been lost
                assert await poll(once[1], wait_s=0.0) == ([], once[1])
                assert (await http.post(frames, content=b"x" * 100_000)).status_code == 422
                assert (await http.get(frames, params={"after": "x"})).status_code == 422
                assert (await http.get("/session/unknown/frames")).status_code == 404
                health = (await http.get("/health")).json()
                assert (health["users"], health["subscriptions"]) == (1, 1)
                await until(lambda: not w.gateways["b1"]._open)
                assert (await http.get(frames)).status_code == 404

    asyncio.run(scenario())
