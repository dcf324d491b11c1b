"""Publishing beside a replica: to a log with a quorum of two, to one without, and to no log at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from statistics import median

import msgspec

from nearcast.bench.peers import Limit, OwnPeer, rate_of
from nearcast.core.model.logs import Log
from nearcast.testing.cluster import LocalCluster

WARM_UP = Limit(seconds=0.2)
LOGS = (
    Log("bench", 0, ("kept.*",), 3600.0, 256 << 20),
    Log("bench-quorum", 0, ("quorum.*",), 3600.0, 256 << 20, quorum=2),
)


class QuorumBench(msgspec.Struct, frozen=True):
    """Messages per second, each published and received, on a broker with one replica."""

    quorum_per_s: float
    log_publish_per_s: float
    publish_per_s: float


async def measure_quorum(limit: Limit, rounds: int, progress: Callable[[str], None]) -> QuorumBench:
    """The three are measured in turn; the medians count."""
    progress("starting a broker with a replica")
    async with (
        await LocalCluster.start(brokers=1, replicas=1) as cluster,
        await cluster.console() as console,
        AsyncExitStack() as stack,
    ):
        for log in LOGS:
            await console.create_log(log)
        peers = {}
        for name in ("quorum", "kept", "plain"):
            peers[name] = await OwnPeer.open(cluster.urls["b1"], f"{name}.0")
            stack.push_async_callback(peers[name].close)
            await rate_of(peers[name], peers[name].send_nowait, WARM_UP)
        rates: dict[str, list[float]] = {name: [] for name in peers}
        for number in range(1, rounds + 1):
            for name, peer in peers.items():
                progress(f"round {number} of {rounds}, with a replica: {name}")
                rates[name].append(await rate_of(peer, peer.send_nowait, limit))
    return QuorumBench(*(median(rates[name]) for name in ("quorum", "kept", "plain")))
