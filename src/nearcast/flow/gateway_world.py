"""What a simulation of gateways is given: brokers and subscribers with their positions, subscriptions, and results.

A frontend subscription is a span of time: it begins when its subscriber asks for it or comes online, and ends when the
subscriber gives it up or goes offline. Results are the bytes that the channels produce for each backend subscription,
second by second: an execution's results come in the second of the execution, and nothing between two of them.
"""

from __future__ import annotations

import msgspec
import numpy as np

from nearcast.errors import UsageError
from nearcast.flow.demand import FloatArray, IntArray


class Spans(msgspec.Struct, frozen=True, eq=False):
    """Columns. Spans of the same subscriber and backend subscription do not overlap."""

    subscriber: IntArray
    subscription: IntArray  # backend
    from_s: IntArray  # the first second in which it counts
    until_s: IntArray  # the first in which it does not

    def __post_init__(self) -> None:
        if len({len(self.subscriber), len(self.subscription), len(self.from_s), len(self.until_s)}) != 1:
            raise UsageError("spans need a subscriber, a subscription, a start and an end each")

    def __len__(self) -> int:
        return len(self.subscriber)

    def in_order(self) -> Spans:
        """By subscriber, then by subscription, as the policy wants them."""
        order = np.lexsort((self.subscription, self.subscriber))
        return Spans(self.subscriber[order], self.subscription[order], self.from_s[order], self.until_s[order])


class GatewayWorld(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    broker_positions: FloatArray  # a row per broker
    positions: FloatArray  # a row per subscriber: where it was when it came
    arrival_s: FloatArray  # when each subscriber came
    spans: Spans
    result_bytes: FloatArray  # a row per second, a column per backend subscription

    def __post_init__(self) -> None:
        count, width = len(self.positions), self.result_bytes.shape[1]
        if len(self.arrival_s) != count or self.broker_positions.shape[1:] != self.positions.shape[1:]:
            raise UsageError("each subscriber needs an arrival, and everybody a position of the same dimensions")
        spans = self.spans
        if len(spans) and (int(spans.subscriber.max()) >= count or int(spans.subscription.max()) >= width):
            raise UsageError("a span is of a subscriber or a subscription that there is not")

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
        """lambda_k in bytes per second, the mean of the last so many seconds; at the start, of those there were."""
        sums = np.concatenate([np.zeros((1, self.result_bytes.shape[1])), np.cumsum(self.result_bytes, axis=0)])
        ends = np.arange(1, self.seconds + 1)
        starts = np.maximum(0, ends - average_s)
        # Differences of sums can be a little below zero, and rates must not.
        return np.maximum(0.0, sums[ends] - sums[starts]) / (ends - starts)[:, None]
