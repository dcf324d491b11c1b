"""The source's blocking connection to one server, and the questions it asks.

Spark's Python workers have no event loop and need none, so `RespConnection` blocks. `StreamServer` asks which streams
there are and how far they go, and reads their records. It needs Valkey, or Redis 7 or newer, because older servers do
not count the records ever added.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import hiredis

from nearcast.core.wire.backend import Credentials, hello, refusal, unanswered
from nearcast.core.wire.link import command
from nearcast.errors import ClusterError, ConnectFailed, UsageError
from nearcast.pipeline.sources.offsets import View
from nearcast.runtime.driver import CONNECT_TIMEOUT_S, Address, parse_url, unreachable

ANSWER_S = 30.0  # for one read of the socket: a server that is silent for longer counts as gone
_CONNECTION_NAME = "nc-data"  # without the prefix of clients, whose connections an agent may close
_READ_BYTES = 1 << 18

Command = Sequence[bytes | str | int]
Ended = Callable[[str], str]  # the reason why a connection ended -> what to do about it


def _check_server(reason: str) -> str:
    return f"{reason}: check that the server runs"


# --- the connection


class RespConnection:
    """A connection on which each call blocks until the server has answered. Use it in a `with` block.

    With `send` and `receive` the server works on an answer while the caller does something else.
    """

    def __init__(self, url: str, credentials: Credentials | None = None) -> None:
        """`credentials`: instead of those in the URL."""
        address, own = parse_url(url)
        self._url = address.url
        self._reader = hiredis.Reader()
        self._asked: Command = ()
        try:
            self._socket = _connect(address)
        except OSError as error:
            raise ConnectFailed(f"{self._url}: {unreachable(address, error)}") from None
        try:
            self._write([hello(credentials or own, _CONNECTION_NAME)], unanswered)
            greeting = self._read(unanswered)
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
        self._write(commands)
        replies = [self._read() for _ in commands]
        for asked, reply in zip(commands, replies, strict=True):
            self._check(asked, reply)
        return replies

    def send(self, *parts: bytes | str | int) -> None:
        """Ask without waiting; `receive` then returns the answer."""
        self._asked = parts
        self._write([parts])

    def receive(self) -> Any:
        """The answer to what was sent; an error of the server is raised as ClusterError."""
        reply = self._read()
        self._check(self._asked, reply)
        return reply

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, asked: Command, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            raise ClusterError(f"{self._url} refused {asked[0]!s}: {reply}")

    def _write(self, commands: Sequence[Command], ended: Ended = _check_server) -> None:
        try:
            self._socket.sendall(b"".join(command(*parts) for parts in commands))
        except OSError as error:
            raise ConnectFailed(f"{self._url}: {ended(str(error))}") from None

    def _read(self, ended: Ended = _check_server) -> Any:
        try:
            while (reply := self._reader.gets()) is False:
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise ConnectFailed(f"{self._url}: {ended('closed by the server')}")
                self._reader.feed(data)
        except OSError as error:
            raise ConnectFailed(f"{self._url}: {ended(str(error))}") from None
        return reply


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


# --- streams


PAGE_RECORDS = 1000  # read at once: the server can answer other clients between two pages
_SCAN_COUNT = 1000

Record = tuple[bytes, list[bytes]]  # id, and field names and values in turn

# With a script, payloads stay on the server: the driver does not need them.
_VIEW = """
local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
if info.err then
  if redis.call('EXISTS', KEYS[1]) == 0 then return false end
  return info
end
local named = {}
for i = 1, #info, 2 do named[info[i]] = info[i + 1] end
return {named['length'], named['entries-added'], named['first-entry'] and named['first-entry'][1] or '0-0',
        named['last-generated-id']}
"""
_STEP = """
local page = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
if #page == 0 then return {0, ARGV[1]} end
return {#page, page[#page][1]}
"""


class StreamServer:
    """The streams of one server, over one connection."""

    def __init__(self, connection: RespConnection) -> None:
        self._connection = connection

    def names(self, wanted: Sequence[str]) -> list[str]:
        """The wanted streams, sorted: those named, existing or not, and those that match `prefix*`."""
        found = {name for name in wanted if not name.endswith("*")}
        for prefix in (name[:-1] for name in wanted if name.endswith("*")):
            found |= set(self._scan(prefix))
        return sorted(found)

    def _scan(self, prefix: str) -> Iterator[str]:
        pattern = re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix) + "*"
        cursor: bytes | int = 0
        while True:
            answer = self._connection.ask("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT, "TYPE", "stream")
            cursor, keys = answer
            yield from (_text(key) for key in keys)
            if int(cursor) == 0:
                return

    def views(self, streams: Sequence[str]) -> dict[str, View | None]:
        """How far each stream goes; None for one that does not exist."""
        answers = self._connection.ask_all([("EVAL_RO", _VIEW, 1, stream) for stream in streams])
        return {stream: _view(answer) for stream, answer in zip(streams, answers, strict=True)}

    def step(self, stream: str, after: str, records: int) -> tuple[str, int]:
        """The id `records` records after an id, or the last one if there are fewer, and how many records that is."""
        done = 0
        while done < records:
            count, last = self._connection.ask("EVAL_RO", _STEP, 1, stream, after, min(PAGE_RECORDS, records - done))
            after = last.decode()
            done += count
            if not count:
                break
        return after, done

    def pages(self, stream: str, after: str, upto: str) -> Iterator[list[Record]]:
        """The records after an id, up to and including another, in pages."""
        while True:
            page = self._connection.ask("XRANGE", stream, f"({after}", upto, "COUNT", PAGE_RECORDS)
            if page:
                yield page
                after = page[-1][0].decode()
            if len(page) < PAGE_RECORDS:
                return


def _view(answer: list[bytes | int | None] | None) -> View | None:
    if answer is None:
        return None
    if len(answer) < 4 or answer[1] is None:
        raise ClusterError("the server does not count the records of streams: use Valkey, or Redis 7 or newer")
    length, added, first, last = answer
    assert isinstance(length, int)
    assert isinstance(added, int)
    assert isinstance(first, bytes)
    assert isinstance(last, bytes)
    return View(length, added, first.decode(), last.decode())


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise UsageError(f"the name of stream {key!r} is not UTF-8: name the streams to read one by one") from None
