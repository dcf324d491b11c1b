"""The driver runs one machine of the core on asyncio, over real connections.

It gives the machine the time, opens and closes connections as the machine's effects ask, and writes what the machine
has to send once per loop turn. `sim/process.py` does the same under virtual time.

A `Connection` is the socket under a link; an `Address` says where it leads.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast
from urllib.parse import unquote, urlsplit

import msgspec

from nearcast.core.wire.backend import Credentials
from nearcast.core.wire.effects import Connect, Disconnect, Effect, Rename
from nearcast.errors import NearcastError, UsageError
from nearcast.runtime.workers import Troubles

# --- addresses and connections


DEFAULT_PORT = 6379
CONNECT_TIMEOUT_S = 5.0


class Address(msgspec.Struct, frozen=True):
    """A server's address, split into its parts."""

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
    """Split a server's URL into its parts, or raise UsageError saying how it should look."""
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
    """The receiver of what the socket reports."""

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
        # Our writes are batched already: uvloop must not hold them back once more until the end of the loop turn.
        self._transport.set_write_buffer_limits(high=0)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        self._owner.arrived(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.ended(self, str(error) if error else "closed by the server")

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():  # its end is reported in the next turn
            # uvloop may have closed the socket already without saying so yet: others must still get their writes.
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
    """Why the connection could not be made, and what to do about it."""
    text = str(error) or "timed out"
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = f"TLS: its certificate is not accepted ({error.verify_message})"
        return (
            f"{problem}: set SSL_CERT_FILE to a file with the certificate of the authority that issued it,"
            " or use the host name it was issued for"
        )
    if address.tls:
        return f"cannot connect with TLS ({text}): does it run, and speak TLS at this port? Without TLS use redis://"
    return f"cannot connect ({text}): does it run?"


async def open_connection(address: Address, make: Callable[[], Connection]) -> Connection:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        if address.path:
            _, connection = await loop.create_unix_connection(make, address.path)
        else:
            context = ssl.create_default_context() if address.tls else None
            _, connection = await loop.create_connection(make, address.host, address.port, ssl=context)
    return connection


# --- the driver


log = logging.getLogger("nearcast.driver")

TICK_S = 0.1  # every timer of the protocol is several ticks long
WRITE_FIRST = 32  # messages that are written before the end of a loop turn: the server works on them meanwhile,
WRITE_MOST = 128  # and the more it has to do already, the more are written at once

Resolve = Callable[[str], str]


class Machine(Protocol):
    """What a driver needs from a machine of the core."""

    effects: list[Effect]
    wall_offset_s: float  # what to add to the driver's clock to get Unix time

    def connected(self, name: str, now_s: float) -> None: ...

    def received(self, name: str, data: bytes, now_s: float) -> None: ...

    def lost(self, name: str, reason: str, now_s: float) -> None: ...

    def tick(self, now_s: float) -> None: ...

    def outgoing(self) -> list[tuple[str, bytes]]: ...


class Driver:
    """Runs one machine.

    `after` is called whenever the machine may have produced something for the owner, `on_tick` before each tick. An
    error that the machine did not expect costs only the connection it came from: see `troubles`.
    """

    def __init__(
        self,
        machine: Machine,
        after: Callable[[], None],
        resolve: Resolve | None = None,
        *,
        tick_s: float = TICK_S,
        on_tick: Callable[[], None] = lambda: None,
        troubles: Troubles | None = None,
    ) -> None:
        self._machine = machine
        self._after = after
        self._on_tick = on_tick
        self._resolve = resolve
        self.troubles = troubles or Troubles(log)
        self._tick_s = tick_s
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self.unwritten = 0  # messages since the last write
        self.enough = 0  # call `write` at this many; 0 while no write is due at the end of the turn
        self._closed = False
        self._ticker: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time

    def start(self) -> None:
        self._tick()

    def wall_offset_s(self) -> float:
        return time.time() - self.now()

    def check_loop(self) -> None:
        """For calls that wait: in another event loop they would wait for something that happens in ours."""
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError("this client belongs to another event loop: connect one in the loop that uses it")

    async def stop(self) -> None:
        """Write what is left and close everything. The machine does not run after this."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        if self._ticker is not None:
            self._ticker.cancel()
        for task in self._opening.values():
            task.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        # Nothing is left to do after this point: the caller may be cancelled while it waits.
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports close their sockets

    def soon(self) -> None:
        """Write, and carry out what was asked for, at the end of this loop turn."""
        if not self.enough:
            self.unwritten, self.enough = 0, WRITE_FIRST
            self._loop.call_soon(self._end_turn)

    def write(self) -> None:
        """Write the counted messages: at the end of this loop turn, or now if there are many."""
        if not self.enough:
            self.soon()
            self.unwritten = 1
        else:
            self.unwritten, self.enough = 0, min(2 * self.enough, WRITE_MOST)
            self.flush()

    def settle(self) -> None:
        """Carry out what the last input asked for."""
        self.soon()
        try:
            self._carry_out_all()
            self._after()
        except Exception as error:
            self.troubles.note("carrying out effects", error)

    def pause_reading(self, paused: bool) -> None:
        for connection in self._connections.values():
            connection.pause_reading() if paused else connection.resume_reading()

    # --- what connections report

    def opened(self, connection: Connection) -> None:
        self._opening.pop(connection.name, None)
        if self._closed or connection.name in self._connections:
            connection.close()  # too late; or a seed has turned out to be this broker in the meantime
            return
        self._connections[connection.name] = connection
        try:
            self._machine.connected(connection.name, self.now())
        except Exception as error:
            self._failed(connection, error)
        self.settle()

    def arrived(self, connection: Connection, data: bytes) -> None:
        if self._connections.get(connection.name) is connection:
            try:
                self._machine.received(connection.name, data, self.now())
            except Exception as error:
                self._failed(connection, error)
            self.settle()

    def ended(self, connection: Connection, reason: str) -> None:
        if self._connections.get(connection.name) is connection:
            del self._connections[connection.name]
            self._lost(connection.name, reason)

    # --- inside

    def _failed(self, connection: Connection, error: Exception) -> None:
        """The machine did not expect this input: drop the connection and let the machine start over with it."""
        self.troubles.note("reading from a server", error)
        if self._connections.pop(connection.name, None) is not None:
            connection.close()
            self._lost(connection.name, f"an unexpected error: {error!r}")

    def _lost(self, name: str, reason: str) -> None:
        try:
            self._machine.lost(name, reason, self.now())
        except Exception as error:
            self.troubles.note("losing a connection", error)
        self.settle()

    def _tick(self) -> None:
        if self._closed:
            return
        self._ticker = self._loop.call_later(self._tick_s, self._tick)
        try:
            self._on_tick()
            self._machine.tick(self.now())
        except Exception as error:
            self.troubles.note("a tick", error)
        self.settle()

    def _end_turn(self) -> None:
        self.enough = 0
        self.flush()

    def flush(self) -> None:
        """Write what the machine has to send."""
        if self._closed:
            return
        try:
            self._carry_out_all()
            written = self._machine.outgoing()
        except Exception as error:
            self.troubles.note("writing to servers", error)
            return
        for name, data in written:
            connection = self._connections.get(name)
            if connection is not None:
                connection.write(data)

    def _carry_out_all(self) -> None:
        effects = self._machine.effects
        if effects:
            effects[:] = [effect for effect in effects if not self._carry_out(effect)]

    def _carry_out(self, effect: Effect) -> bool:
        """Whether the effect was one for the driver."""
        if isinstance(effect, Connect):
            self._opening[effect.link] = self._loop.create_task(self._open(effect.link, effect.url))
        elif isinstance(effect, Disconnect):
            self._close(effect.link)
        elif isinstance(effect, Rename):
            connection = self._connections.pop(effect.link, None)
            if connection is not None:
                connection.name = effect.name
                self._connections[effect.name] = connection
        else:
            return False
        return True

    async def _open(self, name: str, url: str) -> None:
        try:
            reason = await self._try_to_open(name, url)
        except Exception as error:  # otherwise the machine would wait for this connection forever
            self.troubles.note("opening a connection", error)
            reason = f"an unexpected error: {error!r}"
        if reason:
            self._opening.pop(name, None)
            if name not in self._connections:  # otherwise as in `opened`
                self._lost(name, reason)

    async def _try_to_open(self, name: str, url: str) -> str:
        """Why the connection could not be made; empty if it was."""
        try:
            address, _ = parse_url(self._resolve(url) if self._resolve else url)
        except NearcastError as error:
            return str(error)
        try:
            await open_connection(address, lambda: Connection(name, self))
        except (OSError, TimeoutError, UnicodeError) as error:  # the last: a host name that cannot be one
            return unreachable(address, error)
        return ""

    def _close(self, name: str) -> None:
        task = self._opening.pop(name, None)
        if task is not None:
            task.cancel()
        connection = self._connections.pop(name, None)
        if connection is not None:
            connection.close()
