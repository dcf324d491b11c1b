"""Move a topic from broker to broker while messages are published to it, and count what its subscriber gets.

Every message carries its number, so the subscriber itself can detect lost, duplicated and reordered ones.
"""

from __future__ import annotations

import asyncio
import time

import nearcast
from nearcast import Mode
from nearcast.testing import LocalCluster

TOPIC = "scores"
PLACES = (
    (Mode.SINGLE, ("b1",)),
    (Mode.SINGLE, ("b2",)),
    (Mode.ALL_SUBSCRIBERS, ("b1", "b2", "b3")),
    (Mode.ALL_PUBLISHERS, ("b2", "b3")),
    (Mode.SINGLE, ("b3",)),
)


class Publisher:
    """Publishes numbers, one after another, each acknowledged before the next."""

    def __init__(self, client: nearcast.Client) -> None:
        self.acknowledged = 0
        self._client = client
        self._stop = False

    async def run(self) -> None:
        while not self._stop:
            await self._client.publish(TOPIC, str(self.acknowledged + 1))
            self.acknowledged += 1

    def stop(self) -> None:
        self._stop = True


async def read(subscription: nearcast.Subscription) -> tuple[list[int], list[nearcast.Event]]:
    """The numbers received, and everything that is not a message, until the subscription is closed."""
    numbers: list[int] = []
    others: list[nearcast.Event] = []
    async for event in subscription:
        if isinstance(event, nearcast.Message):
            numbers.append(int(event.payload))
        else:
            others.append(event)
    return numbers, others


async def main() -> None:
    async with await LocalCluster.start(brokers=3) as cluster, nearcast.connect(*cluster.urls.values()) as client:
        subscription = await client.subscribe(TOPIC)
        reading = asyncio.create_task(read(subscription))
        publisher = Publisher(client)
        publishing = asyncio.create_task(publisher.run())
        console = await cluster.console()
        for mode, brokers in PLACES:
            before, begun_s = publisher.acknowledged, time.monotonic()
            await console.move(TOPIC, mode, brokers)
            took_ms, meanwhile = (time.monotonic() - begun_s) * 1e3, publisher.acknowledged - before
            print(f"moved to {', '.join(brokers):10} ({mode}) in {took_ms:.0f} ms; {meanwhile} messages meanwhile")
        publisher.stop()
        await publishing
        await asyncio.sleep(0.5)  # the last ones are still in flight
        subscription.close()
        numbers, others = await reading
        print(f"published and acknowledged: {publisher.acknowledged}")
        print(f"received exactly once and in order: {numbers == list(range(1, publisher.acknowledged + 1))}")
        print(f"gaps and interruptions: {len(others)}")


asyncio.run(main())
