"""The controller's way to the policy: names become numbers, and the plan gets its names back.

The simulators call `Multistage.propose` with arrays of their own; live, the same function is called here.
"""

from __future__ import annotations

import numpy as np

from nearcast.core.audience import Audience, Seats
from nearcast.core.proposal import MoveSubscriber
from nearcast.policies.multistage.config import MultistageConfig
from nearcast.policies.multistage.demand import Assignment, Demand
from nearcast.policies.multistage.policy import Multistage


class MultistageBalancer:
    """A pure function: the same audience gives the same seats."""

    def __init__(self, config: MultistageConfig) -> None:
        self.name = f"multistage {config.scheme}"
        self._policy = Multistage(config)

    def seat(self, audience: Audience) -> Seats:
        users, demand, assignment = arrays_of(audience)
        plan = self._policy.propose(demand, assignment, shuffle=audience.shuffle)
        moves: tuple[MoveSubscriber, ...] = tuple(plan.changes(users, sorted(audience.online)))
        return Seats(self.name, moves, plan.before.cov, plan.after.cov, plan.problem)


def arrays_of(audience: Audience) -> tuple[list[str], Demand, Assignment]:
    """Users and gateways are numbered in the order of their names, subscriptions as they come.

    A user that two gateways report, because it is just moving, counts at the first. A subscription without a rate has
    had no results yet: it costs nothing.
    """
    gateways = sorted(audience.online)
    home: dict[str, int] = {}
    wanted: dict[str, tuple[str, ...]] = {}
    for number, gateway in enumerate(gateways):
        for user, subscriptions in audience.online[gateway].items():
            if user not in home:
                home[user], wanted[user] = number, subscriptions
    users = sorted(home)
    numbers: dict[str, int] = {}
    rows = [[numbers.setdefault(name, len(numbers)) for name in wanted[user]] for user in users]
    rates = audience.mean_rates()
    demand = Demand.of(rows, [rates.get(name, 0.0) for name in numbers])
    return users, demand, Assignment(len(gateways), np.array([home[user] for user in users], dtype=np.int32))
