"""Stages 2 and 3 of multistage balancing: single moves and the greedy shuffle, and the plan they make.

Stage 2 (section 5.2) is lines 5-25 of Algorithm 1: single subscribers leave the broker with the most load. The cost of
a step is the subscriptions of one subscriber, a search in a sorted list, and a look at the load of each broker; SDM
looks up the subscriptions of one subscriber at each broker. Subscribers too heavy for any target are skipped.

Stage 3 (section 5.3) is the greedy shuffle GSH: all subscribers are placed again, heaviest first, each on the broker
with the least load.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import heapify, heapreplace
from math import fsum

import msgspec
import numpy as np
from numpy.typing import NDArray

from nearcast.core.model.planning import Cause, MoveSubscriber, Reason
from nearcast.policies.multistage.loads import (
    NOWHERE,
    Assignment,
    BrokerLoads,
    Demand,
    Flags,
    Floats,
    MultistageConfig,
    Numbers,
    Scheme,
)

MEASURE = "coefficient of variation of the brokers' loads"


# --- the plan


class Steps:
    """Single moves in the order they were decided. A subscriber may occur more than once."""

    def __init__(self) -> None:
        self.subscribers: list[int] = []
        self.sources: list[int] = []
        self.targets: list[int] = []
        self.covs: list[float] = []  # the coefficient of variation before the move

    def __len__(self) -> int:
        return len(self.subscribers)

    def append(self, subscriber: int, source: int, target: int, cov: float) -> None:
        self.subscribers.append(subscriber)
        self.sources.append(source)
        self.targets.append(target)
        self.covs.append(cov)


class Moves(msgspec.Struct, frozen=True, eq=False):
    """One row for each subscriber that changes its broker: it moves once, from where it is to where it ends up."""

    subscriber: Numbers
    source: Numbers
    target: Numbers
    by_shuffle: Flags
    cov: Floats  # what the last decision about the subscriber saw

    def __len__(self) -> int:
        return len(self.subscriber)

    @staticmethod
    def between(before: Assignment, home: Numbers, steps: Steps, cov: float) -> Moves:
        """First the shuffle's, by subscriber number; then single moves, in the order they were decided."""
        last = np.full(len(home), -1)
        last[steps.subscribers] = np.arange(len(steps))
        changed = np.flatnonzero(home != before.home)
        moved = changed[np.argsort(last[changed], kind="stable")].astype(np.int32)
        by_shuffle = last[moved] < 0
        seen = np.array([*steps.covs, cov])[last[moved]]  # -1 is the cov that the shuffle saw
        return Moves(moved, before.home[moved], home[moved], by_shuffle, seen)


class Balance(msgspec.Struct, frozen=True):
    """The state of the brokers."""

    cov: float
    loads: tuple[float, ...]  # F_j, bytes per second
    incoming: float  # bytes per second from the data cluster, all brokers together


class MigrationPlan(msgspec.Struct, frozen=True, eq=False):
    """The plan M: who goes from where to where and why, and the effect."""

    config: MultistageConfig
    moves: Moves
    shuffled: bool
    steps: int  # single moves that were decided: more than there are rows if a subscriber was moved again
    before: Balance
    after: Balance
    problem: str = ""  # why the goal is not reached, and what would help
    asked: bool = False  # the shuffle was requested

    def changes(self, subscribers: Sequence[str], brokers: Sequence[str]) -> Iterator[MoveSubscriber]:
        """The moves with names and reasons."""
        moves, config = self.moves, self.config
        for row in range(len(moves)):
            if moves.by_shuffle[row]:
                cause, threshold = (Cause.ASKED, 0.0) if self.asked else (Cause.SKEWED, config.gamma)
            else:
                cause, threshold = Cause.UNBALANCED, config.alpha
            yield MoveSubscriber(
                subscribers[moves.subscriber[row]],
                brokers[moves.source[row]],
                brokers[moves.target[row]],
                Reason(cause, MEASURE, float(moves.cov[row]), threshold),
            )


# --- ranking


class Ranking:
    """The subscribers of each broker by load, heaviest first; of equal ones, the lower number first.

    A rank says how heavy a subscriber is among all. Ranks never change, so each broker has a sorted list of them. The
    heaviest is last in it, because Algorithm 1 takes from there, and removing near the end of a list is cheap.
    """

    def __init__(self, by_subscriber: Floats, home: Numbers, brokers: int) -> None:
        order = heaviest_first(by_subscriber)[::-1]
        self._loads: list[float] = by_subscriber[order].tolist()  # by rank
        self._order = order
        self._rank = np.empty_like(order)
        self._rank[order] = np.arange(len(order))
        homes = home[order]
        placed = np.flatnonzero(homes != NOWHERE)
        by_broker = placed[np.argsort(homes[placed], kind="stable")]
        ends = np.searchsorted(homes[by_broker], np.arange(1, brokers))
        self._ranks: list[list[int]] = [part.tolist() for part in np.split(by_broker, ends)]

    def at_most(self, broker: int, load: float) -> Iterator[int]:
        """Subscribers of a broker with a load above zero and not above the given one, heaviest first."""
        ranks = self._ranks[broker]
        highest = len(ranks)
        if ranks and self._loads[ranks[-1]] > load:
            highest = bisect_left(ranks, bisect_right(self._loads, load))
        for place in range(highest - 1, -1, -1):
            if self._loads[ranks[place]] <= 0:
                return
            yield self._order.item(ranks[place])

    def move(self, subscriber: int, source: int, target: int) -> None:
        rank = self._rank.item(subscriber)
        ranks = self._ranks[source]
        del ranks[-1 if ranks[-1] == rank else bisect_left(ranks, rank)]
        insort(self._ranks[target], rank)


def heaviest_first(by_subscriber: Floats) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """All subscribers by decreasing load; of equal ones, the lower number first."""
    return np.argsort(-by_subscriber, kind="stable")


# --- single moves


ROUNDING = 1e-9  # share of a load: smaller differences are ignored


def migrate(loads: BrokerLoads, config: MultistageConfig) -> tuple[Steps, str]:
    """Move subscribers until balanced. Changes `loads`; returns the moves and, if they ended early, why."""
    steps = Steps()
    if not _unbalanced(loads, config):
        return steps, ""
    ranking = Ranking(loads.by_subscriber, loads.home, len(loads.total))
    while _unbalanced(loads, config):
        if len(steps) >= config.moves_max:
            return steps, f"the limit of {config.moves_max} moves is reached: raise moves_max, or plan again"
        source = loads.total.index(max(loads.total))
        found = _valid_move(loads, ranking, source, config.scheme)
        if found is None:
            return steps, f"moving any one subscriber off broker {source} does not help: add a broker, or raise alpha"
        subscriber, target = found
        steps.append(subscriber, source, target, loads.spread.cov)
        loads.move(subscriber, target)
        ranking.move(subscriber, source, target)
    return steps, ""


def _unbalanced(loads: BrokerLoads, config: MultistageConfig) -> bool:
    """The condition of line 6."""
    return loads.spread.cov > config.alpha and loads.spread.mean > config.beta_bytes_per_s


def _valid_move(loads: BrokerLoads, ranking: Ranking, source: int, scheme: Scheme) -> tuple[int, int] | None:
    """Lines 9-21: the heaviest subscriber that has a valid target, and that target."""
    lowest = min(loads.total)
    least_loaded = loads.total.index(lowest)
    for subscriber in ranking.at_most(source, (loads.total[source] - lowest) * (1 + ROUNDING)):
        target = least_loaded if scheme is Scheme.LDM else most_similar(loads, subscriber, loads.spread.mean)
        if target is not None and target != source and _valid(loads, subscriber, source, target):
            return subscriber, target
    return None


def most_similar(loads: BrokerLoads, subscriber: int, mean: float) -> int | None:
    """Line 15: the broker below the mean with the highest similarity, of equal ones the lowest number; None if none."""
    below = np.flatnonzero(np.array(loads.total) < mean)
    if not len(below):
        return None
    return int(below[loads.similarity(subscriber)[below].argmax()])


def _valid(loads: BrokerLoads, subscriber: int, source: int, target: int) -> bool:
    """Line 17, after the move: the target does not exceed the source's load before it.

    If the target would just reach it, the source must end below the target's load before the move. Otherwise the same
    two loads would change places forever.
    """
    own = loads.own(subscriber)
    limit = loads.total[source]
    if loads.total[target] + 2 * own < limit * (1 - ROUNDING):
        return True  # whatever it shares there: it adds at most twice its load, incoming and outgoing
    after = loads.total[target] + own + loads.new_incoming(subscriber, target)
    if abs(after - limit) <= ROUNDING * limit:
        left = limit - own - loads.freed_incoming(subscriber)
        return left < loads.total[target] - ROUNDING * limit
    return after < limit


# --- the shuffle


ROWS_AT_ONCE = 20_000  # subscribers whose subscriptions are turned into lists at a time


def shuffled(demand: Demand, by_subscriber: Floats, home: Numbers, brokers: int) -> Numbers:
    """The new broker of every online subscriber; `home` for the others. Of equal brokers, the lower number is taken.

    Subscribers without load stay: otherwise all of them would end up on the broker with the least load.
    """
    order = heaviest_first(by_subscriber)
    order = order[demand.online[order] & (by_subscriber[order] > 0)]
    greedy = _Greedy(demand, brokers)
    found = home.copy()
    for first in range(0, len(order), ROWS_AT_ONCE):
        rows = order[first : first + ROWS_AT_ONCE]
        found[rows] = greedy.place(rows, by_subscriber[rows].tolist())
    return found


class _Greedy:
    """A heap of brokers by load, and what each broker does not hold yet.

    Brokers soon hold most of what is wanted. What all of them hold adds nothing to any incoming load, so it is removed
    from the rows before the loop, and few subscriptions have to be examined one by one.
    """

    def __init__(self, demand: Demand, brokers: int) -> None:
        self._demand = demand
        self._rates: list[float] = demand.rates.tolist()
        everything = set(range(len(self._rates)))
        self._missing = [everything.copy() for _ in range(brokers)]
        self._heap = [(0.0, broker) for broker in range(brokers)]
        heapify(self._heap)

    def place(self, rows: NDArray[np.int64], loads: list[float]) -> list[int]:
        wanted, ends = self._missing_somewhere(rows)
        heap, missing, rates = self._heap, self._missing, self._rates
        placed, start = [], 0
        for load, end in zip(loads, ends, strict=True):
            total, broker = heap[0]
            if start < end:
                new = missing[broker].intersection(wanted[start:end])
                if new:
                    missing[broker] -= new
                    load += fsum([rates[k] for k in new])
                start = end
            heapreplace(heap, (total + load, broker))
            placed.append(broker)
        return placed

    def _missing_somewhere(self, rows: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """What these subscribers want and not every broker holds, in sequence, and where each one's part ends."""
        starts = self._demand.starts
        lengths = starts[rows + 1] - starts[rows]
        ends = np.cumsum(lengths)
        places = np.arange(int(ends[-1])) + np.repeat(starts[rows] - (ends - lengths), lengths)
        wanted = self._demand.wanted[places]
        missing = np.zeros(len(self._rates), dtype=np.bool_)
        missing[list(set().union(*self._missing))] = True
        kept = missing[wanted]
        before = np.concatenate([[0], np.cumsum(kept)])
        return wanted[kept].tolist(), before[ends].tolist()
