"""A provider of servers on this machine: real processes of a local cluster, started and stopped as the policy asks."""

from __future__ import annotations

from nearcast.testbed.cluster import LocalCluster


class LocalProvider:
    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    async def rent(self, broker: str) -> None:
        if broker not in self._cluster.urls:
            await self._cluster.start_broker(broker)

    async def release(self, broker: str, url: str) -> None:
        if self._cluster.urls.get(broker) == url:
            await self._cluster.remove_broker(broker)
