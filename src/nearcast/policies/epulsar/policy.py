"""The policy: Algorithm 1, from detection to the proposal."""

from __future__ import annotations

from math import inf
from typing import assert_never

import numpy as np

from nearcast.core.model.placement import Mode, Plan
from nearcast.core.model.planning import (
    AddBroker,
    Cause,
    Explanation,
    PlaceTopic,
    Proposal,
    ProposedChange,
    Reason,
    Snapshot,
)
from nearcast.policies.epulsar.centroids import CentroidReach
from nearcast.policies.epulsar.config import EPulsarConfig, Ranking
from nearcast.policies.epulsar.draft import Draft
from nearcast.policies.epulsar.overload import Shelves, overloads, reason_of, to_migrate
from nearcast.policies.epulsar.problems import Problems
from nearcast.policies.epulsar.reach import Choices, Reach, Today, Top8
from nearcast.policies.loads import NOWHERE, Flags, Floats, Loads, Numbers

DEFAULT = EPulsarConfig()

_LEAVES = Reason(Cause.LOW_LOAD, "topics on a broker that is removed", 1.0, 0.0)


class EPulsar:
    """The policy; a pure function of snapshot and plan."""

    name = "epulsar"

    def __init__(self, config: EPulsarConfig = DEFAULT) -> None:
        self._config = config

    @property
    def wants_centroids(self) -> bool:
        return self._config.ranking is Ranking.CENTROIDS

    def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal:
        draft = Draft(snapshot, plan, self._config)
        if draft.loads.draining.all():
            problem = "no broker may carry topics: start one, or cancel a removal"
            return Proposal(self.name, predicted=draft.predicted(), problem=problem)
        return _Session(snapshot, draft).proposal(self.name)

    def explain(self, snapshot: Snapshot, plan: Plan, topic: str) -> Explanation:
        """Why a topic is where it is."""
        from nearcast.policies.epulsar.explain import explain

        return explain(snapshot, plan, topic, self._config)


def reach_of(snapshot: Snapshot, choices: Choices, ranking: Ranking) -> Reach:
    match ranking:
        case Ranking.TOP8:
            return Top8(snapshot, choices)
        case Ranking.CENTROIDS:
            return CentroidReach(snapshot, choices)
        case _:
            assert_never(ranking)


def flags(named: frozenset[str], loads: Loads, topics: Numbers) -> Flags:
    """Which of the topics are among those named."""
    if not named:
        return np.zeros(len(topics), np.bool_)
    return np.fromiter((loads.topics[topic] in named for topic in topics.tolist()), np.bool_, len(topics))


def worth(today_s: Floats, gain_min: float, twice: Flags) -> Floats:
    """By topic: the latency at which a move is worth it."""
    found: Floats = np.nextafter(today_s * (1 - gain_min * np.where(twice, 2, 1)), -inf)
    return found


def movable(snapshot: Snapshot, draft: Draft) -> Flags:
    """Topics on one known broker that do not settle."""
    loads = draft.loads
    everything = np.arange(len(loads.topics), dtype=np.int32)
    found: Flags = (loads.home != NOWHERE) & ~flags(snapshot.settling, loads, everything)
    return found


class _Session:
    """One call of the policy."""

    def __init__(self, snapshot: Snapshot, draft: Draft) -> None:
        self._snapshot = snapshot
        self._draft = draft
        self._loads = draft.loads
        self._today = Today.of(snapshot, draft.loads)
        self._movable = movable(snapshot, draft)
        self._why: dict[int, Reason] = {}  # why a topic was chosen: T_migr
        self._must_leave = np.zeros(len(self._loads.topics), np.bool_)  # its broker is overloaded or goes away
        self._predicted: dict[int, float | None] = {}  # R: topics that move, and their latency then
        self._problems = Problems(snapshot, draft, self._today)
        self._placements = [(name,) for name in self._loads.brokers]

    def proposal(self, name: str) -> Proposal:
        """PerformRepartitioning."""
        chosen = self._violated() + self._on_leaving_brokers()
        shelves = Shelves(self._draft, self._movable)
        chosen += self._overloaded(shelves, counted=True)
        while chosen:
            self._place(np.array(chosen, np.int32))
            # What found no room does not relieve its broker: then the topics after it are tried.
            chosen = self._overloaded(shelves, counted=False)
        changes: list[ProposedChange] = [*self._more_brokers(), *map(self._change, self._predicted)]
        return Proposal(name, tuple(changes), self._draft.predicted(), self._problems.text())

    # --- detection

    def _violated(self) -> list[int]:
        """Lines 15 to 17."""
        topics = np.flatnonzero(self._today.violated & self._movable)
        percentile, measured_s, bound_s = self._today.percentile, self._today.measured_s, self._today.bound_s
        columns = (topics, percentile[topics], measured_s[topics], bound_s[topics])
        for topic, by_percentile, now_s, high_s in zip(*(column.tolist() for column in columns), strict=True):
            self._why[topic] = Reason(Cause.BOUND, "p90_s" if by_percentile else "worst_s", now_s, high_s)
        return list(self._why)

    def _on_leaving_brokers(self) -> list[int]:
        if not self._loads.draining.any():
            return []
        found = np.flatnonzero(self._movable & self._loads.draining[self._loads.home])
        self._must_leave[found] = True
        fresh = [topic for topic in found.tolist() if topic not in self._why]
        self._why |= dict.fromkeys(fresh, _LEAVES)
        return fresh

    def _overloaded(self, shelves: Shelves, counted: bool) -> list[int]:
        """Lines 18 to 21. At first, topics that were chosen for another reason count in line 20."""
        found: list[int] = []
        for broker, over in overloads(self._draft).items():
            here = [topic for topic in shelves.of(broker) if self._draft.home[topic] == broker]
            leaving = [topic for topic in here if topic in self._why] if counted else []
            self._must_leave[leaving] = True
            rest = [topic for topic in here if topic not in self._why]
            for topic in to_migrate(self._draft, broker, over, rest, leaving):
                self._why[topic] = reason_of(over)
                self._must_leave[topic] = True
                found.append(topic)
        return found

    # --- PlaceTopics

    def _place(self, topics: Numbers) -> None:
        """Lines 3 to 10: fewest candidates first, then the highest rate, then the name. Without any, last."""
        choices = Choices.of(self._snapshot, self._loads, self._today, topics)
        reach = reach_of(self._snapshot, choices, self._draft.config.ranking)
        bounded = np.isfinite(choices.bound_s) & reach.known
        count = np.where(bounded, reach.feasible, choices.allowed_count)
        hopeless = bounded & (reach.feasible == 0)
        order = np.lexsort((topics, -self._draft.rate[topics], count, hopeless))
        restless = self._restless(topics)
        limit_s = self._limits(topics, reach, np.where(bounded, choices.bound_s, inf), hopeless, restless).tolist()
        anywhere = (~bounded | (hopeless & self._must_leave[topics])).tolist()
        numbers, without_hope, calm = topics.tolist(), hopeless.tolist(), restless.tolist()
        for place in order.tolist():
            topic = numbers[place]
            if self._draft.crowded(topic):
                placed = self._may_stay(topic, choices, reach, place, limit_s[place], anywhere[place])
            else:
                placed = self._try_known(topic, reach, place, limit_s[place]) or (
                    anywhere[place] and self._try_lightest(topic, choices.allowed(place))
                )
            if not placed:
                self._draft.found_no_room()
            if without_hope[place]:
                self._problems.hopeless(topic, reach, place)
            elif not placed and not calm[place]:
                self._problems.full(topic)

    def _limits(self, topics: Numbers, reach: Reach, bound_s: Floats, hopeless: Flags, restless: Flags) -> Floats:
        """What a broker's latency may be.

        Where no broker keeps the bound, all are candidates, but a move must be worth it: else topics would flap.
        """
        free = self._must_leave[topics]
        worth_s = worth(reach.today_s, self._draft.config.gain_min, hopeless & restless)
        worth_s = np.where(free, inf, np.where(hopeless & np.isnan(worth_s), -inf, worth_s))
        found: Floats = np.where(hopeless, worth_s, np.where(restless, np.fmin(bound_s, worth_s), bound_s))
        return found

    def _restless(self, topics: Numbers) -> Flags:
        return flags(self._snapshot.restless, self._loads, topics) & ~self._must_leave[topics]

    def _try_known(self, topic: int, reach: Reach, place: int, limit_s: float) -> bool:
        for broker, latency_s in reach.ranked(place):
            if latency_s > limit_s:
                return False
            if self._draft.can_host(topic, broker):
                self._settle(topic, broker, latency_s)
                return True
        return False

    def _may_stay(self, topic: int, choices: Choices, reach: Reach, place: int, limit_s: float, anywhere: bool) -> bool:
        """The same for a topic that no other broker has room for."""
        home = self._draft.home[topic]
        near = reach.today_s[place] <= limit_s and choices.allowed(place)[home]
        return bool(near or anywhere) and self._draft.can_host(topic, home)

    def _try_lightest(self, topic: int, allowed: Flags) -> bool:
        """For topics of which no latency is known: where it is if that will do, else the broker with the least load."""
        home = self._draft.home[topic]
        broker = home if self._draft.can_host(topic, home) else self._draft.lightest_host(topic, allowed)
        if broker != NOWHERE:
            self._settle(topic, broker, None)
        return broker != NOWHERE

    def _settle(self, topic: int, broker: int, latency_s: float | None) -> None:
        if broker != self._draft.home[topic]:
            self._draft.move(topic, broker)
            self._predicted[topic] = latency_s

    # --- the proposal

    def _change(self, topic: int) -> PlaceTopic:
        """Line 26."""
        return PlaceTopic(
            self._loads.topics[topic],
            Mode.SINGLE,
            self._placements[self._draft.home[topic]],
            self._why[topic],
            float(self._loads.traffic[topic]),
            self._predicted[topic],
        )

    def _more_brokers(self) -> list[AddBroker]:
        """One more, if a topic that found no room on the brokers there are would fit on an empty one."""
        over = overloads(self._draft)
        if not over or self._snapshot.spare <= 0 or self._snapshot.coming > 0:
            return []
        high, loads = self._draft.config.resource_high, self._loads
        fits = self._movable & (loads.traffic > 0) & (loads.traffic <= high * loads.capacity.mean())
        fits &= self._draft.cpu_of <= high
        stuck = [topic for topic in np.flatnonzero(fits).tolist() if self._draft.home[topic] in over]
        return [AddBroker(reason_of(next(iter(over.values()))))] if stuck else []
