"""A cluster on an emulated network: its servers at sites, and its agents as far apart as their sites."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from nearcast.testing.cluster import LocalCluster
from nearcast.testing.network.emulated import EmulatedNetwork


async def place_cluster(network: EmulatedNetwork, cluster: LocalCluster, sites: Mapping[str, str]) -> None:
    """Put every broker of a cluster that was started as emulated at a site: for clients, and for other agents."""
    probes = {broker: f"udp://{urlsplit(url).netloc}" for broker, url in cluster.urls.items()}
    for broker, url in cluster.urls.items():
        await network.place(url, sites[broker])
        await network.place(probes[broker], sites[broker])
    for broker in cluster.urls:
        endpoint = await network.attach(f"probes-{broker}", sites[broker], only=probes.values())
        cluster.detours(broker).write_bytes(msgspec.json.encode(endpoint.table()))
