"""`nearcast up` whose store comes back with nothing: it says so, as every look at the cluster does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from typing import Any
from urllib.parse import urlsplit

import pytest

from nearcast.runtime.servers import LocalServer

pytestmark = pytest.mark.live

TEST_S = 40.0
WARNING = b"warning: the store has lost data, see `nearcast store`\n"


async def announced(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    lines = [await process.stdout.readline()]
    while lines[-1] not in (b"}\n", b""):
        lines.append(await process.stdout.readline())
    found = json.loads(b"".join(lines))
    assert isinstance(found, dict)
    return found


def test_a_store_that_has_lost_data_is_told_once() -> None:
    async def scenario() -> None:
        command = (sys.executable, "-m", "nearcast", "up", "--brokers", "1", "--output", "json")
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        assert process.stderr is not None
        try:
            cluster = await announced(process)
            os.kill(cluster["pids"]["store"], signal.SIGKILL)
            while (await process.stderr.readline()) != b"store has ended; the others continue without it\n":
                pass
            async with await LocalServer.start(port=urlsplit(cluster["store"]).port):
                while (await process.stderr.readline()) != WARNING:
                    pass
                process.send_signal(signal.SIGINT)
                _, rest = await process.communicate()
            assert process.returncode == 0
            assert WARNING not in rest
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()

    asyncio.run(asyncio.wait_for(scenario(), TEST_S))
