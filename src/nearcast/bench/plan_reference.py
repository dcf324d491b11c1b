"""Dynamoth's Algorithms 1 and 2 as the paper prints them, in plain Python: what the policy's speed is compared with.

Every `estimateLR` sums over all topics, and every `getBusiestChannel` looks at all of them, as the pseudocode reads.
The ratios of lines 4 and 10 are the estimated ones, the number of servers is rounded up, and a busiest channel that
would overload its receiver ends the plan: without these readings the pseudocode does not end.
"""

from __future__ import annotations

from math import ceil

from nearcast.core.placement import Mode
from nearcast.core.plan import Plan
from nearcast.core.snapshot import Snapshot, TopicLoad
from nearcast.policies.dynamoth.config import DynamothConfig

Place = tuple[Mode, tuple[str, ...]]


def reference_plan(snapshot: Snapshot, plan: Plan, config: DynamothConfig) -> dict[str, Place]:
    """P*: where every topic goes."""
    new = {topic: (placement.mode, placement.brokers) for topic, placement in plan.topics.items()}
    for topic, load in snapshot.topics.items():
        _replicate(snapshot, new, topic, load, config)
    _high_load(snapshot, new, config)
    return new


def estimate_ratios(snapshot: Snapshot, new: dict[str, Place]) -> dict[str, float]:
    """estimateLR(P*) of all servers."""
    output = dict.fromkeys(snapshot.brokers, 0.0)
    for topic, (_, brokers) in new.items():
        for broker in brokers:
            output[broker] += snapshot.topics[topic].output_bytes_per_s / len(brokers)
    return {broker: output[broker] / load.capacity_bytes_per_s for broker, load in snapshot.brokers.items()}


def _replicate(snapshot: Snapshot, new: dict[str, Place], topic: str, load: TopicLoad, config: DynamothConfig) -> None:
    """Algorithm 1 for one channel."""
    p_ratio = load.publications_per_s / max(load.subscribers, 1.0)
    s_ratio = load.subscribers / max(load.publications_per_s, 1.0)
    if p_ratio > config.all_subs_threshold and load.publications_per_s > config.publication_threshold:
        mode, servers = Mode.ALL_SUBSCRIBERS, ceil(p_ratio / config.all_subs_threshold)
    elif s_ratio > config.all_pubs_threshold and load.subscribers > config.subscriber_threshold:
        mode, servers = Mode.ALL_PUBLISHERS, ceil(s_ratio / config.all_pubs_threshold)
    else:
        return
    ratios = estimate_ratios(snapshot, new)
    _, now = new[topic]
    others = sorted((broker for broker in ratios if broker not in now), key=ratios.__getitem__)
    new[topic] = mode, (*now, *others)[: max(2, servers)]


def _high_load(snapshot: Snapshot, new: dict[str, Place], config: DynamothConfig) -> None:
    """Algorithm 2; ends where a server would have to be rented."""
    ratios = estimate_ratios(snapshot, new)
    while True:
        highest = max(ratios, key=ratios.__getitem__)
        if ratios[highest] < config.lr_high:
            return
        while ratios[highest] >= config.lr_safe:
            lowest = min(ratios, key=ratios.__getitem__)
            channels = [topic for topic, (_, brokers) in new.items() if highest in brokers and lowest not in brokers]
            if not channels:
                return
            busiest = max(channels, key=lambda topic: snapshot.topics[topic].output_bytes_per_s / len(new[topic][1]))
            before = new[busiest]
            brokers = tuple(lowest if broker == highest else broker for broker in before[1])
            new[busiest] = before[0], brokers
            ratios = estimate_ratios(snapshot, new)
            if ratios[lowest] >= config.lr_high:
                new[busiest] = before
                return
