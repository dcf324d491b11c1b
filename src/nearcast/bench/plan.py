"""How long a policy takes for a whole plan: from snapshot and plan to the proposal, in one process, on one core.

The cluster is generated: a few topics carry most of the load, one broker in ten has twice its share, and one topic in a
thousand is hot enough to be replicated. Each size is measured several times and the median counts. For ePulsar it is a
cluster with places (`geography.py`), where almost every topic misses its bound, and both rankings are measured.

It is compared with Dynamoth's Algorithms 1 and 2 as printed in the paper, in plain Python (`reference_plan`). There,
every `estimateLR` sums over all topics, and every `getBusiestChannel` looks at all of them, as the pseudocode says. The
ratios of lines 4 and 10 are the estimated ones, the number of servers is rounded up, and a busiest channel that would
overload its receiver ends the plan: without these readings the pseudocode does not terminate.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from math import ceil
from random import Random
from statistics import median

import msgspec

from nearcast.core.model.placement import Mode, Plan, single
from nearcast.core.model.planning import BrokerLoad, Policy, Snapshot, TopicLoad
from nearcast.errors import UsageError
from nearcast.policies.catalog import DYNAMOTH, EPULSAR, policy_named
from nearcast.policies.dynamoth.draft import DynamothConfig

# --- the measurement


RUNS = 5
CAPACITY_BYTES_PER_S = 125e6  # one gigabit per second
MEAN_LOAD_RATIO = 0.5  # of the whole cluster: low enough for Algorithm 2 to reach its goal without new brokers
CROWDED = 10  # one broker in this many has twice its share of the topics
HOT = 1000  # one topic in this many has more publications than one broker should take
REFERENCE_TOPICS = 10_000  # a size that the reference finishes within seconds
GROWTH = (0.01, 0.1, 1.0)  # shares of the requested topics

Progress = Callable[[str], None]


class Timed(msgspec.Struct, frozen=True):
    """The figures of one size."""

    topics: int
    brokers: int
    seconds: float
    changes: int
    highest_load_ratio_before: float
    highest_load_ratio_after: float  # as predicted
    ranking: str = ""  # of ePulsar
    memory_peak_bytes: int | None = None  # ePulsar only: what one proposal takes at most, itself included


class Compared(msgspec.Struct, frozen=True):
    """The policy and the paper's pseudocode on one cluster that the latter can finish."""

    topics: int
    brokers: int
    seconds: float
    seconds_reference: float
    ratio: float  # seconds_reference / seconds
    highest_load_ratio_after: float
    highest_load_ratio_after_reference: float


class PlanBench(msgspec.Struct, frozen=True):
    """The figures of one run. Only Dynamoth has a reference. `seconds` is that of the slower ranking."""

    policy: str
    topics: int
    brokers: int
    runs: int
    seconds: float
    seconds_reference: float | None
    ratio: float | None
    reference: Compared | None
    growth: list[Timed]


def measure_plan(
    policy: str, topics: int, brokers: int, *, runs: int = RUNS, progress: Progress = lambda _: None
) -> PlanBench:
    if topics < HOT or brokers < 2:
        raise UsageError(f"{topics} topics on {brokers} brokers: give at least {HOT} topics and 2 brokers")
    chosen = policy_named(policy)
    growth = []
    for size in dict.fromkeys(max(HOT, round(topics * share)) for share in GROWTH):
        progress(f"{size:,} topics on {brokers} brokers")
        if policy == EPULSAR:
            growth += timed_rankings(size, brokers, runs)
        else:
            growth.append(timed(chosen, size, brokers, runs))
    reference = None
    if policy == DYNAMOTH:
        size = min(topics, REFERENCE_TOPICS)
        progress(f"the paper's pseudocode, {size:,} topics on {brokers} brokers")
        reference = _compared(timed(chosen, size, brokers, runs))
    return PlanBench(
        policy=policy,
        topics=topics,
        brokers=brokers,
        runs=runs,
        seconds=max(size.seconds for size in growth if size.topics == growth[-1].topics),
        seconds_reference=reference.seconds_reference if reference else None,
        ratio=reference.ratio if reference else None,
        reference=reference,
        growth=growth,
    )


def timed(policy: Policy, topics: int, brokers: int, runs: int) -> Timed:
    """The median of `runs` proposals for one cluster."""
    return _timed(policy, *made_cluster(topics, brokers), runs)


def timed_rankings(topics: int, brokers: int, runs: int) -> list[Timed]:
    """ePulsar's, one after the other, on the same cluster."""
    from nearcast.bench.geography import spread_cluster
    from nearcast.policies.epulsar import Ranking

    snapshot, plan = spread_cluster(topics, brokers)
    found = []
    for ranking in Ranking:
        policy = policy_named(EPULSAR, {"ranking": ranking})
        one = _timed(policy, snapshot, plan, runs)
        peak = _memory_peak_bytes(policy, snapshot, plan)
        found.append(msgspec.structs.replace(one, ranking=str(ranking), memory_peak_bytes=peak))
    return found


def _timed(policy: Policy, snapshot: Snapshot, plan: Plan, runs: int) -> Timed:
    taken = []
    for _ in range(runs):
        began_s = time.perf_counter()
        proposal = policy.propose(snapshot, plan)
        taken.append(time.perf_counter() - began_s)
    before = max(broker.load_ratio for broker in snapshot.brokers.values())
    after = max(proposal.predicted.values())
    return Timed(len(plan.topics), len(snapshot.brokers), median(taken), len(proposal.changes), before, after)


def _memory_peak_bytes(policy: Policy, snapshot: Snapshot, plan: Plan) -> int:
    """In a run of its own: watching every allocation takes time."""
    tracemalloc.start()
    try:
        policy.propose(snapshot, plan)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _compared(own: Timed) -> Compared:
    """Run the reference, only once: it takes long enough for one measurement to be reliable."""
    from nearcast.policies.dynamoth import DynamothConfig

    snapshot, plan = made_cluster(own.topics, own.brokers)
    began_s = time.perf_counter()
    new = reference_plan(snapshot, plan, DynamothConfig())
    seconds = time.perf_counter() - began_s
    highest = max(estimate_ratios(snapshot, new).values())
    ratio = seconds / own.seconds
    return Compared(own.topics, own.brokers, own.seconds, seconds, ratio, own.highest_load_ratio_after, highest)


def made_cluster(topics: int, brokers: int, seed: int = 1) -> tuple[Snapshot, Plan]:
    """A generated cluster, the same for the same arguments."""
    rng = Random(seed)
    names = [f"b{number}" for number in range(brokers)]
    lots = names + [name for number, name in enumerate(names) if number % CROWDED == 0]
    weights = [min(rng.paretovariate(1.2), topics / brokers / 10) for _ in range(topics)]
    unit = MEAN_LOAD_RATIO * brokers * CAPACITY_BYTES_PER_S / sum(weights)
    loads, placements, output = {}, {}, dict.fromkeys(names, 0.0)
    for number, weight in enumerate(weights):
        topic, home = f"topic{number}", rng.choice(lots)
        loads[topic] = _load(rng, hot=number % HOT == 0, output_bytes_per_s=weight * unit)
        placements[topic] = single(1, home, 1)
        output[home] += weight * unit
    rows = {
        name: BrokerLoad(capacity_bytes_per_s=CAPACITY_BYTES_PER_S, output_bytes_per_s=output[name]) for name in names
    }
    return Snapshot(0.0, rows, loads), Plan(1, placements)


def _load(rng: Random, hot: bool, output_bytes_per_s: float) -> TopicLoad:
    if hot:
        publishers, publications, subscribers = 200.0, rng.uniform(1500.0, 6000.0), 1.0
    else:
        publishers, publications, subscribers = 10.0, rng.uniform(0.1, 100.0), rng.randint(1, 100)
    deliveries = publications * subscribers
    return TopicLoad(
        publishers, publications, subscribers, deliveries, output_bytes_per_s / subscribers, output_bytes_per_s
    )


# --- the paper's pseudocode


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
    """Algorithm 2. It ends where a server would have to be rented."""
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
