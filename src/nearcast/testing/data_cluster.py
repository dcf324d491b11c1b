"""A data cluster process on this machine, for tests and local clusters. It can be killed and restarted."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any, Self

from nearcast.errors import ClusterError
from nearcast.testing.process import LocalProcess

START_S = 240.0  # Spark on a busy machine
_STOP_WAIT_S = 30.0
_LOOK_S = 0.2
_LINES_SHOWN = 20


class LocalDataCluster:
    """Runs `nearcast data` on a port that stays the same. Make one with `await LocalDataCluster.start(...)`."""

    def __init__(self, url: str, process: LocalProcess) -> None:
        self.url = url
        self.process = process

    @classmethod
    async def start(
        cls,
        store_url: str,
        folder: Path,
        master: str = "local[2]",
        log_folder: Path | None = None,
        *,
        telemetry: bool = False,
    ) -> Self:
        """Returns when the process has started; `until_running` waits for Spark.

        `folder` has the data and is kept. The log is in `log_folder`, which is removed if this program is killed.
        """
        port = _free_port()
        arguments = ["data", "--store", store_url, "--folder", str(folder), "--listen", f"127.0.0.1:{port}"]
        arguments += ["--master", master, "--telemetry" if telemetry else "--no-telemetry"]
        process = await LocalProcess.start("data", arguments, log_folder or folder.parent)
        return cls(f"http://127.0.0.1:{port}", process)

    async def until_running(self, timeout_s: float = START_S) -> None:
        """Wait until Spark runs and channels are executed."""
        until_s = time.monotonic() + timeout_s
        while (found := await self.health()) != "running":
            if not self.process.alive or time.monotonic() > until_s:
                written = "\n".join(self.process.last_lines(_LINES_SHOWN))
                raise ClusterError(f"the data cluster does not run (Spark: {found}); its last lines:\n{written}")
            await asyncio.sleep(_LOOK_S)

    async def health(self) -> str:
        """The state of Spark; empty while the process does not answer."""
        import httpx

        try:
            async with httpx.AsyncClient(base_url=self.url, timeout=5.0) as client:
                answer: dict[str, Any] = (await client.get("/health")).json()
                return str(answer["spark"])
        except (httpx.HTTPError, ValueError, KeyError):
            return ""

    async def kill(self) -> None:
        """End it as a crash would."""
        await self.process.kill()

    async def again(self) -> None:
        """Run the same command in a new process; the old one is killed if it still runs."""
        self.process = await self.process.again()

    async def stop(self) -> None:
        """Ask it to end, which takes Spark a few seconds, and kill it if it does not end in time."""
        await self.process.stop(_STOP_WAIT_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
