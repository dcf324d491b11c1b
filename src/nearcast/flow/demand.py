"""Demand: what a workload asks of the cluster in one step, as arrays.

Clients and topics are numbers from 0; a workload's `topics` gives the topics their names.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def summed(numbers: IntArray, weights: FloatArray, count: int) -> FloatArray:
    """For each number below `count`, the sum of the weights that stand beside it."""
    return np.bincount(numbers, weights=weights, minlength=count).astype(np.float64, copy=False)


class Subscriptions(NamedTuple):
    """Each entry: this client is subscribed to this topic."""

    client: IntArray
    topic: IntArray


class Publications(NamedTuple):
    """Each entry: this client publishes on this topic so often."""

    client: IntArray
    topic: IntArray
    rate_per_s: FloatArray


class Demand(NamedTuple):
    clients: int  # how many there are; their numbers are below it
    subscriptions: Subscriptions
    publications: Publications
    message_bytes: float | FloatArray  # payload: the same for all topics, or one for each

    @property
    def all_hear_themselves(self) -> bool:
        """Whether every publisher is subscribed where it publishes: the workload then uses the same arrays for both."""
        subscribed, published = self.subscriptions, self.publications
        return subscribed.client is published.client and subscribed.topic is published.topic

    def heard_by_themselves(self) -> BoolArray:
        """For each entry of `publications`, whether the client is subscribed to the topic."""
        if self.all_hear_themselves:
            return np.ones(len(self.publications.client), dtype=np.bool_)
        return np.isin(self._pairs(*self.publications[:2]), self._pairs(*self.subscriptions))

    def _pairs(self, clients: IntArray, topics: IntArray) -> IntArray:
        return topics * self.clients + clients


class Workload(Protocol):
    @property
    def topics(self) -> tuple[str, ...]: ...

    def demand(self, at_s: float) -> Demand: ...
