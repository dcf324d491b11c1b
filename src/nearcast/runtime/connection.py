"""A connection: the socket under a link."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast
from urllib.parse import unquote, urlsplit

import msgspec

from nearcast.core.greeting import Credentials
from nearcast.errors import UsageError

DEFAULT_PORT = 6379
CONNECT_TIMEOUT_S = 5.0


class Address(msgspec.Struct, frozen=True):
    """A server's address, taken apart."""

    host: str
    port: int
    tls: bool = False
    path: str = ""  # of a Unix socket

    @property
    def url(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'s' if self.tls else ''}://{host}:{self.port}"


def parse_url(url: str) -> tuple[Address, Credentials]:
    """Take a server's URL apart, or raise UsageError saying how it should look."""
    hint = "use redis://host:port, redis://user:password@host:port, rediss://... for TLS, or unix:///path"
    if not isinstance(url, str):
        raise UsageError(f"bad server URL {url!r}: {hint}")
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise UsageError(f"bad server URL {url!r} ({error}): {hint}") from None
    credentials = Credentials(unquote(parts.username or ""), unquote(parts.password or ""))
    if parts.scheme == "unix" and parts.path:
        return Address("", 0, path=parts.path), credentials
    if parts.scheme not in ("redis", "rediss", "valkey", "valkeys") or not parts.hostname:
        raise UsageError(f"bad server URL {url!r}: {hint}")
    return Address(parts.hostname, port, tls=parts.scheme.endswith("s") and parts.scheme != "redis"), credentials


class Owner(Protocol):
    """Who gets what the socket says."""

    def opened(self, connection: Connection) -> None: ...

    def arrived(self, connection: Connection, data: bytes) -> None: ...

    def ended(self, connection: Connection, reason: str) -> None: ...


class Connection(asyncio.Protocol):
    """Bytes in, bytes out. It never interprets them, so a cancelled caller cannot leave it out of step."""

    def __init__(self, name: str, owner: Owner) -> None:
        self.name = name
        self._owner = owner
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # What we write is gathered already: uvloop must not gather it once more until the end of the loop turn.
        self._transport.set_write_buffer_limits(high=0)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        self._owner.arrived(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.ended(self, str(error) if error else "closed by the server")

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():  # its end is reported in the next turn
            # uvloop may have closed the socket already and not say so yet: others must not miss what is theirs.
            with suppress(RuntimeError):
                self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort() if self._transport.get_write_buffer_size() else self._transport.close()


def unreachable(address: Address, error: Exception) -> str:
    """Why no connection came about, and what to do about it."""
    said = str(error) or "timed out"
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = f"TLS: its certificate is not accepted ({error.verify_message})"
        return f"{problem}: name who issued it in SSL_CERT_FILE, or use the host name it was issued for"
    if address.tls:
        return f"cannot connect with TLS ({said}): does it run, and speak TLS at this port? Without TLS use redis://"
    return f"cannot connect ({said}): does it run?"


async def open_connection(address: Address, make: Callable[[], Connection]) -> Connection:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        if address.path:
            _, connection = await loop.create_unix_connection(make, address.path)
        else:
            context = ssl.create_default_context() if address.tls else None
            _, connection = await loop.create_connection(make, address.host, address.port, ssl=context)
    return connection
