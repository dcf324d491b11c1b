"""Noise around the bound does not keep a topic moving."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from nearcast.core.controller.restless import MOVES_MAX, WINDOW_S, Restless
from nearcast.core.model.bounds import Bound
from nearcast.core.model.distances import Candidate, TopicDistances
from nearcast.core.model.placement import Plan, single
from nearcast.core.model.planning import BrokerLoad, Snapshot, TopicLoad
from nearcast.policies.epulsar import EPulsar

BOUND_S = 0.040
SETTLES_S = 6
TOPIC = "t"


class NoisyTopic:
    """One topic, whose distances are reported anew each second, with noise. Proposals are carried out at once."""

    def __init__(self, worst_s: dict[str, float], jitter: float) -> None:
        self.worst_s = worst_s
        self.jitter = jitter
        self.home = next(iter(worst_s))
        self.restless = Restless()
        self.moves = 0

    def run(self, first_s: int, end_s: int) -> None:
        rng, settled_s = Random(first_s), first_s
        for at_s in range(first_s, end_s):
            self.restless.tick(at_s)
            changes = EPulsar().propose(self.snapshot(rng, at_s), self.plan).placements
            for change in changes if at_s >= settled_s else ():
                self.home, settled_s = change.brokers[0], at_s + SETTLES_S
                self.moves += 1
                self.restless.placed(change, at_s)

    @property
    def plan(self) -> Plan:
        return Plan(1, {TOPIC: single(1, self.home, 1)})

    def snapshot(self, rng: Random, at_s: float, draining: str = "") -> Snapshot:
        rows = {
            name: BrokerLoad(capacity_bytes_per_s=1e8, output_bytes_per_s=1e5, draining=name == draining)
            for name in self.worst_s
        }
        found = {}
        for name, worst_s in self.worst_s.items():
            now_s = worst_s * rng.uniform(1 - self.jitter, 1 + self.jitter)
            found[name] = Candidate(name, now_s / 2, now_s / 2, now_s)
        best = tuple(sorted(found.values(), key=lambda one: one.worst_s))
        return Snapshot(
            at_s,
            rows,
            {TOPIC: TopicLoad(1, 10, 1, 10, 1e3, 1e3)},
            distances={TOPIC: TopicDistances(found[self.home], best)},
            bounds={TOPIC: Bound(BOUND_S)},
            restless=self.restless.topics(at_s),
        )


@pytest.mark.parametrize(
    ("worst_s", "jitter"),
    [
        ({"b1": 0.040, "b2": 0.040}, 0.05),
        ({"b1": 0.0415, "b2": 0.0395}, 0.05),
        ({f"b{number}": 0.040 for number in range(8)}, 0.05),
        ({f"b{number}": 0.050 for number in range(8)}, 0.08),  # no broker keeps the bound
    ],
)
def test_a_bound_between_equal_brokers_does_not_keep_a_topic_moving(worst_s: dict[str, float], jitter: float) -> None:
    topic = NoisyTopic(worst_s, jitter)
    topic.run(0, round(WINDOW_S))
    assert 1 <= topic.moves <= MOVES_MAX + 1


def test_a_restless_topic_still_goes_where_it_gains_and_off_a_broker_that_goes_away() -> None:
    topic = NoisyTopic({"b1": 0.040, "b2": 0.040, "b3": 0.060}, 0.05)
    topic.run(0, 60)
    assert topic.restless.topics(60.0) == {TOPIC}
    before = topic.moves
    (change,) = EPulsar().propose(topic.snapshot(Random(1), 60.0, draining=topic.home), topic.plan).placements
    assert change.brokers != (topic.home,)
    topic.worst_s["b3"] = 0.030  # its clients have moved
    topic.run(60, 120)
    assert (topic.home, topic.moves) == ("b3", before + 1)


def test_explain_says_which_broker_gains_too_little() -> None:
    topic = NoisyTopic({"b1": 0.041, "b2": 0.039, "b3": 0.030}, 0.0)
    snapshot = msgspec.structs.replace(topic.snapshot(Random(1), 0.0), restless=frozenset((TOPIC,)))
    ruled_out = {one.broker: one.ruled_out for one in EPulsar().explain(snapshot, topic.plan, TOPIC).candidates}
    assert ruled_out == {"b1": "bound 0.041 > 0.04", "b2": "gain 0.039 > 0.0369", "b3": ""}


def test_after_a_while_it_counts_as_calm_again() -> None:
    topic = NoisyTopic({"b1": 0.040, "b2": 0.040}, 0.05)
    topic.run(0, 60)
    assert topic.restless.topics(60.0) == {TOPIC}
    topic.restless.tick(2 * WINDOW_S)
    assert topic.restless.topics(2 * WINDOW_S) == frozenset()
