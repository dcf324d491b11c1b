"""Why a topic is where it is: all brokers for one topic, ranked, each with what rules it out."""

from __future__ import annotations

from math import inf, isfinite, nan

import numpy as np

from nearcast.core.model.placement import Plan
from nearcast.core.model.planning import ExplainedBroker, Explanation, Snapshot
from nearcast.errors import UsageError
from nearcast.policies.epulsar.config import EPulsarConfig
from nearcast.policies.epulsar.draft import Constraint, Draft, Obstacle
from nearcast.policies.epulsar.policy import DEFAULT, movable, reach_of, worth
from nearcast.policies.epulsar.reach import Choices, Reach, Today
from nearcast.policies.loads import NOWHERE


def explain(snapshot: Snapshot, plan: Plan, topic: str, config: EPulsarConfig = DEFAULT) -> Explanation:
    placement = plan.topics.get(topic)
    if placement is None:
        raise UsageError(f"no plan names a topic {topic!r}: it carries nothing, or its name is different")
    draft = Draft(snapshot, plan, config)
    number = draft.loads.topics.index(topic)
    today = Today.of(snapshot, draft.loads)
    choices = Choices.of(snapshot, draft.loads, today, np.array([number], np.int32))
    bound = snapshot.bounds.get(topic)
    latency_s = float(today.measured_s[number]) if bound else _unbound_s(snapshot, topic, placement.brokers)
    return Explanation(
        topic=topic,
        brokers=placement.brokers,
        bound=bound,
        latency_s=latency_s if isfinite(latency_s) else None,
        violated=bool(today.violated[number]),
        stays=_stays(snapshot, draft, number),
        candidates=_candidates(draft, choices, reach_of(snapshot, choices, config.ranking), topic in snapshot.restless),
    )


def _unbound_s(snapshot: Snapshot, topic: str, brokers: tuple[str, ...]) -> float:
    """The worst pair's latency of a topic without a bound."""
    distances = snapshot.distances.get(topic)
    return distances.now.worst_s if distances is not None and distances.now.broker in brokers else nan


def _stays(snapshot: Snapshot, draft: Draft, topic: int) -> str:
    if draft.loads.home[topic] == NOWHERE:
        return "it is on several brokers, or on one that is not there: this policy moves none of those"
    if movable(snapshot, draft)[topic]:
        return ""
    return "it moves, has just moved, or its clients are measuring the distances to the best brokers"


def _candidates(draft: Draft, choices: Choices, reach: Reach, restless: bool) -> tuple[ExplainedBroker, ...]:
    topic, bound_s = int(choices.topics[0]), float(choices.bound_s[0])
    known = dict(reach.ranked(0))
    worth_s = float(worth(reach.today_s, draft.config.gain_min, reach.feasible == 0)[0]) if restless else inf
    # Brokers that the topic may not be on are not ranked, but a person wants to see them too.
    others = [broker for broker in np.argsort(draft.ratio, kind="stable").tolist() if broker not in known]
    found = [
        _explained(draft, choices, topic, broker, known.get(broker), (bound_s, worth_s)) for broker in (*known, *others)
    ]
    return tuple(found)


def _explained(
    draft: Draft, choices: Choices, topic: int, broker: int, latency_s: float | None, limits_s: tuple[float, float]
) -> ExplainedBroker:
    obstacles = []
    bound_s, worth_s = limits_s
    if bound_s < inf and latency_s is None:
        obstacles.append(Obstacle(Constraint.UNKNOWN, inf, bound_s))
    elif latency_s is not None and latency_s > bound_s:
        obstacles.append(Obstacle(Constraint.BOUND, latency_s, bound_s))
    if latency_s is not None and latency_s > worth_s and draft.home[topic] != broker:
        obstacles.append(Obstacle(Constraint.GAIN, latency_s, worth_s))
    obstacles += draft.obstacles(topic, broker)
    replicas, needed = int(choices.replicas[broker]), int(choices.needed[0])
    if replicas < needed:
        obstacles.append(Obstacle(Constraint.REPLICAS, replicas, needed))
    return ExplainedBroker(draft.loads.brokers[broker], latency_s, ", ".join(map(str, obstacles)))
