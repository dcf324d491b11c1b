"""HTTP requests whose callers may stop waiting at any moment.

When a request of httpx is cancelled at the wrong moment, its connection never returns to the pool (httpcore 1.0.9: it
stays there as new or active). After as many of these as the pool may have connections, no request gets one. So nothing
here is cancelled: a request runs to its end, at the latest when its time limit is over, and its caller may be gone by
then.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx


class HttpClient:
    """An httpx client with at most `at_once` requests at a time; the others wait, and may stop waiting."""

    def __init__(self, at_once: int, **options: Any) -> None:
        limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
        self._http = httpx.AsyncClient(trust_env=False, limits=limits, **options)
        self._turns = asyncio.Semaphore(at_once)
        self._running: set[asyncio.Task[httpx.Response]] = set()

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._http.aclose()

    async def request(self, method: str, url: str, **options: Any) -> httpx.Response:
        await self._turns.acquire()
        task = asyncio.create_task(self._http.request(method, url, **options))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[httpx.Response]) -> None:
        self._running.discard(task)
        self._turns.release()
        if not task.cancelled():
            task.exception()  # retrieved here because the caller may have stopped waiting
