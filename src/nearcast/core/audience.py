"""The audience: who is online at which gateway and what each wants, at one moment; and how it may be seated anew.

Taking this view only copies references, because it is done on the controller's loop. What takes time is done where the
balancer runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from nearcast.core.proposal import MoveSubscriber

Online = Mapping[str, tuple[str, ...]]  # user -> ids of the backend subscriptions it wants
PAIRS_SHOWN = 5  # of gateways, in the text of a decision


class Audience(msgspec.Struct, frozen=True):
    """The gateways that take subscribers."""

    online: Mapping[str, Online]  # by gateway
    rates: Mapping[str, tuple[Mapping[str, float], ...]]  # by gateway: id -> bytes per second, one of each report
    shuffle: bool = False  # somebody asks to place everybody anew

    def mean_rates(self) -> dict[str, float]:
        """lambda_k of every subscription, over all reports that mention it."""
        return mean_rates(one for reports in self.rates.values() for one in reports)


class Seats(msgspec.Struct, frozen=True):
    """What a balancer proposes: who goes where, and what it does to the coefficient of variation of the loads."""

    policy: str
    moves: tuple[MoveSubscriber, ...] = ()
    cov_before: float = 0.0
    cov_after: float = 0.0
    problem: str = ""  # why the goal is not reached by these moves, and what would help

    def __str__(self) -> str:
        """The decision in one line: thousands of subscribers may move."""
        if not self.moves:
            return f"{self.policy}: nobody moves, coefficient of variation {self.cov_before:.3f}"
        pairs = Counter((move.source, move.target) for move in self.moves).most_common()
        shown = [f"{count} from {source} to {target}" for (source, target), count in pairs[:PAIRS_SHOWN]]
        if len(pairs) > PAIRS_SHOWN:
            shown.append(f"{sum(count for _, count in pairs[PAIRS_SHOWN:])} between others")
        return (
            f"{self.policy}: subscribers move, {', '.join(shown)}; coefficient of variation {self.cov_before:.3f} -> "
            f"{self.cov_after:.3f} ({self.moves[0].reason})"
        )


class Balancer(Protocol):
    """A pure function: the same audience gives the same seats."""

    name: str

    def seat(self, audience: Audience) -> Seats: ...


def mean_rates(reports: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Moving averages (BAD, section 6.1.2). A report that does not mention a subscription says nothing about it."""
    sums: dict[str, float] = {}
    counts: Counter[str] = Counter()
    for report in reports:
        for subscription, rate in report.items():
            sums[subscription] = sums.get(subscription, 0.0) + rate
            counts[subscription] += 1
    return {subscription: total / counts[subscription] for subscription, total in sums.items()}
