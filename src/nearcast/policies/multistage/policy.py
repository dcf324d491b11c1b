"""Algorithm 1, the controller's adapter to it, and the placement of newcomers.

Stage 1 (section 5.1) chooses the broker of a subscriber that has just arrived, before it has subscribed to anything.
"""

from __future__ import annotations

import numpy as np

from nearcast.core.model.planning import MoveSubscriber, SubscriberProposal, SubscriberSnapshot
from nearcast.errors import UsageError
from nearcast.policies.multistage.loads import Assignment, BrokerLoads, Demand, Floats, MultistageConfig, Numbers
from nearcast.policies.multistage.moves import Balance, MigrationPlan, Moves, migrate, shuffled

DEFAULT = MultistageConfig()


# --- Algorithm 1


class Multistage:
    """Algorithm 1: a shuffle if the loads are skewed, then single moves until they are balanced.

    It is a pure function: the same demand and assignment give the same plan.
    """

    name = "multistage"

    def __init__(self, config: MultistageConfig = DEFAULT) -> None:
        self._config = config

    def propose(self, demand: Demand, assignment: Assignment, *, shuffle: bool = False) -> MigrationPlan:
        """With `shuffle`, all subscribers are placed again, whatever the thresholds are."""
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


# --- for the controller


class MultistageBalancer:
    """The controller's adapter: turns names into numbers, calls `Multistage.propose`, and puts names into the plan.

    The simulators call the same function with arrays of their own. It is pure: the same snapshot gives the same
    proposal.
    """

    def __init__(self, config: MultistageConfig) -> None:
        self.name = f"multistage {config.scheme}"
        self._policy = Multistage(config)

    def propose(self, snapshot: SubscriberSnapshot) -> SubscriberProposal:
        users, demand, assignment = arrays_of(snapshot)
        plan = self._policy.propose(demand, assignment, shuffle=snapshot.shuffle)
        moves: tuple[MoveSubscriber, ...] = tuple(plan.changes(users, sorted(snapshot.online)))
        return SubscriberProposal(self.name, moves, plan.before.cov, plan.after.cov, plan.problem)


def arrays_of(snapshot: SubscriberSnapshot) -> tuple[list[str], Demand, Assignment]:
    """Users and gateways are numbered in the order of their names, subscriptions as they come.

    A user that two gateways report, because it is moving, counts at the first. A subscription without a rate has had no
    results yet, and costs nothing.
    """
    gateways = sorted(snapshot.online)
    home: dict[str, int] = {}
    wanted: dict[str, tuple[str, ...]] = {}
    for number, gateway in enumerate(gateways):
        for user, subscriptions in snapshot.online[gateway].items():
            if user not in home:
                home[user], wanted[user] = number, subscriptions
    users = sorted(home)
    numbers: dict[str, int] = {}
    rows = [[numbers.setdefault(name, len(numbers)) for name in wanted[user]] for user in users]
    rates = snapshot.mean_rates()
    demand = Demand.of(rows, [rates.get(name, 0.0) for name in numbers])
    return users, demand, Assignment(len(gateways), np.array([home[user] for user in users], dtype=np.int32))


# --- newcomers


ROWS_AT_ONCE = 50_000  # subscribers whose distances are in memory together


def nearest(subscribers: Floats, brokers: Floats) -> Numbers:
    """NR: the nearest broker, the first of equal ones. Rows are positions or coordinates."""
    if not len(brokers) or subscribers.ndim != 2 or subscribers.shape[1:] != brokers.shape[1:]:
        raise UsageError("nearest placement needs at least one broker, and positions that have the same dimensions")
    home = np.empty(len(subscribers), dtype=np.int32)
    centre = brokers.mean(axis=0)  # differences from it keep their precision when coordinates are large
    sites = brokers - centre
    squares = (sites * sites).sum(axis=1)
    for first in range(0, len(subscribers), ROWS_AT_ONCE):
        rows = subscribers[first : first + ROWS_AT_ONCE] - centre
        home[first : first + ROWS_AT_ONCE] = (squares - 2 * (rows @ sites.T)).argmin(axis=1)
    return home


def round_robin(count: int, brokers: int, first: int = 0) -> Numbers:
    """RR: each broker in turn, beginning with `first`."""
    return ((np.arange(count) + first) % brokers).astype(np.int32)


def at_random(count: int, brokers: int, seed: int) -> Numbers:
    """RND: a random broker for each, the same ones for the same seed."""
    return np.random.default_rng(seed).integers(brokers, size=count, dtype=np.int32)


def least_loaded(count: int, loads: Floats) -> Numbers:
    """LL: all that arrive between two measurements go to the broker with the least load, which the paper criticises."""
    return np.full(count, loads.argmin(), dtype=np.int32)
