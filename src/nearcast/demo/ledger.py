"""The end of act 1: a log whose broker is killed, and which is read to the end all the same."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from nearcast.core.model.logs import Log
from nearcast.core.model.message import Message
from nearcast.core.model.placement import Mode
from nearcast.runtime.connect import connect
from nearcast.testing.cluster import LocalCluster

LEDGER = Log("ledger", 0, ("ledger.*",), 3600.0, 64 << 20, quorum=2)
TOPIC = "ledger.scores"
MESSAGES = 500
READ_S = 30.0  # more than giving up a broker and sealing its replica take


@dataclass(frozen=True, slots=True)
class LedgerRead:
    """How many messages were acknowledged, and how many were read once their broker was gone."""

    acknowledged: int
    read: int

    @property
    def complete(self) -> bool:
        return self.read == self.acknowledged


async def read_after_a_kill(cluster: LocalCluster, broker: str) -> LedgerRead:
    """Keep messages at a broker and its replica, kill the broker's server, and read them."""
    others = [url for name, url in cluster.urls.items() if name != broker]
    async with await cluster.console() as console, connect(*others) as client:
        await console.create_log(LEDGER)
        await console.move(TOPIC, Mode.SINGLE, (broker,))
        await asyncio.gather(*(client.publish(TOPIC, b"%d" % number) for number in range(MESSAGES)))
        await cluster.kill_server(broker)
        found: set[bytes] = set()
        try:
            async with asyncio.timeout(READ_S), client.read(LEDGER.name) as reader:
                async for event in reader:
                    if isinstance(event, Message):
                        found.add(event.payload)
                    if len(found) == MESSAGES:
                        break
        except TimeoutError:
            pass  # the summary says how many are missing
    return LedgerRead(MESSAGES, len(found))
