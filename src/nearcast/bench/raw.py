"""The limit: a bare RESP loop. It writes prebuilt commands, parses with hiredis and counts; nothing else."""

from __future__ import annotations

import asyncio
from typing import Self, cast

import hiredis

from nearcast.bench.burst import PAYLOAD, WINDOW, Burst

TOPIC = b"bench-raw"
BATCH = 500
COMMAND = b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(TOPIC), TOPIC, len(PAYLOAD), PAYLOAD)


class RawPeer(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = 0
        self._reader = hiredis.Reader()
        self._room = asyncio.Event()
        self._attached = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        _, peer = await asyncio.get_running_loop().create_connection(cls, host, port)
        await peer._attached
        return peer

    async def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(b"HELLO 3\r\nSUBSCRIBE %b\r\n" % TOPIC)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        next_reply = reader.gets
        while (reply := next_reply()) is not False:
            if type(reply) is hiredis.PushNotification:
                if reply[0] == b"message":
                    self.received += 1
                elif not self._attached.done():
                    self._attached.set_result(None)
        self._room.set()

    async def send(self, burst: Burst) -> None:
        batch = memoryview(COMMAND * BATCH)
        while count := burst.take(BATCH):
            self._transport.write(batch[: count * len(COMMAND)])
            while burst.in_flight > WINDOW:
                self._room.clear()
                await self._room.wait()
