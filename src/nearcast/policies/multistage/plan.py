"""The migration plan M: who goes from where to where, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from nearcast.core.proposal import Cause, MoveSubscriber, Reason
from nearcast.policies.multistage.config import MultistageConfig
from nearcast.policies.multistage.demand import Assignment, Flags, Floats, Numbers

MEASURE = "coefficient of variation of the brokers' loads"


class Steps:
    """Single moves in the order they were decided. A subscriber may be in it more than once."""

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
    """Columns, a row per subscriber that changes its broker: each moves once, from where it is to where it ends."""

    subscriber: Numbers
    source: Numbers
    target: Numbers
    by_shuffle: Flags
    cov: Floats  # what the last decision about the subscriber saw

    def __len__(self) -> int:
        return len(self.subscriber)

    @staticmethod
    def between(before: Assignment, home: Numbers, steps: Steps, cov: float) -> Moves:
        """The shuffle's in the order of the subscribers' numbers, then single moves in the order of their decision."""
        last = np.full(len(home), -1)
        last[steps.subscribers] = np.arange(len(steps))
        changed = np.flatnonzero(home != before.home)
        moved = changed[np.argsort(last[changed], kind="stable")].astype(np.int32)
        by_shuffle = last[moved] < 0
        seen = np.array([*steps.covs, cov])[last[moved]]  # -1 is the cov that the shuffle saw
        return Moves(moved, before.home[moved], home[moved], by_shuffle, seen)


class Balance(msgspec.Struct, frozen=True):
    """How the brokers stand."""

    cov: float
    loads: tuple[float, ...]  # F_j, bytes per second
    incoming: float  # bytes per second from the data cluster, all brokers together


class MigrationPlan(msgspec.Struct, frozen=True, eq=False):
    """What is proposed, and what it does."""

    config: MultistageConfig
    moves: Moves
    shuffled: bool
    steps: int  # single moves that were decided: more than their rows if a subscriber was moved again
    before: Balance
    after: Balance
    problem: str = ""  # why the goal is not reached, and what would help
    asked: bool = False  # the shuffle was asked for

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
