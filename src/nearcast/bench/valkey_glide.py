"""valkey-glide, if it is installed: its own thread writes and reads, Python gets a callback per message."""

from __future__ import annotations

from typing import Any, Self

from nearcast.bench.burst import PAYLOAD

TOPIC = "bench-glide"


class GlidePeer:
    def __init__(self) -> None:
        self.received = 0
        self._publisher: Any = None
        self._subscriber: Any = None

    @classmethod
    async def open(cls, host: str, port: int) -> Self | None:
        """None if the library is not there."""
        try:
            from glide import GlideClient, GlideClientConfiguration, NodeAddress
        except ImportError:
            return None
        peer = cls()
        exact = GlideClientConfiguration.PubSubChannelModes.Exact
        subscription = GlideClientConfiguration.PubSubSubscriptions({exact: {TOPIC}}, peer._heard, None)
        servers = [NodeAddress(host, port)]
        peer._publisher = await GlideClient.create(GlideClientConfiguration(servers))
        peer._subscriber = await GlideClient.create(
            GlideClientConfiguration(servers, pubsub_subscriptions=subscription)
        )
        return peer

    async def close(self) -> None:
        await self._publisher.close()
        await self._subscriber.close()

    async def publish(self) -> object:
        return await self._publisher.publish(PAYLOAD, TOPIC)

    def _heard(self, message: object, context: object) -> None:
        self.received += 1
