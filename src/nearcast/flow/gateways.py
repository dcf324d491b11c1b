"""A flow simulation of gateways: subscribers on brokers, their loads by equations 1-5, and moves between them."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np

from nearcast.errors import UsageError
from nearcast.flow.model import BoolArray, FloatArray, IntArray
from nearcast.policies.multistage import Assignment, Demand, Multistage
from nearcast.policies.multistage.loads import Numbers

# --- results


class Rebalanced(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with moves, the time it was made, and the effect the policy expected."""

    at_s: int
    moves: int
    shuffled: bool
    cov_before: float
    cov_after: float
    problem: str = ""


class GatewaySeries(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The results of a simulation, second by second. Loads are in bytes per second."""

    loads: FloatArray  # F_j: a row per second, a column per broker
    incoming: FloatArray  # I_j
    clients: IntArray  # subscribers of each broker that have a subscription, in the same layout
    moves: IntArray  # total moves that have taken effect, up to each second
    backend: IntArray  # subscriptions at the data cluster
    frontend: IntArray
    rebalanced: tuple[Rebalanced, ...]

    @property
    def seconds(self) -> int:
        return len(self.loads)

    @property
    def cov(self) -> FloatArray:
        """Standard deviation of the loads over their mean (equations 6-8); 0 while there is no load."""
        mean = self.loads.mean(axis=1)
        return np.where(mean > 0, self.loads.std(axis=1) / np.where(mean > 0, mean, 1.0), 0.0)

    @property
    def highest(self) -> FloatArray:
        """The load of the busiest broker."""
        return np.asarray(self.loads.max(axis=1), dtype=np.float64)

    @property
    def moves_later(self) -> int:
        """Moves that were not part of the first plan."""
        return int(self.moves[-1]) - (self.rebalanced[0].moves if self.rebalanced else 0)

    @property
    def shuffles(self) -> int:
        return sum(each.shuffled for each in self.rebalanced)


# --- input


class Spans(msgspec.Struct, frozen=True, eq=False):
    """Frontend subscriptions as spans of time, in columns.

    A span begins when its subscriber asks for it or comes online, and ends when the subscriber gives it up or goes
    offline. Spans of the same subscriber and backend subscription do not overlap.
    """

    subscriber: IntArray
    subscription: IntArray  # backend
    from_s: IntArray  # the first second in which it counts
    until_s: IntArray  # the first in which it does not

    def __post_init__(self) -> None:
        if len({len(self.subscriber), len(self.subscription), len(self.from_s), len(self.until_s)}) != 1:
            raise UsageError("each span needs a subscriber, a subscription, a start and an end")

    def __len__(self) -> int:
        return len(self.subscriber)

    def in_order(self) -> Spans:
        """Sorted by subscriber, then by subscription, as the policy needs them."""
        order = np.lexsort((self.subscription, self.subscriber))
        return Spans(self.subscriber[order], self.subscription[order], self.from_s[order], self.until_s[order])


class GatewayWorld(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The input: brokers and subscribers with their positions, subscriptions, and results.

    Results are the bytes that the channels produce for each backend subscription, second by second. An execution's
    results arrive in the second of the execution, and nothing arrives between executions.
    """

    broker_positions: FloatArray  # a row per broker
    positions: FloatArray  # a row per subscriber: where it was when it arrived
    arrival_s: FloatArray  # when each subscriber arrived
    spans: Spans
    result_bytes: FloatArray  # a row per second, a column per backend subscription

    def __post_init__(self) -> None:
        count, width = len(self.positions), self.result_bytes.shape[1]
        if len(self.arrival_s) != count or self.broker_positions.shape[1:] != self.positions.shape[1:]:
            raise UsageError("each subscriber needs an arrival, and all positions must have the same dimensions")
        spans = self.spans
        if len(spans) and (int(spans.subscriber.max()) >= count or int(spans.subscription.max()) >= width):
            raise UsageError("a span names a subscriber or a subscription that does not exist")

    @property
    def seconds(self) -> int:
        return len(self.result_bytes)

    @property
    def brokers(self) -> int:
        return len(self.broker_positions)

    @property
    def subscribers(self) -> int:
        return len(self.positions)

    def rates(self, average_s: int) -> FloatArray:
        """lambda_k in bytes per second: the mean of the last `average_s`, or of fewer seconds at the start."""
        sums = np.concatenate([np.zeros((1, self.result_bytes.shape[1])), np.cumsum(self.result_bytes, axis=0)])
        ends = np.arange(1, self.seconds + 1)
        starts = np.maximum(0, ends - average_s)
        # Differences of sums can be slightly below zero; rates must not be.
        return np.maximum(0.0, sums[ends] - sums[starts]) / (ends - starts)[:, None]


# --- simulation


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The paper has no figures for these."""

    look_s: int = 10  # how often the controller asks the policy
    move_s: int = 2  # from the decision until the new gateway serves the subscriber
    average_s: int = 60  # length of the moving averages: two executions of the prototype's slowest channel

    def __post_init__(self) -> None:
        if self.average_s < 1 or not 0 < self.move_s < self.look_s:
            raise UsageError("average_s must be 1 or more, and move_s above 0 and below look_s")


class GatewaySimulation:
    """A run, in steps of one second. `home`: the broker of each subscriber at the start.

    Every few seconds the controller asks the same policy that runs live; without a policy, no subscriber moves. The
    moves of a plan take effect together a little later. Until then subscribers count where they are, because a
    subscriber leaves its gateway only when the next one serves it. Rates are moving averages of the results, and so are
    the loads computed from them.

    n_jk, the frontend subscriptions of each broker and backend subscription, is updated by what begins, ends and moves.
    So the cost of a step is the number of these changes, and one product of a table with the rates.
    """

    def __init__(
        self, world: GatewayWorld, home: Numbers, policy: Multistage | None, settings: GatewaySettings | None = None
    ) -> None:
        if len(home) != world.subscribers or (len(home) and not 0 <= home.min() <= home.max() < world.brokers):
            raise UsageError(f"every subscriber needs a broker from 0 to {world.brokers - 1}")
        self._world = world
        self._policy = policy
        self._settings = settings or GatewaySettings()
        self._rates = world.rates(self._settings.average_s)
        self._spans = world.spans.in_order()
        self._beginning = _by_second(self._spans.from_s, world.seconds)
        self._ending = _by_second(self._spans.until_s, world.seconds)
        self._home: IntArray = home.astype(np.int64)
        self._active: BoolArray = np.zeros(len(self._spans), dtype=np.bool_)
        self._counts = np.zeros((world.brokers, self._rates.shape[1]), dtype=np.int64)  # n_jk
        self._held = np.zeros(world.subscribers, dtype=np.int64)  # active spans of each subscriber
        self._ordered: tuple[IntArray, IntArray] | None = None  # subscribers and targets of moves in progress

    def run(self) -> GatewaySeries:
        seconds, brokers = self._world.seconds, self._world.brokers
        loads, incoming = np.zeros((seconds, brokers)), np.zeros((seconds, brokers))
        clients = np.zeros((seconds, brokers), dtype=np.int64)
        moves, backend, frontend = (np.zeros(seconds, dtype=np.int64) for _ in range(3))
        rebalanced: list[Rebalanced] = []
        moved, effective_at = 0, -1
        for second in range(seconds):
            self._change(self._ending[second], begins=False)
            self._change(self._beginning[second], begins=True)
            if second == effective_at:
                moved += self._move()
            incoming[second], loads[second] = self._loads(self._rates[second])
            online = self._home[self._held > 0]
            clients[second] = np.bincount(online, minlength=brokers)
            moves[second], frontend[second] = moved, self._held.sum()
            backend[second] = np.count_nonzero(self._counts.any(axis=0))
            if second and second % self._settings.look_s == 0 and (found := self._look(second)) is not None:
                rebalanced.append(found)
                effective_at = second + self._settings.move_s
        return GatewaySeries(
            loads=loads,
            incoming=incoming,
            clients=clients,
            moves=moves,
            backend=backend,
            frontend=frontend,
            rebalanced=tuple(rebalanced),
        )

    def _loads(self, rates: FloatArray) -> tuple[FloatArray, FloatArray]:
        """I_j and F_j of every broker."""
        incoming = (self._counts > 0) @ rates
        return incoming, incoming + self._counts @ rates

    def _change(self, rows: IntArray, begins: bool) -> None:
        if not begins:
            rows = rows[self._active[rows]]
        if len(rows):
            self._active[rows] = begins
            subscribers, change = self._spans.subscriber[rows], 1 if begins else -1
            np.add.at(self._held, subscribers, change)
            np.add.at(self._counts, (self._home[subscribers], self._spans.subscription[rows]), change)

    def _look(self, second: int) -> Rebalanced | None:
        if self._policy is None or not self._active.any():
            return None
        plan = self._policy.propose(self._demand(second), Assignment(self._world.brokers, self._home.astype(np.int32)))
        if not len(plan.moves):
            return None
        self._ordered = (plan.moves.subscriber.astype(np.int64), plan.moves.target.astype(np.int64))
        return Rebalanced(
            at_s=second,
            moves=len(plan.moves),
            shuffled=plan.shuffled,
            cov_before=plan.before.cov,
            cov_after=plan.after.cov,
            problem=plan.problem,
        )

    def _demand(self, second: int) -> Demand:
        """Who wants what now. Subscribers without a subscription count as offline: they load no broker."""
        wanted = self._spans.subscription[self._active].astype(np.int32)
        starts = np.concatenate([[0], np.cumsum(self._held)])
        return Demand(starts, wanted, self._rates[second], self._held > 0)

    def _move(self) -> int:
        """Make the ordered moves. A subscriber that has gone offline since finds the new gateway when it comes back."""
        if self._ordered is None:
            return 0
        subscribers, targets = self._ordered
        self._ordered = None
        moving = np.zeros(self._world.subscribers, dtype=np.bool_)
        moving[subscribers] = True
        rows = np.flatnonzero(self._active & moving[self._spans.subscriber])
        owners, subscriptions = self._spans.subscriber[rows], self._spans.subscription[rows]
        np.add.at(self._counts, (self._home[owners], subscriptions), -1)
        self._home[subscribers] = targets
        np.add.at(self._counts, (self._home[owners], subscriptions), 1)
        return len(subscribers)


def _by_second(times_s: IntArray, seconds: int) -> list[IntArray]:
    """For each second, the indices of its entries."""
    order = np.argsort(times_s, kind="stable")
    ends = np.searchsorted(times_s[order], np.arange(seconds + 1))
    return [order[start:end] for start, end in pairwise(ends.tolist())]
