"""Reach: how long a topic's messages take over the broker it is on, and would take over others.

A bound without a percentile is about the worst pair of a publisher and a subscriber.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, nan
from operator import attrgetter
from typing import Protocol

import msgspec
import numpy as np

from nearcast.core.model.bounds import Bound
from nearcast.core.model.distances import Candidate, TopicDistances, by_percentile, latency_s
from nearcast.core.model.planning import Snapshot
from nearcast.policies.loads import NOWHERE, Flags, Floats, Loads, Numbers

Ranked = Iterator[tuple[int, float]]  # brokers and the latency over each in seconds, the best first


# --- today


class Today(msgspec.Struct, frozen=True, eq=False):
    """By topic: its bound, and what is measured where it is. Infinite without a bound, NaN if nothing is known."""

    bound_s: Floats
    measured_s: Floats
    percentile: Flags  # the 90th percentile decides

    @property
    def violated(self) -> Flags:
        """Line 16: E(t) > L_th(t). Nobody knows E(t) of a topic without publishers or without subscribers."""
        return self.measured_s > self.bound_s

    @staticmethod
    def of(snapshot: Snapshot, loads: Loads) -> Today:
        count = len(loads.topics)
        bound_s, now_s, percentile = np.full(count, inf), np.full(count, nan), np.zeros(count, np.bool_)
        for topic, name in enumerate(loads.topics) if snapshot.bounds else ():
            bound = snapshot.bounds.get(name)
            if bound is None:
                continue
            bound_s[topic], percentile[topic] = bound.seconds, by_percentile(bound)
            distances = snapshot.distances.get(name)
            if distances is not None:
                now_s[topic] = _here(distances, loads.placements[topic].brokers, bound)
        return Today(bound_s, now_s, percentile)


def _here(distances: TopicDistances, brokers: tuple[str, ...], bound: Bound) -> float:
    """What was measured at the topic's broker. A report from before a move is about another one."""
    for candidate in (distances.now, *distances.best):
        if candidate.broker in brokers:
            return latency_s(candidate, bound)
    return nan


# --- other brokers


class Choices(msgspec.Struct, frozen=True, eq=False):
    """What decides which brokers some topics may be on, whatever their load."""

    loads: Loads
    topics: Numbers  # the topics in question; all that follows is in their order
    bound_s: Floats
    percentile: Flags
    needed: Numbers  # replicas that the quorum of a topic's log asks for
    replicas: Numbers  # by broker

    @staticmethod
    def of(snapshot: Snapshot, loads: Loads, today: Today, topics: Numbers) -> Choices:
        quorums = snapshot.quorums
        needed = [quorums.get(loads.topics[topic], 1) - 1 for topic in topics.tolist()] if quorums else 0
        return Choices(
            loads,
            topics,
            today.bound_s[topics],
            today.percentile[topics],
            np.full(len(topics), needed, np.int32),
            np.array([snapshot.brokers[name].replicas for name in loads.brokers], np.int32),
        )

    def allowed(self, place: int) -> Flags:
        """The brokers that one of the topics may be on."""
        found: Flags = ~self.loads.draining & (self.replicas >= self.needed[place])
        return found

    @property
    def allowed_count(self) -> Numbers:
        usable = np.sort(self.replicas[~self.loads.draining])
        return (len(usable) - np.searchsorted(usable, self.needed)).astype(np.int32)


class Reach(Protocol):
    """What is known of other brokers for some topics, which are named by their place among them."""

    known: Flags  # whether anything is
    feasible: Numbers  # |B(t)|: brokers that the topic may be on and that keep its bound
    today_s: Floats  # over the present broker, by the same measure; NaN if not known

    def ranked(self, place: int) -> Ranked:
        """Line 4, section 3.4.1: all brokers the topic may be on whose latency is known, the best first."""
        ...


# --- ours: the best eight


class Top8:
    """The agents' figures: exact for the broker a topic is on and for the eight that are best by their worst pair."""

    def __init__(self, snapshot: Snapshot, choices: Choices) -> None:
        loads, topics = choices.loads, choices.topics
        found = [snapshot.distances.get(loads.topics[topic]) for topic in topics.tolist()]
        broker, worst_s, p90_s = _tables(found, {name: number for number, name in enumerate(loads.brokers)})
        value_s = np.where(choices.percentile[:, None], p90_s, worst_s)
        there = (broker != NOWHERE) & np.isfinite(value_s) & (value_s >= 0)
        at_home = there & (broker == loads.home[topics][:, None])
        self.today_s = np.where(at_home.any(axis=1), value_s[np.arange(len(topics)), at_home.argmax(axis=1)], nan)
        self.known = there.any(axis=1)
        there &= ~loads.draining[broker] & (choices.replicas[broker] >= choices.needed[:, None])
        value_s = np.where(there, value_s, inf)
        order = np.lexsort((broker, value_s), axis=1)
        self._value_s = np.take_along_axis(value_s, order, axis=1).data
        self._broker = np.take_along_axis(broker, order, axis=1).data
        self._count = there.sum(axis=1).tolist()
        self.feasible = (there & (value_s <= choices.bound_s[:, None])).sum(axis=1).astype(np.int32)

    def ranked(self, place: int) -> Ranked:
        for column in range(self._count[place]):
            yield self._broker[place, column], self._value_s[place, column]


def _tables(found: Sequence[TopicDistances | None], numbers: dict[str, int]) -> tuple[Numbers, Floats, Floats]:
    """The candidates of each topic in a row: broker, worst and 90th percentile. The first is where the topic is."""
    lengths = np.fromiter((0 if one is None else 1 + len(one.best) for one in found), np.int64, len(found))
    filled = np.arange(max(1, int(lengths.max(initial=0)))) < lengths[:, None]
    # The present brokers of all topics first, then the others: a tuple per topic would keep the collector busy.
    flat = [one.now for one in found if one is not None]
    flat += [candidate for one in found if one is not None for candidate in one.best]
    broker = np.full(filled.shape, NOWHERE, np.int32)
    worst_s, p90_s = np.full(filled.shape, inf), np.full(filled.shape, inf)
    columns = (
        (broker, np.fromiter((numbers.get(candidate.broker, NOWHERE) for candidate in flat), np.int32, len(flat))),
        (worst_s, _column(flat, "publisher_s") + _column(flat, "subscriber_s")),
        (p90_s, _column(flat, "p90_s")),
    )
    for table, column in columns:
        table[:, 0][filled[:, 0]] = column[: filled[:, 0].sum()]
        table[:, 1:][filled[:, 1:]] = column[filled[:, 0].sum() :]
    broker[:, 0] = np.where((broker[:, 1:] == broker[:, :1]).any(axis=1), NOWHERE, broker[:, 0])  # named again
    return broker, worst_s, p90_s


def _column(rows: Sequence[Candidate], field: str) -> Floats:
    return np.fromiter(map(attrgetter(field), rows), np.float64, len(rows))
