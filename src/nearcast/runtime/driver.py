"""The driver: runs one machine of the core on asyncio.

It gives the machine the time, opens and closes connections as its effects say, and writes once per loop turn what the
machine has to send. `sim/process.py` does the same under virtual time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from nearcast.core.effects import Connect, Disconnect, Effect, Rename
from nearcast.runtime.connection import Connection, open_connection, parse_url, unreachable

TICK_S = 0.1  # every timer of the protocol is several of these
WRITE_FIRST = 32  # messages of one loop turn that are not written at its end: the server works on them meanwhile,
WRITE_MOST = 128  # and the more it has to do already, the more are written at once

Resolve = Callable[[str], str]


class Machine(Protocol):
    effects: list[Effect]
    wall_offset_s: float  # what to add to the driver's clock to get Unix time

    def connected(self, name: str, now_s: float) -> None: ...

    def received(self, name: str, data: bytes, now_s: float) -> None: ...

    def lost(self, name: str, reason: str, now_s: float) -> None: ...

    def tick(self, now_s: float) -> None: ...

    def outgoing(self) -> list[tuple[str, bytes]]: ...


class Driver:
    """`after` is called whenever the machine may have produced something for the owner, `on_tick` before each tick."""

    def __init__(
        self,
        machine: Machine,
        after: Callable[[], None],
        resolve: Resolve | None = None,
        *,
        tick_s: float = TICK_S,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._machine = machine
        self._after = after
        self._on_tick = on_tick
        self._resolve = resolve
        self._tick_s = tick_s
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self.unwritten = 0  # messages since the last write
        self.enough = 0  # with so many `write` is to be called; 0 while nothing is to be written at the end of the turn
        self._closed = False
        self._ticker: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time

    def start(self) -> None:
        self._tick()

    def wall_offset_s(self) -> float:
        return time.time() - self.now()

    async def stop(self) -> None:
        """Write what is left, close everything. Nothing of the machine runs after this."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        if self._ticker is not None:
            self._ticker.cancel()
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        await asyncio.sleep(0)  # lets the transports close their sockets

    def soon(self) -> None:
        """Write, and carry out what was asked for, at the end of this loop turn."""
        if not self.enough:
            self.unwritten, self.enough = 0, WRITE_FIRST
            self._loop.call_soon(self._end_turn)

    def write(self) -> None:
        """Have the messages that were counted written: at the end of this loop turn, or now if there are many."""
        if not self.enough:
            self.soon()
            self.unwritten = 1
        else:
            self.unwritten, self.enough = 0, min(2 * self.enough, WRITE_MOST)
            self.flush()

    def settle(self) -> None:
        """Carry out what the last input asked for."""
        self._carry_out_all()
        self._after()
        self.soon()

    def pause_reading(self, paused: bool) -> None:
        for connection in self._connections.values():
            connection.pause_reading() if paused else connection.resume_reading()

    # --- what connections report

    def opened(self, connection: Connection) -> None:
        self._opening.pop(connection.name, None)
        if connection.name in self._connections:
            connection.close()  # a seed has turned out to be this broker in the meantime
            return
        self._connections[connection.name] = connection
        self._machine.connected(connection.name, self.now())
        self.settle()

    def arrived(self, connection: Connection, data: bytes) -> None:
        if self._connections.get(connection.name) is connection:
            self._machine.received(connection.name, data, self.now())
            self.settle()

    def ended(self, connection: Connection, reason: str) -> None:
        if self._connections.get(connection.name) is connection:
            del self._connections[connection.name]
            self._machine.lost(connection.name, reason, self.now())
            self.settle()

    # --- inside

    def _tick(self) -> None:
        if self._closed:
            return
        self._ticker = self._loop.call_later(self._tick_s, self._tick)
        self._on_tick()
        self._machine.tick(self.now())
        self.settle()

    def _end_turn(self) -> None:
        self.enough = 0
        self.flush()

    def flush(self) -> None:
        """Write what the machine has to send."""
        if self._closed:
            return
        self._carry_out_all()
        for name, data in self._machine.outgoing():
            connection = self._connections.get(name)
            if connection is not None:
                connection.write(data)

    def _carry_out_all(self) -> None:
        effects = self._machine.effects
        if effects:
            effects[:] = [effect for effect in effects if not self._carry_out(effect)]

    def _carry_out(self, effect: Effect) -> bool:
        """Returns whether the effect was one for the driver."""
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
        address, _ = parse_url(self._resolve(url) if self._resolve else url)
        try:
            await open_connection(address, lambda: Connection(name, self))
        except (OSError, TimeoutError, UnicodeError) as error:  # the last: a host name that cannot be one
            self._opening.pop(name, None)
            if name in self._connections:
                return  # as in `opened`
            self._machine.lost(name, unreachable(address, error), self.now())
            self.settle()

    def _close(self, name: str) -> None:
        task = self._opening.pop(name, None)
        if task is not None:
            task.cancel()
        connection = self._connections.pop(name, None)
        if connection is not None:
            connection.close()
