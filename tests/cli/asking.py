"""Commands run in the tests' process, against a cluster, and what a measurement has open on a server."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

from typer.testing import CliRunner, Result

from nearcast.cli.app import app
from nearcast.runtime.ends import NAME
from nearcast.runtime.requester import Requester


def nearcast(cluster: dict[str, Any], *arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"NEARCAST_URL": cluster["brokers"]["b1"]})


def answer(cluster: dict[str, Any], *arguments: str, code: int = 0) -> Any:
    result = nearcast(cluster, *arguments, "--output", "json")
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def heed_ctrl_c() -> None:
    """Shells start jobs in the background with SIGINT ignored, and what they start inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def measuring(url: str) -> int:
    """How many connections of a calibration the server has."""

    async def asked() -> int:
        requester = Requester(url)
        listed = await requester.ask("CLIENT", "LIST")
        await requester.close()
        assert isinstance(listed, bytes)
        return listed.count(f"name={NAME} ".encode())

    return asyncio.run(asked())
