"""Holdings: the backend subscriptions this broker holds at the data cluster.

One worker makes all changes, one after the other, so that the release of a subscription nobody holds any more and a new
user's attachment of the same cannot cross. What waits together is asked together. While the data cluster is away the
worker tries again, and callers wait as long as they like; sessions bound how many they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from nearcast.errors import ClusterError
from nearcast.gateway.data_cluster import DataCluster, DataClusterRefused, Gone, Granted, Wanted
from nearcast.gateway.retrying import Pauses

log = logging.getLogger("nearcast.gateway")

BATCH = 500  # subscriptions in one request

Hold = Callable[[str], None]


class _Waiting(NamedTuple):
    wanted: Wanted
    hold: Hold
    future: asyncio.Future[Granted]


class Holdings:
    """`is_held(subscription)`: whether a user of this gateway holds it, asked before it is released."""

    def __init__(self, data: DataCluster, broker: str, url: str, is_held: Callable[[str], bool]) -> None:
        self._data = data
        self._broker = broker
        self._url = url
        self._is_held = is_held
        self._attached: dict[str, Wanted] = {}
        self._waiting: list[_Waiting] = []
        self._unheld: set[str] = set()
        self._introduced = False
        self._work = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._work.set()
        self._worker = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._worker
        for waiting in self._waiting:
            waiting.future.cancel()

    def has(self, subscription: str) -> bool:
        return subscription in self._attached

    def restore(self, subscription: str, channel: str, parameters: dict[str, Any]) -> None:
        """What this broker held before it started: told to the data cluster once more, which changes nothing there."""
        self._attached[subscription] = Wanted(channel, parameters)

    def attach(self, channel: str, parameters: dict[str, Any], hold: Hold) -> asyncio.Future[Granted]:
        """Ask for a subscription. `hold` is called with its id before anything can release it again."""
        future: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(Wanted(channel, parameters), hold, future))
        self._work.set()
        return future

    def release(self, subscription: str) -> None:
        """Perhaps nobody holds it any more: the worker looks, and unsubscribes."""
        self._unheld.add(subscription)
        self._work.set()

    def introduce_again(self) -> None:
        """The data cluster does not know this broker."""
        self._introduced = False
        self._work.set()

    # --- the worker

    async def _run(self) -> None:
        pauses = Pauses()
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                await self._do_all()
                pauses.reset()
            except ClusterError as error:
                log.warning("%s", error)
                await asyncio.sleep(pauses.next_s())
                self._work.set()

    async def _do_all(self) -> None:
        if not self._introduced:
            await self._data.put_broker(self._broker, self._url)
            held = list(self._attached.values())
            for first in range(0, len(held), BATCH):
                await self._data.subscribe(self._broker, held[first : first + BATCH])
            self._introduced = True
        while self._waiting or self._unheld:
            await self._attach_some()
            await self._release_all()

    async def _attach_some(self) -> None:
        batch = self._waiting[:BATCH]
        if not batch:
            return
        try:
            granted = await self._data.subscribe(self._broker, [waiting.wanted for waiting in batch])
        except Gone:
            self._introduced = False  # it does not know this broker
            raise
        except DataClusterRefused as error:
            granted = [Granted(problem=str(error))] * len(batch)
        del self._waiting[: len(batch)]
        for waiting, answer in zip(batch, granted, strict=True):
            if answer.subscription:
                self._attached[answer.subscription] = waiting.wanted
            if not waiting.future.cancelled():
                if answer.subscription:
                    waiting.hold(answer.subscription)
                waiting.future.set_result(answer)
            elif answer.subscription:
                self._unheld.add(answer.subscription)  # who asked has left

    async def _release_all(self) -> None:
        for subscription in list(self._unheld):
            if not self._is_held(subscription):
                self._attached.pop(subscription, None)  # first: who wants it from now on asks for it again
                with contextlib.suppress(Gone):
                    await self._data.unsubscribe(self._broker, subscription)
            self._unheld.discard(subscription)
