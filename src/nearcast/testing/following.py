"""Waiting until a local replica follows its server."""

from __future__ import annotations

import asyncio

from nearcast.errors import ServerFailed
from nearcast.runtime.requester import Requester

FOLLOWS_WITHIN_S = 20.0
LOOK_S = 0.05


def _follows(info: object) -> bool:
    return isinstance(info, bytes) and b"master_link_status:up" in info


async def until_follows(url: str, timeout_s: float = FOLLOWS_WITHIN_S) -> None:
    """Return when a replica has caught up with the server it follows."""
    requester = Requester(url)
    try:
        async with asyncio.timeout(timeout_s):
            while not _follows(await requester.ask("INFO", "replication")):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise ServerFailed(f"the replica {url} follows no server after {timeout_s:g} s") from None
    finally:
        await requester.close()
