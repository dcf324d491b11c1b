"""What every policy must keep. A check takes a policy and a cluster and returns what is wrong, one line per fault."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from math import isfinite

import msgspec
from cluster_model import Cluster

from nearcast.core.model.placement import Placement, Plan, problems
from nearcast.core.model.planning import AddBroker, KeepBroker, PlaceTopic, Policy, Proposal, RemoveBroker

STEPS_MAX = 60  # proposals until a cluster under constant load is at rest
ROUNDING = 1e-6

Check = Callable[[Policy, Cluster], list[str]]

_encode = msgspec.json.Encoder().encode


def ask(policy: Policy, cluster: Cluster) -> Proposal:
    return policy.propose(cluster.snapshot, cluster.plan)


def same_input_same_proposal(policy: Policy, cluster: Cluster) -> list[str]:
    """Also when the mappings happen to be in another order."""
    first, snapshot, plan = ask(policy, cluster), cluster.snapshot, cluster.plan
    mappings = ("brokers", "topics", "distances", "bounds", "quorums")
    turned = msgspec.structs.replace(
        snapshot, **{name: dict(reversed(getattr(snapshot, name).items())) for name in mappings}
    )
    again = policy.propose(turned, Plan(plan.version, dict(reversed(plan.topics.items()))))
    same = first.changes == again.changes and dict(first.predicted) == dict(again.predicted)
    return [] if same and first.problem == again.problem else ["the same input gave another proposal"]


def input_is_not_changed(policy: Policy, cluster: Cluster) -> list[str]:
    snapshot, plan = cluster.snapshot, cluster.plan
    before = _encode((snapshot, plan))
    policy.propose(snapshot, plan)
    return [] if _encode((snapshot, plan)) == before else ["the snapshot or the plan was changed"]


def changes_are_valid(policy: Policy, cluster: Cluster) -> list[str]:
    """They name topics and brokers that are there, and none that is being removed."""
    proposal, snapshot, found = ask(policy, cluster), cluster.snapshot, []
    kept = {change.broker for change in proposal.changes if isinstance(change, KeepBroker)}
    draining = {name for name, broker in snapshot.brokers.items() if broker.draining}
    leaving = {change.broker for change in proposal.changes if isinstance(change, RemoveBroker)}
    usable = frozenset(name for name in snapshot.brokers if name not in (draining - kept) | leaving)
    topics = [change.topic for change in proposal.placements]
    found += [f"{topic} is placed twice" for topic in sorted(set(topics)) if topics.count(topic) > 1]
    for change in proposal.changes:
        found += [f"{change}: {fault}" for fault in _faults(change, cluster, usable, draining)]
    return found


def _faults(change: object, cluster: Cluster, usable: frozenset[str], draining: set[str]) -> list[str]:
    snapshot = cluster.snapshot
    if isinstance(change, PlaceTopic):
        before = cluster.placements.get(change.topic)
        if before is None:
            return ["no such topic"]
        after = Placement(before.epoch + 1, change.mode, change.brokers)
        return problems(after, usable) + (["changes nothing"] if before.same_place(after) else [])
    if isinstance(change, AddBroker):
        allowed = 1 <= change.count <= snapshot.spare and snapshot.coming == 0
        return [] if allowed else ["no broker may be rented"]
    if isinstance(change, RemoveBroker):
        broker = snapshot.brokers.get(change.broker)
        return [] if broker and broker.removable and not broker.draining else ["not removable"]
    if isinstance(change, KeepBroker):
        return [] if change.broker in draining and snapshot.brokers[change.broker].removable else ["not ours to keep"]
    return ["unknown change"]


def every_change_has_a_reason(policy: Policy, cluster: Cluster) -> list[str]:
    return [
        f"{change} has no reason"
        for change in ask(policy, cluster).changes
        if not change.reason.measure or not isfinite(change.reason.value) or not isfinite(change.reason.threshold)
    ]


def prediction_comes_true(policy: Policy, cluster: Cluster) -> list[str]:
    proposal, after = ask(policy, cluster), deepcopy(cluster)
    after.apply(proposal)
    if set(proposal.predicted) != set(cluster.capacities):
        return ["some brokers have no prediction"]
    return [
        f"{broker} was predicted at {proposal.predicted[broker]} and came to {ratio}"
        for broker, ratio in after.ratios.items()
        if broker in proposal.predicted and abs(proposal.predicted[broker] - ratio) > ROUNDING
    ]


def capacity_is_kept_or_the_problem_said(policy: Policy, cluster: Cluster, lr_high: float) -> list[str]:
    proposal, before = ask(policy, cluster), cluster.ratios
    if proposal.problem or any(isinstance(change, AddBroker) for change in proposal.changes):
        return []
    return [
        f"{broker} is lifted from {before[broker]} to {ratio} without a word"
        for broker, ratio in proposal.predicted.items()
        if ratio >= lr_high > before[broker]
    ]


def comes_to_rest(policy: Policy, cluster: Cluster) -> list[str]:
    """Under constant load, in few steps, and never in a state it was in before."""
    cluster, seen = deepcopy(cluster), set()
    for _ in range(STEPS_MAX):
        if not cluster.step(policy).changes:
            return []
        state = tuple(sorted((topic, place.mode, place.brokers) for topic, place in cluster.placements.items()))
        state = (*state, *sorted(cluster.capacities), "leaving", *sorted(cluster.draining))
        if state in seen:
            return ["it came back to a state it had left"]
        seen.add(state)
    return [f"it still changes things after {STEPS_MAX} proposals"]


def overload(cluster: Cluster, lr_high: float) -> float:
    """The objective of policies that balance load: how far the busiest broker is above `lr_high`."""
    return max([lr_high, *cluster.ratios.values()])


def objective_is_never_worse(policy: Policy, cluster: Cluster, objective: Callable[[Cluster], float]) -> list[str]:
    """Brokers that it asks for do not count: they are not there yet."""
    after, proposal = deepcopy(cluster), ask(policy, cluster)
    after.apply(Proposal(policy.name, tuple(c for c in proposal.changes if not isinstance(c, AddBroker))))
    worse = objective(after) > objective(cluster) + ROUNDING
    return [f"the objective went from {objective(cluster)} to {objective(after)}"] if worse else []


CHECKS: tuple[Check, ...] = (
    same_input_same_proposal,
    input_is_not_changed,
    changes_are_valid,
    every_change_has_a_reason,
    prediction_comes_true,
    comes_to_rest,
)
