"""Results: fetched once per execution for all subscriptions that need them, and kept a while for those who catch up.

A result frame is the same for every subscriber of a subscription, so it is encoded once and shared.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from nearcast.gateway.data_cluster import DataCluster
from nearcast.gateway.frames import encode

Key = tuple[str, int]  # channel, execution

_LOCKS = 64  # an execution is fetched by one at a time; two that share a lock only wait for each other


class _ResultFrame(msgspec.Struct, tag_field="type", tag="result"):
    """`frames.Result`, its rows left as the data cluster encoded them."""

    subscription: str
    channel: str
    execution: int
    rows: msgspec.Raw


class Results:
    """Of one gateway. At most `kept` executions and `kept_bytes` bytes are kept; the least recently used go."""

    def __init__(self, data: DataCluster, kept: int, kept_bytes: int) -> None:
        self._data = data
        self._kept = kept
        self._kept_bytes = kept_bytes
        self._bytes = 0
        self._frames: OrderedDict[Key, dict[str, bytes | None]] = OrderedDict()
        self._fetching = [asyncio.Lock() for _ in range(_LOCKS)]
        self.fetches = 0  # requests made

    async def frames(self, channel: str, execution: int, subscriptions: Iterable[str]) -> dict[str, bytes | None]:
        """The frame of each subscription; None where the execution has no result for it."""
        key = (channel, execution)
        wanted = list(subscriptions)
        async with self._fetching[hash(key) % _LOCKS]:
            have = self._frames.get(key, {})
            lacking = [subscription for subscription in wanted if subscription not in have]
            if lacking:
                have = {**have, **await self._fetch(channel, execution, lacking)}
            self._keep(key, have)
        return {subscription: have[subscription] for subscription in wanted}

    async def _fetch(self, channel: str, execution: int, subscriptions: list[str]) -> dict[str, bytes | None]:
        self.fetches += 1
        rows = await self._data.results(channel, execution, subscriptions)
        return {
            subscription: encode(_ResultFrame(subscription, channel, execution, rows[subscription]))
            if subscription in rows
            else None
            for subscription in subscriptions
        }

    def _keep(self, key: Key, frames: dict[str, bytes | None]) -> None:
        self._bytes += _size(frames) - _size(self._frames.pop(key, {}))
        self._frames[key] = frames
        while self._frames and (len(self._frames) > self._kept or self._bytes > self._kept_bytes):
            _, oldest = self._frames.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(frames: dict[str, bytes | None]) -> int:
    return sum(len(frame) for frame in frames.values() if frame is not None)
