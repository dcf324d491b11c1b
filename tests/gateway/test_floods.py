"""Peers of a WebSocket that only send: pings, or the fragments of one message without end."""

from __future__ import annotations

import asyncio
import base64
import json
import socket

import pytest
from gateway_world import WAIT_S, Worlds

from nearcast.subscriber.transport import register
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

CONTINUATION, TEXT, PING = 0, 1, 9
MEMORY_BYTES = 4 << 20  # what may wait in the gateway, of the SENT_BYTES
SENT_BYTES = 32 << 20


def frame(opcode: int, data: bytes, *, last: bool = True) -> bytes:
    """Masked with zeros, as clients may."""
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return bytes([opcode | (0x80 if last else 0)]) + length + bytes(4) + data


async def logged_in(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with small buffers on this side, after its welcome."""
    host, _, port = url.removeprefix("http://").partition(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    raw.connect((host, int(port)))
    raw.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=raw, limit=1 << 12)
    key = base64.b64encode(bytes(16))
    writer.write(
        b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % key
    )
    await reader.readuntil(b"\r\n\r\n")
    login = {"type": "login", "user": "ann", "token": await register(url, "ann")}
    writer.write(frame(TEXT, json.dumps(login).encode()))
    assert b"welcome" in await asyncio.wait_for(reader.readuntil(b"}"), WAIT_S)
    return reader, writer


def test_pongs_do_not_wait_for_a_peer_that_takes_none(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            reader, writer = await logged_in(url)
            pings = frame(PING, b"x" * 125) * 500
            for _ in range(SENT_BYTES // len(pings)):
                writer.write(pings)
                await asyncio.wait_for(writer.drain(), WAIT_S)
            (connection,) = w.servers["b1"]._server.server_state.connections
            assert connection.transport.get_write_buffer_size() < MEMORY_BYTES
            pongs = 0
            while pongs < 1000:  # and it is answered again when it reads
                pongs += (await asyncio.wait_for(reader.read(1 << 16), WAIT_S)).count(b"\x8a")
            writer.transport.abort()

    asyncio.run(scenario())


def test_a_message_in_fragments_without_end_is_cut(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            reader, writer = await logged_in(url)
            writer.write(frame(TEXT, b"{", last=False))
            writer.write(frame(CONTINUATION, b"", last=False) * 2000)
            told = await asyncio.wait_for(reader.read(1 << 16), WAIT_S)
            assert b"more than 1000 fragments" in told
            await until(lambda: not w.gateways["b1"].open_sessions)
            writer.transport.abort()

    asyncio.run(scenario())
