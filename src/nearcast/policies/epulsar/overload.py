"""Which topics leave an overloaded broker (Algorithm 1, lines 18 to 21; section 3.4.3)."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import numpy as np

from nearcast.core.model.planning import Cause, Reason
from nearcast.policies.epulsar.draft import Constraint, Draft, Obstacle
from nearcast.policies.loads import Flags

MEASURES = {
    Constraint.NETWORK: "load_ratio",
    Constraint.CPU: "cpu_share",
    Constraint.MESSAGES: "messages_per_s",
    Constraint.MEMORY: "memory_share",
}


def overloads(draft: Draft) -> dict[int, list[Obstacle]]:
    """Line 18: the overloaded brokers, and why. Memory does not follow the rate of topics, so it is not among them."""
    found = {}
    for broker in range(len(draft.brokers)):
        over = [one for one in draft.overload(broker) if one.constraint is not Constraint.MEMORY]
        if over:
            found[broker] = over
    return found


def reason_of(over: list[Obstacle]) -> Reason:
    worst = max(over, key=lambda one: one.value / one.limit)
    return Reason(Cause.HIGH_LOAD, MEASURES[worst.constraint], worst.value, worst.limit)


class Shelves:
    """The topics of each broker that may leave it, by decreasing R_out(t), then by name."""

    def __init__(self, draft: Draft, movable: Flags) -> None:
        home = draft.loads.home
        topics = np.flatnonzero(movable & (draft.rate > 0))
        self._order = topics[np.lexsort((topics, -draft.rate[topics], home[topics]))]
        self._homes = home[self._order]

    def of(self, broker: int) -> list[int]:
        first, end = np.searchsorted(self._homes, (broker, broker + 1))
        found: list[int] = self._order[first:end].tolist()
        return found


def to_migrate(draft: Draft, broker: int, over: list[Obstacle], shelf: Iterable[int], leaving: list[int]) -> list[int]:
    """Line 20: of the shelf, the topics without which the broker is below its thresholds.

    `leaving` are topics of this broker that were chosen before: they count.
    """
    used = max((one.value for one in over if one.constraint in (Constraint.NETWORK, Constraint.CPU)), default=0.0)
    rate_high = draft.rate_on[broker] * draft.config.resource_high / used if used else inf
    messages_high = draft.messages_high[broker]
    rate = draft.rate_on[broker] - float(draft.rate[leaving].sum())
    messages = draft.messages[broker] - float(draft.deliveries[leaving].sum())
    chosen = []
    for topic in shelf:
        if rate <= rate_high and messages <= messages_high:
            break
        chosen.append(topic)
        rate -= float(draft.rate[topic])
        messages -= float(draft.deliveries[topic])
    return chosen
