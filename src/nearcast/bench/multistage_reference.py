"""Algorithm 1 of multistage balancing as the paper prints it, in plain Python: what the policy is compared with.

Loads are computed from equations 1-5 over the subscribers of a broker whenever they are needed, subscribers are sorted
in each turn of the loop, and the table of similarities is made for each of them, as the pseudocode reads. The readings
and deviations are those of `nearcast.policies.multistage`; without them the pseudocode does not end.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from nearcast.policies.multistage import MultistageConfig, Scheme

Move = tuple[int, int, int]  # subscriber, source, target
Wanted = Sequence[Sequence[int]]  # by subscriber
Homes = list[int]  # by subscriber


def load_of(members: Sequence[int], wanted: Wanted, rates: Sequence[float]) -> float:
    """F_j by equation 5: z_jk (1 + n_jk) lambda_k over all k."""
    attached: dict[int, int] = {}
    for i in members:
        for k in wanted[i]:
            attached[k] = attached.get(k, 0) + 1
    return sum((1 + n) * rates[k] for k, n in attached.items())


def members_of(broker: int, home: Homes) -> list[int]:
    return [i for i, j in enumerate(home) if j == broker]


def mean_and_cov(loads: Sequence[float]) -> tuple[float, float]:
    """Equations 6-8."""
    mean = sum(loads) / len(loads)
    deviation = sqrt(sum((load - mean) ** 2 for load in loads) / len(loads))
    return mean, deviation / mean if mean > 0 else 0.0


def reference_moves(
    wanted: Wanted, rates: Sequence[float], home: Homes, brokers: int, config: MultistageConfig
) -> list[Move]:
    """Lines 5-25: the moves in their order. `home` is changed."""
    loads = [load_of(members_of(j, home), wanted, rates) for j in range(brokers)]
    moves: list[Move] = []
    while True:
        mean, cov = mean_and_cov(loads)
        if cov <= config.alpha or mean <= config.beta_bytes_per_s:
            return moves
        source = max(range(brokers), key=loads.__getitem__)
        found = _first_valid(wanted, rates, home, loads, source, config.scheme)
        if found is None:
            return moves
        subscriber, target = found
        home[subscriber] = target
        moves.append((subscriber, source, target))
        loads[source] = load_of(members_of(source, home), wanted, rates)
        loads[target] = load_of(members_of(target, home), wanted, rates)


def _first_valid(
    wanted: Wanted, rates: Sequence[float], home: Homes, loads: list[float], source: int, scheme: Scheme
) -> tuple[int, int] | None:
    """Lines 8-21."""
    own = {i: sum(rates[k] for k in wanted[i]) for i in members_of(source, home)}
    for i in sorted(own, key=own.__getitem__, reverse=True):
        held = [{k for member in members_of(j, home) for k in wanted[member]} for j in range(len(loads))]
        similar = [sum(rates[k] for k in wanted[i] if k in held[j]) for j in range(len(loads))]
        target = _target(loads, similar, scheme)
        if target is None or target == source or not own[i]:
            continue
        after = load_of([*members_of(target, home), i], wanted, rates)
        left = load_of([member for member in members_of(source, home) if member != i], wanted, rates)
        if after < loads[source] or (after == loads[source] and left < loads[target]):
            return i, target
    return None


def _target(loads: list[float], similar: list[float], scheme: Scheme) -> int | None:
    """Lines 11-16."""
    if scheme is Scheme.LDM:
        return min(range(len(loads)), key=loads.__getitem__)
    mean = sum(loads) / len(loads)
    below = [j for j in range(len(loads)) if loads[j] < mean]
    return max(below, key=similar.__getitem__) if below else None


def reference_shuffle(wanted: Wanted, rates: Sequence[float], brokers: int) -> Homes:
    """GSH: the load of the broker that was given a subscriber is computed anew each time."""
    own = [sum(rates[k] for k in row) for row in wanted]
    members: list[list[int]] = [[] for _ in range(brokers)]
    loads = [0.0] * brokers
    home = [0] * len(wanted)
    for i in sorted(range(len(wanted)), key=own.__getitem__, reverse=True):
        j = min(range(brokers), key=loads.__getitem__)
        members[j].append(i)
        home[i] = j
        loads[j] = load_of(members[j], wanted, rates)
    return home
