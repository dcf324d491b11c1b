"""A blocking connection to one server, for Spark's Python workers: they have no event loop, and need none."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import hiredis

from nearcast.core.greeting import hello, refusal, unanswered
from nearcast.core.resp import command
from nearcast.errors import ClusterError, ConnectFailed
from nearcast.runtime.connection import CONNECT_TIMEOUT_S, Address, parse_url, unreachable

ANSWER_S = 30.0  # for one read of the socket: a server that says nothing for so long is gone
_CONNECTION_NAME = "nc-data"  # without the prefix of clients, whose connections an agent may cut
_READ_BYTES = 1 << 18

Command = Sequence[bytes | str | int]


def _check_server(reason: str) -> str:
    return f"{reason}: check that the server runs"


class RespConnection:
    """Asks and waits. Use it in a `with` block."""

    def __init__(self, url: str) -> None:
        address, credentials = parse_url(url)
        self._url = address.url
        self._reader = hiredis.Reader()
        try:
            self._socket = _connect(address)
        except OSError as error:
            raise ConnectFailed(f"{self._url}: {unreachable(address, error)}") from None
        try:
            (greeting,) = self._replies([hello(credentials, _CONNECTION_NAME)], ended=unanswered)
        except BaseException:
            self.close()
            raise
        if isinstance(greeting, hiredis.ReplyError):
            self.close()
            raise refusal(self._url, str(greeting))

    def ask(self, *parts: bytes | str | int) -> Any:
        """The server's answer; its errors are raised as ClusterError."""
        return self.ask_all([parts])[0]

    def ask_all(self, commands: Sequence[Command]) -> list[Any]:
        """The answers to several commands sent at once."""
        replies = self._replies(commands)
        for asked, reply in zip(commands, replies, strict=True):
            if isinstance(reply, hiredis.ReplyError):
                raise ClusterError(f"{self._url} refused {asked[0]!s}: {reply}")
        return replies

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _replies(self, commands: Sequence[Command], ended: Callable[[str], str] = _check_server) -> list[Any]:
        replies: list[Any] = []
        try:
            self._socket.sendall(b"".join(command(*parts) for parts in commands))
            while len(replies) < len(commands):
                if (reply := self._reader.gets()) is not False:
                    replies.append(reply)
                    continue
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise ConnectFailed(f"{self._url}: {ended('closed by the server')}")
                self._reader.feed(data)
        except OSError as error:
            raise ConnectFailed(f"{self._url}: {ended(str(error))}") from None
        return replies


def _connect(address: Address) -> socket.socket:
    if address.path:
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(address.path)
    else:
        connected = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls:
            connected = ssl.create_default_context().wrap_socket(connected, server_hostname=address.host)
    connected.settimeout(ANSWER_S)
    return connected
