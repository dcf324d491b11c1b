"""Consistent hashing: every topic on its ring owner, whatever its load. It is the fallback, and a baseline to compare.

After J. Gascon-Samson et al., "Dynamoth: A Scalable Pub/Sub Middleware for Latency-Constrained Applications in the
Cloud", section V.D: hashing "has to spawn a new server every time a rebalancing occurs", and "servers shed 1/N of their
load to a newly deployed server, irrespective of their current load". It never removes a broker.

| symbol | here |
|---|---|
| LR_i = M_i / T_i | `BrokerLoad.load_ratio` |
| LR^high | `lr_high` |

Deviation: while topics still have to move to their owners, no broker is requested, because the measured load is the
load before the moves.
"""

from __future__ import annotations

from nearcast.core.model.membership import VIRTUAL_NODES, Ring
from nearcast.core.model.placement import Mode, Placement, Plan
from nearcast.core.model.planning import (
    AddBroker,
    Cause,
    PlaceTopic,
    Proposal,
    ProposedChange,
    Reason,
    Snapshot,
    TopicLoad,
)
from nearcast.errors import UsageError

LR_HIGH = 0.80  # load ratio; Dynamoth's code, "high load"

_IDLE = TopicLoad()
_OFF_OWNER = Reason(Cause.RING, "brokers between the topic and its ring owner", 1.0, 0.0)


class HashRing:
    """The policy; a pure function of snapshot and plan."""

    name = "hash_ring"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES, lr_high: float = LR_HIGH) -> None:
        if virtual_nodes < 1:
            raise UsageError(f"virtual_nodes is {virtual_nodes}: give every broker at least 1")
        if not lr_high > 0:
            raise UsageError(f"lr_high is {lr_high}: give a load ratio above 0, such as {LR_HIGH}")
        self._virtual_nodes = virtual_nodes
        self._lr_high = lr_high

    def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal:
        usable = [name for name, broker in snapshot.brokers.items() if not broker.draining]
        if not usable:
            problem = "no broker may carry topics: start one, or cancel a removal"
            ratios = {name: broker.load_ratio for name, broker in snapshot.brokers.items()}
            return Proposal(self.name, predicted=ratios, problem=problem)
        ring = Ring(usable, self._virtual_nodes)
        output = {name: broker.output_bytes_per_s for name, broker in snapshot.brokers.items()}
        changes: list[ProposedChange] = []
        for topic in sorted(plan.topics):
            owner, placement = ring.owner(topic.encode()), plan.topics[topic]
            if placement.mode is Mode.SINGLE and placement.brokers == (owner,):
                continue
            load = snapshot.topics.get(topic, _IDLE).output_bytes_per_s
            moved = _shift(output, placement, owner, load)
            changes.append(PlaceTopic(topic, Mode.SINGLE, (owner,), _OFF_OWNER, moved))
        ratios = {name: output[name] / broker.capacity_bytes_per_s for name, broker in snapshot.brokers.items()}
        changes += self._more_brokers(snapshot, ratios, moving=bool(changes))
        return Proposal(self.name, tuple(changes), ratios, self._problem(snapshot, ratios))

    def _more_brokers(self, snapshot: Snapshot, ratios: dict[str, float], moving: bool) -> list[ProposedChange]:
        highest = max(ratios.values())
        if moving or highest <= self._lr_high or snapshot.spare <= 0 or snapshot.coming > 0:
            return []
        return [AddBroker(Reason(Cause.HIGH_LOAD, "load_ratio", highest, self._lr_high))]

    def _problem(self, snapshot: Snapshot, ratios: dict[str, float]) -> str:
        busiest = max(sorted(ratios), key=ratios.__getitem__)
        if ratios[busiest] <= self._lr_high:
            return ""
        says = f"{busiest} is at load ratio {ratios[busiest]:.2f}, above lr_high {self._lr_high:g}"
        if snapshot.coming > 0:
            return f"{says}: wait for the broker that is coming"
        if snapshot.spare > 0:
            return f"{says}: one more broker will take 1/N of it"
        return f"{says}: allow more brokers, or use a policy that considers the load"


def _shift(output: dict[str, float], placement: Placement, owner: str, load: float) -> float:
    """Move the topic's load in `output`; returns the bytes per second whose broker changes."""
    moved = load
    for broker in placement.brokers:
        share = load / len(placement.brokers)
        if broker in output:
            output[broker] -= share
        if broker == owner:
            moved -= share
    output[owner] += load
    return moved
