"""A provider of servers for a local cluster."""

from __future__ import annotations

from nearcast.testing.cluster import LocalCluster


class LocalProvider:
    """Starts and stops servers on this machine when the policy asks for it: real processes of the local cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    async def rent(self, broker: str) -> None:
        if broker not in self._cluster.urls:
            await self._cluster.start_broker(broker)

    async def release(self, broker: str, url: str) -> None:
        if self._cluster.urls.get(broker) == url:
            await self._cluster.remove_broker(broker)
