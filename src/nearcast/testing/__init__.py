"""Real clusters on this machine, load, audits and faults: for tests, yours and ours, demonstrations and benchmarks.

async with await LocalCluster.start(brokers=3) as cluster:
    client = await nearcast.connect(*cluster.urls.values())
"""

from nearcast.testing.cluster import LocalCluster

__all__ = ["LocalCluster"]
