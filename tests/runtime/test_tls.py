"""TLS in front of a real server: what works, and that errors say TLS."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import nearcast
from nearcast.errors import ConnectFailed
from nearcast.pipeline.sources.server import RespConnection
from nearcast.runtime import driver
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer

pytestmark = pytest.mark.live

CERTIFICATE = Path(__file__).with_name("localhost.pem")  # issued by itself for `localhost`
CONNECT_S = 0.5

NOT_TRUSTED = r"TLS: its certificate is not accepted \(self.signed certificate.*SSL_CERT_FILE"
NOT_ITS_NAME = r"TLS: its certificate is not accepted \(IP address mismatch.*host name it was issued for"
NOT_TLS = r"cannot connect with TLS .*speak TLS at this port\? Without TLS use redis://"
TLS = r"use rediss://"


@contextlib.asynccontextmanager
async def tls_in_front_of(server: LocalServer) -> AsyncIterator[int]:
    """A port that speaks TLS and passes everything on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(_pass_on(reader, inner_writer), _pass_on(inner_reader, writer))

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


async def ask(url: str) -> object:
    requester = Requester(url)
    try:
        return await requester.ask("PING")
    finally:
        await requester.close()


async def problems(url: str) -> list[str]:
    """What a client, a requester and the data cluster say about a server they cannot use."""
    found = []
    with pytest.raises(ConnectFailed) as raised:
        await nearcast.connect(url, bootstrap_s=3.0, patient=False)
    found.append(str(raised.value))
    with pytest.raises(ConnectFailed) as raised:
        await ask(url)
    found.append(str(raised.value))
    with pytest.raises(ConnectFailed) as raised:
        await asyncio.to_thread(RespConnection, url)
    found.append(str(raised.value))
    return found


@pytest.mark.parametrize(
    ("scheme", "host", "trusted", "says"),
    [
        ("rediss", "localhost", False, NOT_TRUSTED),
        ("rediss", "127.0.0.1", True, NOT_ITS_NAME),
        ("redis", "127.0.0.1", True, TLS),
    ],
)
def test_errors_of_a_port_with_tls_say_tls(
    monkeypatch: pytest.MonkeyPatch, scheme: str, host: str, trusted: bool, says: str
) -> None:
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))

    async def scenario() -> None:
        async with await LocalServer.start() as server, tls_in_front_of(server) as port:
            for problem in await problems(f"{scheme}://{host}:{port}"):
                assert re.search(says, problem)

    asyncio.run(scenario())


def test_errors_of_a_port_without_tls_say_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "CONNECT_TIMEOUT_S", CONNECT_S)
    monkeypatch.setattr("nearcast.pipeline.sources.server.CONNECT_TIMEOUT_S", CONNECT_S)

    async def scenario() -> None:
        async with await LocalServer.start() as server:
            for problem in await problems(f"rediss://localhost:{server.port}"):
                assert re.search(NOT_TLS, problem)

    asyncio.run(scenario())


def test_a_server_is_reached_over_tls_with_its_certificate_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))

    async def scenario() -> None:
        async with await LocalServer.start() as server, tls_in_front_of(server) as port:
            assert await ask(f"rediss://localhost:{port}") == b"PONG"

    asyncio.run(scenario())
