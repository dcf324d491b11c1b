"""Small worlds for the tests of multistage balancing. Rates are whole numbers: their sums are exact."""

from __future__ import annotations

from random import Random

import numpy as np

from nearcast.policies.multistage import Assignment, Demand, MultistageConfig, Scheme
from nearcast.policies.multistage.policy import nearest

Lists = tuple[list[list[int]], list[float], list[int]]  # wanted, rates, home


def random_lists(seed: int, subscribers: int = 40, backend: int = 12, brokers: int = 4) -> Lists:
    """Most subscribers are on the first brokers; some want nothing, and some rates are zero."""
    rng = Random(seed)
    wanted = [sorted(rng.sample(range(backend), rng.randint(0, 5))) for _ in range(subscribers)]
    rates = [float(rng.choice((0, 1, 2, 3, 5, 8, 40))) for _ in range(backend)]
    home = [min(rng.randrange(brokers), rng.randrange(brokers)) for _ in range(subscribers)]
    return wanted, rates, home


def assignment(home: list[int], brokers: int) -> Assignment:
    return Assignment(brokers, np.array(home, dtype=np.int32))


def eager(scheme: Scheme = Scheme.LDM, alpha: float = 0.15, gamma: float = float("inf")) -> MultistageConfig:
    """No bounds on the mean load, and no shuffle unless asked for."""
    return MultistageConfig(scheme=scheme, alpha=alpha, gamma=gamma, beta_bytes_per_s=0.0, theta_bytes_per_s=0.0)


def crowded(subscribers: int = 5000, backend: int = 500, brokers: int = 10, seed: int = 3) -> tuple[Demand, Assignment]:
    """As figure 13: people crowd around places, and the nearest placement is skewed."""
    dice = np.random.default_rng(seed)
    wanted = [dice.choice(backend, size=count, replace=False).tolist() for count in dice.integers(10, 31, subscribers)]
    demand = Demand.of(wanted, dice.integers(500, 4000, size=backend).astype(float).tolist())
    people = dice.random((subscribers, 2)) ** 2
    return demand, Assignment(brokers, nearest(people, dice.random((brokers, 2))))


def communities(groups: int = 4, members: int = 60, brokers: int = 8, seed: int = 5) -> tuple[Demand, Assignment]:
    """People of a group want the same things, other than the other groups'. One broker of each group has most."""
    rng = Random(seed)
    each = 30
    wanted, home = [], []
    for group in range(groups):
        for _ in range(members):
            wanted.append(rng.sample(range(group * each, (group + 1) * each), 10))
            home.append(group if rng.random() < 0.8 else rng.randrange(groups, brokers))
    return Demand.of(wanted, [100.0] * (groups * each)), assignment(home, brokers)
