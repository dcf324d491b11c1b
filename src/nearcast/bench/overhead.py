"""What the agent and the controller cost a client: its speed while they run against its speed while they stand still.

Without its agent a broker's lease ends after one to two seconds, and publishers then hold back acknowledgements. So
they are stopped (SIGSTOP) for one short burst at a time, and every such burst has a neighbour with them running: what
else happens on the machine hits both alike. The order changes from pair to pair, so that a trend cancels out too.
"""

from __future__ import annotations

from statistics import median

from nearcast.bench.burst import Limit, rate_of
from nearcast.bench.own import OwnPeer
from nearcast.testbed.cluster import LocalCluster

BURST_S = 0.5  # a lease proven before the stop lasts three times as long


async def overhead_ratio(cluster: LocalCluster, peer: OwnPeer, limit: Limit, pairs: int) -> float:
    """Median rate with agent and controller, divided by the median rate without."""
    short = Limit(min(limit.seconds, BURST_S), limit.messages)
    running: list[float] = []
    stopped: list[float] = []
    for number in range(pairs):
        for with_agent in (True, False) if number % 2 else (False, True):
            if with_agent:
                running.append(await rate_of(peer, peer.send_nowait, short))
            else:
                stopped.append(await _rate_while_stopped(cluster, peer, short))
    return median(running) / median(stopped)


async def _rate_while_stopped(cluster: LocalCluster, peer: OwnPeer, limit: Limit) -> float:
    cluster.pause()
    try:
        return await rate_of(peer, peer.send_nowait, limit)
    finally:
        cluster.resume()
        await cluster.until_members()
