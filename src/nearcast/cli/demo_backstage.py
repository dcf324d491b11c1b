"""What the demo's third act needs before it can begin: packages, memory, and Spark, which is started in time."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.testbed.emergency import EmergencyPlan
    from nearcast.testbed.emergency_stage import EmergencyStage

PACKAGES = {"pyspark": "data", "pyarrow": "data", "numpy": "policies", "httpx": "gateway", "websockets": "gateway"}
MEMORY_BYTES = 3 << 30  # Spark, three servers, their agents


def obstacle() -> str:
    """Why the act cannot be played on this machine, and what would help; empty if it can."""
    for package, extra in PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            return f"it needs {package}: pip install 'nearcast[{extra}]'"
    free = available_bytes()
    if free is not None and free < MEMORY_BYTES:
        return f"it needs {MEMORY_BYTES / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free: end some programs"
    return ""


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that programs could have; None where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


class Backstage:
    """Opens the stage while the acts before it are played."""

    def __init__(self, plan: EmergencyPlan) -> None:
        self.plan = plan
        self._opening: asyncio.Task[EmergencyStage] | None = None

    def begin(self) -> None:
        from nearcast.testbed.channels_act import open_stage

        if self._opening is None:
            self._opening = asyncio.create_task(open_stage(self.plan))

    async def stage(self) -> EmergencyStage:
        """It belongs to whoever asked, who closes it."""
        self.begin()
        assert self._opening is not None
        stage = await self._opening
        self._opening = None
        return stage

    async def close(self) -> None:
        """If nobody has asked for it."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        opening.cancel()
        for found in await asyncio.gather(opening, return_exceptions=True):
            if not isinstance(found, BaseException):
                await found.close()
