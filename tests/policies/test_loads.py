"""The arrays a policy computes with, and the draft that changes them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from cluster_model import CAPACITY, Cluster, random_cluster, traffic

from nearcast.core.model.placement import Mode
from nearcast.core.model.planning import Cause, Reason
from nearcast.policies.dynamoth.draft import Draft, Shelf
from nearcast.policies.loads import NOWHERE, Loads

REASON = Reason(Cause.HIGH_LOAD, "test", 1.0, 0.0)


def loads_of(cluster: Cluster) -> Loads:
    return Loads.of(cluster.snapshot, cluster.plan)


def test_topics_and_brokers_are_in_the_order_of_their_names() -> None:
    cluster = Cluster.of({"b2": [0.1], "b1": [0.2, 0.3]})
    loads = loads_of(cluster)
    assert loads.brokers == ("b1", "b2")
    assert loads.topics == ["b1.0", "b1.1", "b2.0"]
    assert loads.home.tolist() == [0, 0, 1]
    assert loads.traffic == pytest.approx([200.0, 300.0, 100.0])
    assert loads.output == pytest.approx([500.0, 100.0])


def test_what_cannot_be_moved_has_no_place() -> None:
    cluster = Cluster.of({"b1": [], "b2": []})
    cluster.put("dead", traffic(1.0), "gone")
    cluster.put("half dead", traffic(1.0), "b1", "gone", mode=Mode.ALL_SUBSCRIBERS)
    cluster.put("homes", traffic(1.0), "b1", mode=Mode.HOMES)
    cluster.put("replicated", traffic(1.0), "b2", "b1", mode=Mode.ALL_PUBLISHERS)
    loads = loads_of(cluster)
    assert loads.home.tolist() == [NOWHERE] * 4
    assert loads.replicas == {loads.topics.index("replicated"): (1, 0)}


def test_topics_without_load_are_there() -> None:
    cluster = Cluster.of({"b1": [0.1]})
    cluster.put("idle", traffic(5.0), "b1")
    snapshot = cluster.snapshot
    del snapshot.topics["idle"]  # type: ignore[attr-defined]
    loads = Loads.of(snapshot, cluster.plan)
    assert loads.traffic[loads.topics.index("idle")] == 0


def test_an_estimate_is_what_the_cluster_then_has() -> None:
    """Random placements, in a draft whose shelves are kept up to date, against a fresh draft."""
    for seed in range(40):
        rng, cluster = Random(seed), random_cluster(seed)
        draft = Draft(loads_of(cluster))
        shelves = [draft.shelf(broker) for broker in range(len(cluster.capacities))]
        for topic in range(len(cluster.placements)):
            brokers = tuple(rng.sample(range(len(cluster.capacities)), rng.randint(1, len(cluster.capacities))))
            mode = Mode.SINGLE if len(brokers) == 1 else rng.choice((Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS))
            draft.place(topic, mode, brokers, REASON)
        for change in draft.placements():
            cluster.put(change.topic, cluster.loads[change.topic], *change.brokers, mode=change.mode)
        fresh = Draft(loads_of(cluster))
        assert draft.predicted() == pytest.approx(cluster.ratios)
        for broker, shelf in enumerate(shelves):
            assert shelf.single == fresh.shelf(broker).single
            assert shelf.replicated == fresh.shelf(broker).replicated


def test_a_copy_is_another_draft() -> None:
    cluster = Cluster.of({"b1": [0.1, 0.2], "b2": []})
    draft = Draft(loads_of(cluster))
    draft.shelf(0)
    copy = draft.copy()
    copy.move(0, 0, 1, REASON)
    copy.usable[1] = False
    assert draft.placements() == []
    assert draft.ratio == pytest.approx([0.3, 0.0])
    assert len(draft.shelf(0).single) == 2
    assert draft.usable.all()


def test_back_where_it_was_is_no_change() -> None:
    draft = Draft(loads_of(Cluster.of({"b1": [0.1], "b2": []})))
    draft.move(0, 0, 1, REASON)
    draft.move(0, 1, 0, REASON)
    assert draft.placements() == []


def test_the_cost_is_the_traffic_whose_broker_changes() -> None:
    cluster = Cluster({f"b{number}": CAPACITY for number in range(4)})
    cluster.put("t", traffic(120.0), "b0")
    for brokers, moved in (((1,), 120.0), ((0, 1), 60.0), ((0, 1, 2), 80.0), ((1, 2), 120.0)):
        draft = Draft(loads_of(cluster))
        mode = Mode.SINGLE if len(brokers) == 1 else Mode.ALL_SUBSCRIBERS
        draft.place(0, mode, brokers, REASON)
        assert draft.placements()[0].moved_bytes_per_s == pytest.approx(moved)


def test_a_shelf_finds_what_fits() -> None:
    shelf = Shelf([(5.0, 1), (1.0, 2), (3.0, 3)], [(4.0, 4), (2.0, 5)])
    anything = lambda topic: True  # noqa: E731
    assert shelf.busiest(4.5, 0.0, anything) == (3.0, 3)
    assert shelf.busiest(0.5, 0.0, anything) is None
    assert shelf.busiest(4.5, 3.5, anything) == (4.0, 4)  # no topic of its own in the range
    assert shelf.busiest(4.5, 3.5, lambda topic: topic != 4) is None
    assert shelf.lightest(1.0, 9.0, anything) == (3.0, 3)
    assert shelf.lightest(1.0, 2.5, anything) == (2.0, 5)
    assert shelf.lightest(5.0, 9.0, anything) is None


def test_arrays_are_not_those_of_the_loads() -> None:
    loads = loads_of(Cluster.of({"b1": [0.1], "b2": []}))
    before = loads.output.copy()
    Draft(loads).move(0, 0, 1, REASON)
    assert np.array_equal(loads.output, before)
    assert loads.home.tolist() == [0]
