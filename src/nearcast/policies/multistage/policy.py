"""Algorithm 1: a shuffle if the loads are skewed, then single moves until they are balanced."""

from __future__ import annotations

import numpy as np

from nearcast.policies.multistage.config import MultistageConfig
from nearcast.policies.multistage.demand import Assignment, Demand
from nearcast.policies.multistage.loads import BrokerLoads
from nearcast.policies.multistage.migration import migrate
from nearcast.policies.multistage.plan import Balance, MigrationPlan, Moves
from nearcast.policies.multistage.shuffle import shuffled

DEFAULT = MultistageConfig()


class Multistage:
    """A pure function: the same demand and assignment give the same plan."""

    name = "multistage"

    def __init__(self, config: MultistageConfig = DEFAULT) -> None:
        self._config = config

    def propose(self, demand: Demand, assignment: Assignment, *, shuffle: bool = False) -> MigrationPlan:
        """With `shuffle` everybody is placed anew, whatever the thresholds say of that."""
        config = self._config
        loads = BrokerLoads(demand, assignment)
        before = _balance(loads)
        skewed = shuffle or (loads.spread.cov > config.gamma and loads.spread.mean > config.theta_bytes_per_s)
        if skewed:
            home = shuffled(demand, loads.by_subscriber, assignment.home, assignment.brokers)
            loads = BrokerLoads(demand, Assignment(assignment.brokers, home))
        steps, problem = migrate(loads, config)
        home = np.where(demand.online, loads.home, assignment.home)
        moves = Moves.between(assignment, home, steps, before.cov)
        return MigrationPlan(config, moves, skewed, len(steps), before, _balance(loads), problem, shuffle)


def _balance(loads: BrokerLoads) -> Balance:
    return Balance(loads.spread.cov, tuple(loads.total), sum(loads.incoming))
