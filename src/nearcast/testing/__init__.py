"""Real clusters on this machine, with load, audits and faults, for your tests and ours, demos and benchmarks.

async with await LocalCluster.start(brokers=3) as cluster:
    client = await nearcast.connect(*cluster.urls.values())
"""

from nearcast.testing.cluster import LocalCluster

__all__ = ["LocalCluster"]
