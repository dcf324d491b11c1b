"""One process of a local cluster: a command of ours, and its log."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from nearcast.runtime.servers import guardian, spawn_guarded

_STOP_WAIT_S = 2.0


class LocalProcess:
    """A process `nearcast ARGUMENTS`, such as an agent or a controller, and its log. It never outlives this program.

    Make one with `await LocalProcess.start(...)`.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.arguments = tuple(arguments)
        self.log = log
        self._process = process
        self._ended = asyncio.create_task(self._release_at_exit())

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str], folder: Path) -> Self:
        """Returns when the process has started. Its log is in `folder`, which is removed if this program is killed."""
        log = folder / f"{name}.log"
        # -P: a file nearcast.py in the current directory must not be taken for the package.
        command = [sys.executable, "-P", "-m", "nearcast", *arguments]
        return cls(name, arguments, log, await spawn_guarded(log, command, folder))

    async def again(self) -> Self:
        """Run the same command in a new process; the old one is killed if it still runs."""
        await self.kill()
        return await self.start(self.name, self.arguments, self.log.parent)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once the process has ended and this program has noticed."""
        return self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def kill(self) -> None:
        """End it as a crash would, and return when it has ended."""
        self.signal(signal.SIGKILL)
        await asyncio.shield(self._ended)

    async def stop(self, wait_s: float = _STOP_WAIT_S) -> None:
        """Ask it to end, and kill it if it does not end in time."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a paused process handles no other signal
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._ended), wait_s)
        finally:
            self.signal(signal.SIGKILL)
        await asyncio.shield(self._ended)

    def last_lines(self, count: int) -> list[str]:
        written = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return written[-count:]

    async def _release_at_exit(self) -> None:
        await self._process.wait()
        guardian().release(self.pid)
