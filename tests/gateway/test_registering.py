"""Who may take a free name: anybody, who knows the secret, nobody, or whom the operator's own service lets in."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
import pytest
from gateway_world import World, Worlds

from nearcast.errors import ConnectFailed, Refused
from nearcast.gateway import registrar
from nearcast.subscriber.client import Subscriber
from nearcast.subscriber.transport import register

pytestmark = pytest.mark.live

SECRET = "known to friends alone"


def play(world: Worlds, scenario: Callable[[World, str], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def run() -> None:
        async with world() as w:
            await scenario(w, await w.start_gateway(**settings))

    asyncio.run(run())


def test_with_a_secret_only_who_shows_it_gets_a_name(world: Worlds) -> None:
    async def scenario(w: World, url: str) -> None:
        for wrong in ("", "guessed", SECRET + "x", "sécret"):
            with pytest.raises(Refused, match="needs the shared secret"):
                await register(url, "ann", secret=wrong)
        async with Subscriber.connect(url, "ann", secret=SECRET) as ann:
            pass
        assert await register(url, "ann", ann.token)  # a new token for the old one needs no secret
        with pytest.raises(Refused, match="needs the shared secret"):  # before it is told whether there is an ann
            await register(url, "ann")

    play(world, scenario, register="secret", register_secret=SECRET)


def test_where_registering_is_closed_the_operator_adds_users(world: Worlds) -> None:
    async def scenario(w: World, url: str) -> None:
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.post(f"{url}/register", json={"user": "ann"})
        assert (answer.status_code, "nearcast users add ann" in answer.json()["problem"]) == (403, True)
        token = await w.gateways["b1"].users.register("ann")
        async with Subscriber.connect(url, "ann", token=token):
            pass

    play(world, scenario, register="closed")


class Service:
    """An operator's service that answers with a status, after it was let go on."""

    def __init__(self) -> None:
        self.status = 204
        self.heard: list[bytes] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/may-register"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        self.heard.append(head + await reader.readexactly(length))
        await self.go_on.wait()
        writer.write(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % self.status)
        writer.close()


def test_a_service_of_the_operator_decides_and_what_fails_is_refused(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrar, "HOOK_S", 0.3)

    async def run() -> None:
        service = Service()
        async with world() as w, service.serving() as hook:
            url = await w.start_gateway(register=hook)
            assert await register(url, "ann", secret="shown by änn")
            assert b'"user":"ann"' in service.heard[0].replace(b": ", b":")
            assert "shown by änn".encode() in service.heard[0]
            assert b"x-forwarded-for: 127.0.0.1" in service.heard[0].lower()
            for status in (302, 403):
                service.status = status
                with pytest.raises(Refused, match=rf"did not admit bob \({status}\)"):
                    await register(url, "bob")
            service.status = 500
            with pytest.raises(ConnectFailed, match=r"failed \(500\)"):
                await register(url, "bob")
            service.status = 200
            service.go_on.clear()
            asked = [register(url, f"user{number}") for number in range(registrar.HOOKS_AT_ONCE + 4)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(answer, ConnectFailed) for answer in answers), answers
            assert len(service.heard) <= 4 + registrar.HOOKS_AT_ONCE
            assert sum("too many registrations are waiting" in str(answer) for answer in answers) >= 1
            assert [user.name async for user in w.gateways["b1"].users.all()] == ["ann"]

    asyncio.run(run())


@pytest.mark.parametrize(
    "body", [b'{"user":"bob","USER":"ann"}', b'{"USER":"ann","user":"bob"}', b'{"user":"ann","user":"bob"}']
)
def test_the_service_of_the_operator_reads_the_name_that_is_registered(world: Worlds, body: bytes) -> None:
    """However it reads JSON: some take the first of two fields, and some do not tell User from user."""

    async def run() -> None:
        service = Service()
        async with world() as w, service.serving() as hook:
            url = await w.start_gateway(register=hook)
            async with httpx.AsyncClient(trust_env=False) as http:
                answer = await http.post(f"{url}/register", content=body[:-1] + b',"invitation":{"code":7}}')
            assert answer.json()["user"] == "bob"
            asked = service.heard[0].partition(b"\r\n\r\n")[2]
            assert asked.lower().count(b'"user"') == 1
            assert json.loads(asked) == {"user": "bob", "invitation": {"code": 7}}

    asyncio.run(run())


def test_a_name_that_looks_like_another_is_refused(world: Worlds) -> None:
    async def scenario(w: World, url: str) -> None:
        assert await register(url, "ann")
        for user in ("ann\u200b", "\u202enna"):
            with pytest.raises(Refused, match="visible characters"):
                await register(url, user)

    play(world, scenario)
