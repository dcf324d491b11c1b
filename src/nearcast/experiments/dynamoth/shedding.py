"""What the authors' published code calls consistent hashing: every server gives a new one a few of its topics.

J. Gascon-Samson's ConsistentHashingRebalancer knows no ring. When a load ratio exceeds 0.80, a server is added and
each of the N servers there were gives it 1/(N (N+1)) of its topics, evenly picked from their list, whatever their
load. Equal shares would need 1/(N+1), so the new server stays below average, and the more so the more there are. Not
a policy of the product: it is here to explain the paper's ratio of 1.6.
"""

from __future__ import annotations

from nearcast.core.placement import Mode
from nearcast.core.plan import Plan
from nearcast.core.proposal import AddBroker, Cause, PlaceTopic, Proposal, ProposedChange, Reason
from nearcast.core.snapshot import Snapshot

LR_HIGH = 0.80  # the authors' code

_TO_NEW = Reason(Cause.NEW_BROKER, "brokers added", 1.0, 0.0)


class Shedding:
    name = "shedding"

    def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal:
        fresh = sorted(name for name, broker in snapshot.brokers.items() if broker.fresh)
        highest = max(broker.load_ratio for broker in snapshot.brokers.values())
        changes: list[ProposedChange] = []
        if fresh:
            changes += _shed(snapshot, plan, fresh[0])
        elif highest > LR_HIGH and snapshot.spare > 0 and snapshot.coming == 0:
            changes.append(AddBroker(Reason(Cause.HIGH_LOAD, "load_ratio", highest, LR_HIGH)))
        return Proposal(self.name, tuple(changes))


def _shed(snapshot: Snapshot, plan: Plan, new: str) -> list[PlaceTopic]:
    givers = [name for name in sorted(snapshot.brokers) if name != new]
    given: list[PlaceTopic] = []
    for giver in givers:
        topics = sorted(topic for topic, placement in plan.topics.items() if placement.brokers == (giver,))
        count = round(len(topics) / (len(givers) * (len(givers) + 1)))
        if count:
            picked = topics[:: len(topics) // count][:count]
            given += [PlaceTopic(topic, Mode.SINGLE, (new,), _TO_NEW) for topic in picked]
    return given
