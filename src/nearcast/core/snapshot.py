"""The snapshot: the controller's immutable view of all load, which policies read.

Rates are means over the last seconds. A topic's figures are sums over all its brokers; how a replicated topic divides
among them follows from its placement.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class BrokerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One broker that carries topics. Brokers that are down or still joining are not in the snapshot."""

    capacity_bytes_per_s: float  # T_i: outgoing bandwidth it supports
    output_bytes_per_s: float  # M_i: outgoing bandwidth measured
    cpu_share: float = 0.0
    connections: int = 0
    site: str = "local"
    draining: bool = False  # it is being removed: give it nothing new
    removable: bool = True  # it may be proposed for removal
    fresh: bool = False  # it joined after the last change of the plan

    @property
    def load_ratio(self) -> float:
        """LR_i = M_i / T_i (Dynamoth, equation 1)."""
        return self.output_bytes_per_s / self.capacity_bytes_per_s


class TopicLoad(msgspec.Struct, frozen=True, array_like=True):
    """One topic, all its brokers together."""

    publishers: float = 0.0
    publications_per_s: float = 0.0
    subscribers: float = 0.0
    deliveries_per_s: float = 0.0
    input_bytes_per_s: float = 0.0
    output_bytes_per_s: float = 0.0


class Snapshot(msgspec.Struct, frozen=True):
    at_s: float
    brokers: Mapping[str, BrokerLoad]
    topics: Mapping[str, TopicLoad]
    spare: int = 0  # how many more brokers could be rented
    coming: int = 0  # how many were asked for and have not joined yet
