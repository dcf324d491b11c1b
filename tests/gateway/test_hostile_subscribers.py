"""One subscriber who means harm, or errs, costs nobody else anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from gateway_world import ROW, WAIT_S, World, Worlds, take_results
from websockets.asyncio.client import ClientConnection, connect

from nearcast.errors import Refused
from nearcast.gateway import protocols, subscriptions
from nearcast.subscriber.client import Subscriber
from nearcast.subscriber.transport import register
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live


async def logged_in(url: str, user: str, token: str = "") -> ClientConnection:
    """A bare connection that sends what no client of ours would."""
    token = token or await register(url, user)
    connection = await connect(url.replace("http", "ws", 1) + "/ws")
    await connection.send(json.dumps({"type": "login", "user": user, "token": token}))
    assert json.loads(await connection.recv())["type"] == "welcome"
    return connection


async def answer(connection: ClientConnection, frame: str) -> dict[str, Any]:
    await connection.send(frame)
    answered: dict[str, Any] = json.loads(await asyncio.wait_for(connection.recv(), WAIT_S))
    return answered


def nested(depth: int) -> str:
    parameter = "[" * depth + "]" * depth
    return f'{{"type":"subscribe","ref":1,"channel":"by_kind","parameters":{{"kind":{parameter}}}}}'


# Each part of the way gives up at another depth, depending on how deep it stands itself: try all around there.
@pytest.mark.parametrize("depths", [(30, 400, 20_000), range(860, 1000)], ids=["any", "at the limit of Python"])
def test_a_deeply_nested_frame_is_refused_and_others_go_on_subscribing(world: Worlds, depths: Sequence[int]) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            await w.until_notified()
            mallory = await logged_in(url, "mallory")
            for depth in depths:
                refused = await answer(mallory, nested(depth))
                assert refused["type"] == "refused"
            async with asyncio.timeout(5.0), Subscriber.connect(url, "ann") as ann:
                fire = await ann.subscribe("by_kind", kind="fire")
                await w.data.execute({fire: [ROW]})
                assert await take_results(ann, 1) == [1]
            await mallory.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [400, 500])
def test_a_wish_that_the_data_cluster_cannot_take_spoils_no_other(world: Worlds, status: int) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            await w.until_notified()
            w.data.poison = (b"poison", status)
            async with Subscriber.connect(url, "mallory") as mallory, Subscriber.connect(url, "ann") as ann:
                wishes = [
                    (mallory if number == 13 else ann).subscribe(
                        "by_kind", kind="poison" if number == 13 else f"{number}"
                    )
                    for number in range(40)
                ]
                outcomes = await asyncio.gather(*wishes, return_exceptions=True)
            assert isinstance(outcomes.pop(13), Refused)
            assert all(isinstance(outcome, str) for outcome in outcomes), outcomes

    asyncio.run(scenario())


def test_wishes_of_who_has_left_do_not_wait_for_the_data_cluster(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            await w.until_notified()
            await w.data.stop()
            token = await register(url, "mallory")
            for _ in range(5):
                mallory = await logged_in(url, "mallory", token)
                for ref in range(60):
                    await mallory.send(_wish(ref, "x" * 3000))
                await until(lambda: w.gateways["b1"].backend_subscriptions.waiting > 0)
                await mallory.close()
            await until(lambda: w.gateways["b1"].backend_subscriptions.waiting == 0, within_s=2.0)
            await w.data.start()
            await _subscribes(w, url)

    asyncio.run(scenario())


def test_no_more_wishes_wait_for_the_data_cluster_than_the_limit(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            await w.until_notified()
            await w.data.stop()
            monkeypatch.setattr(subscriptions, "WAITING_MAX", 10)
            mallory = await logged_in(url, "mallory")
            for ref in range(11):
                await mallory.send(_wish(ref, "fire"))
            refused = json.loads(await asyncio.wait_for(mallory.recv(), WAIT_S))
            assert (refused["type"], refused["ref"]) == ("refused", 10)
            assert "try again later" in refused["problem"]
            await mallory.close()
            await w.data.start()
            await _subscribes(w, url)

    asyncio.run(scenario())


def test_parameters_that_no_channel_takes_are_refused_at_the_gateway(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            await w.data.stop()
            mallory = await logged_in(url, "mallory")
            refused = await answer(mallory, _wish(1, "x" * 50_000))
            assert refused["type"] == "refused"
            assert "too long" in refused["problem"]
            await mallory.close()

    asyncio.run(scenario())


def _wish(ref: int, kind: str) -> str:
    return json.dumps({"type": "subscribe", "ref": ref, "channel": "by_kind", "parameters": {"kind": kind}})


async def _subscribes(w: World, url: str) -> None:
    async with asyncio.timeout(WAIT_S), Subscriber.connect(url, "ann") as ann:
        fire = await ann.subscribe("by_kind", kind="fire")
        await w.data.execute({fire: [ROW]})
        assert await take_results(ann, 1) == [1]


HEAD = b"POST /register HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\n"
WHOLE = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [[HEAD + b"\r\n", b'{"user'], [WHOLE, b"GET /heal"], [WHOLE, WHOLE + b"G"]],
    ids=["half a body", "half of a second request", "a third request in drops"],
)
def test_what_is_sent_by_halves_is_cut(world: Worlds, monkeypatch: pytest.MonkeyPatch, sent: list[bytes]) -> None:
    async def scenario() -> None:
        async with world() as w:
            host, _, port = (await w.start_gateway()).removeprefix("http://").partition(":")
            monkeypatch.setattr(protocols, "HEAD_S", 0.5)
            monkeypatch.setattr(protocols, "BODY_S", 0.5)
            reader, writer = await asyncio.open_connection(host, int(port))
            for part in sent:
                writer.write(part)
                await asyncio.sleep(0.1)  # they come one by one
            dripping = asyncio.create_task(_drip(writer))
            answers = b""
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(3.0):
                    while part := await reader.read(1000):
                        answers += part
            dripping.cancel()
            assert answers.count(b"200 OK") == b"".join(sent).count(WHOLE)
            writer.close()

    asyncio.run(scenario())


async def _drip(writer: asyncio.StreamWriter) -> None:
    while True:
        await asyncio.sleep(0.2)  # a drop for each pause
        writer.write(b"x")


def test_a_connection_that_is_used_again_and_again_is_not_cut(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with world() as w:
            host, _, port = (await w.start_gateway()).removeprefix("http://").partition(":")
            monkeypatch.setattr(protocols, "HEAD_S", 0.5)
            reader, writer = await asyncio.open_connection(host, int(port))
            for _ in range(8):
                writer.write(WHOLE[:7])
                await asyncio.sleep(0.1)  # slow, and in time: eight of them take longer than one may
                writer.write(WHOLE[7:])
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
            writer.close()

    asyncio.run(scenario())
