"""Was a server asked for in vain? Every addition is checked against all single moves, one by one.

`Additions` stands between the simulator and a policy and keeps what the policy saw whenever it asked for a broker.
`sufficing_move` then tries every topic on every other broker, in plain Python and apart from the policy: if one such
move would have kept every load ratio below `lr_high`, the addition was not needed.
"""

from __future__ import annotations

import msgspec

from nearcast.core.plan import Plan
from nearcast.core.proposal import AddBroker, Policy, Proposal
from nearcast.core.snapshot import Snapshot, TopicLoad

_IDLE = TopicLoad()


class Seen(msgspec.Struct, frozen=True):
    """What a policy saw when it asked for a broker."""

    snapshot: Snapshot
    plan: Plan


class Move(msgspec.Struct, frozen=True):
    topic: str
    source: str
    target: str


class Additions:
    """A policy that remembers when it asked for a broker."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.seen: list[Seen] = []
        self._policy = policy

    def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal:
        proposal = self._policy.propose(snapshot, plan)
        if any(isinstance(change, AddBroker) for change in proposal.changes):
            self.seen.append(Seen(snapshot, plan))
        return proposal


def sufficing_move(seen: Seen, lr_high: float) -> Move | None:
    """A move of one topic, or of one replica's share, that brings all load ratios below `lr_high`; None without one."""
    brokers = seen.snapshot.brokers
    output = {name: broker.output_bytes_per_s for name, broker in brokers.items()}
    room = {name: lr_high * broker.capacity_bytes_per_s for name, broker in brokers.items()}
    too_high = [name for name in brokers if output[name] >= room[name]]
    targets = [name for name, broker in brokers.items() if not broker.draining]
    for topic, placement in sorted(seen.plan.topics.items()):
        share = seen.snapshot.topics.get(topic, _IDLE).output_bytes_per_s / len(placement.brokers)
        for source in placement.brokers:
            if source not in output or any(name != source for name in too_high):
                continue  # it is gone, or another broker stays too high
            if output[source] - share >= room[source]:
                continue
            for target in targets:
                if target not in placement.brokers and output[target] + share < room[target]:
                    return Move(topic, source, target)
    return None
