"""Algorithm 1: whether a topic is replicated, in which mode, over how many brokers, and which ones."""

from __future__ import annotations

import pytest
from cluster_model import CAPACITY, Cluster

from nearcast.core.model.placement import Mode
from nearcast.core.model.planning import Cause, TopicLoad
from nearcast.policies.dynamoth import Dynamoth, DynamothConfig

SINGLE, SUBS, PUBS = Mode.SINGLE, Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS
# Thresholds: 100 publications per subscriber, 1000 publications, 20 subscribers per publication, 200 subscribers.
CONFIG = DynamothConfig(
    all_subs_threshold=100.0, publication_threshold=1000.0, all_pubs_threshold=20.0, subscriber_threshold=200.0
)
BROKERS = [f"b{number}" for number in range(10)]


def load(publications: float, subscribers: float, output: float = 1.0, publishers: float = 0.0) -> TopicLoad:
    return TopicLoad(publishers, publications, subscribers, publications * subscribers, 1.0, output)


def decided(topic: TopicLoad, *now: str, mode: Mode = SINGLE, brokers: int = 10) -> tuple[Mode, int]:
    """The mode and the number of brokers that one topic has after a proposal."""
    cluster = Cluster(dict.fromkeys(BROKERS[:brokers], CAPACITY))
    cluster.kept = BROKERS  # an idle cluster would be made smaller
    cluster.put("hot", topic, *(now or ("b0",)), mode=mode)
    cluster.step(Dynamoth(CONFIG))
    placement = cluster.placements["hot"]
    return placement.mode, len(placement.brokers)


@pytest.mark.parametrize(
    ("publications", "subscribers", "mode", "count"),
    [
        (0, 0, SINGLE, 1),
        (5000, 0, SINGLE, 1),  # nobody receives it: no output to share
        (1000, 5, SINGLE, 1),  # the ratio is above its threshold, the publications are not
        (1001, 10, SUBS, 2),  # line 5 gives 1.001, rounded up
        (2000, 20, SINGLE, 1),  # the ratio is at its threshold, not above
        (3000, 10, SUBS, 3),  # exactly three thresholds
        (3001, 10, SUBS, 4),
        (4500, 1, SUBS, 5),  # the ratio asks for 45: each broker shall have 1000 publications
        (90_000, 1, SUBS, 10),  # no more than there are
        (10, 200, SINGLE, 1),  # subscribers at their threshold
        (10, 201, PUBS, 2),  # line 9 gives 1.005
        (10, 500, PUBS, 3),  # 50 subscribers per publication: 2.5 thresholds
        (0, 500, PUBS, 3),  # line 9 divides by zero: as if there were one publication, 200 subscribers each
        (0.1, 500, PUBS, 3),
        (30, 500, SINGLE, 1),  # 17 subscribers per publication
        (1500, 400, SUBS, 2),  # both large, and neither ratio is: all_subscribers
        (3500, 100_000, SUBS, 4),  # both large, although the second ratio is above its threshold too
    ],
)
def test_mode_and_number(publications: float, subscribers: float, mode: Mode, count: int) -> None:
    assert decided(load(publications, subscribers)) == (mode, count)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        (load(5000, 10, publishers=1), (SINGLE, 1)),  # its only publisher writes to one broker, whatever the mode
        (load(5000, 10, publishers=3), (SUBS, 3)),
        (load(10, 20, output=2.0 * CAPACITY, publishers=1), (PUBS, 4)),  # bandwidth alone: 2.0 / 0.6 per broker
        (load(50, 20, output=2.0 * CAPACITY, publishers=9), (SUBS, 4)),
        (load(50, 3, output=2.0 * CAPACITY, publishers=1), (PUBS, 3)),
        (load(50, 1, output=2.0 * CAPACITY, publishers=1), (SINGLE, 1)),  # nothing divides it
        (load(50, 20, output=0.6 * CAPACITY, publishers=9), (SINGLE, 1)),
        (load(1100, 10, output=2.0 * CAPACITY), (SUBS, 4)),  # the ratio asks for 2, the bandwidth for 4
    ],
)
def test_bandwidth_and_what_a_mode_can_divide(topic: TopicLoad, expected: tuple[Mode, int]) -> None:
    assert decided(topic) == expected


def test_one_broker_cannot_replicate() -> None:
    assert decided(load(5000, 1), brokers=1) == (SINGLE, 1)


@pytest.mark.parametrize(
    ("publications", "now", "count"),
    [
        (2300, 3, 3),  # 2.3 thresholds: needs 3
        (1600, 3, 3),  # 1.6: needs 2, and with a reserve of a third 2.13, so 3 stay
        (1450, 3, 2),  # 1.45: with reserve 1.93
        (800, 2, 2),  # below the threshold, above 0.75 of it
        (740, 2, 1),
        (740, 3, 1),
        (0, 3, 1),
    ],
)
def test_a_topic_at_a_threshold_does_not_flap(publications: float, now: int, count: int) -> None:
    mode, after = decided(load(publications, 10), *BROKERS[:now], mode=SUBS)
    assert (mode, after) == (SUBS if count > 1 else SINGLE, count)


def test_the_mode_changes_with_the_topic() -> None:
    assert decided(load(10, 500), "b1", "b2", mode=SUBS) == (PUBS, 3)
    assert decided(load(3000, 10), "b1", "b2", mode=PUBS) == (SUBS, 3)
    assert decided(load(1500, 400), "b1", "b2", mode=PUBS) == (SUBS, 2)


def cluster_with(ratios: dict[str, float], hot: TopicLoad, *now: str, mode: Mode = SINGLE) -> Cluster:
    cluster = Cluster.of({broker: [ratio / 10] * 10 for broker, ratio in ratios.items()})
    cluster.put("hot", hot, *now, mode=mode)
    return cluster


def test_the_least_loaded_come_in_first() -> None:
    cluster = cluster_with({"b1": 0.5, "b2": 0.3, "b3": 0.4, "b4": 0.6}, load(2500, 10, output=90.0), "b1")
    (change,) = cluster.step(Dynamoth(CONFIG)).changes
    assert change.brokers == ("b1", "b2", "b3")
    assert change.reason.cause is Cause.MANY_PUBLICATIONS
    assert (change.reason.value, change.reason.threshold) == (250.0, 100.0)
    assert change.moved_bytes_per_s == pytest.approx(60.0)


def test_the_busiest_go_out_first_and_the_others_keep_their_order() -> None:
    ratios = {"b1": 0.5, "b2": 0.3, "b3": 0.4, "b4": 0.6}
    cluster = cluster_with(ratios, load(1450, 10, output=40.0), "b4", "b3", "b1", "b2", mode=SUBS)
    (change,) = cluster.step(Dynamoth(CONFIG)).changes
    assert change.brokers == ("b3", "b2")
    assert change.reason.cause is Cause.COOLED
    assert (change.reason.measure, change.reason.value) == ("publications_per_s per subscriber", 145.0)
    assert change.reason.threshold == pytest.approx(0.75 * 3 * 100)


def test_a_cooled_topic_collapses_to_its_least_loaded_broker() -> None:
    cluster = cluster_with({"b1": 0.5, "b2": 0.3}, load(10, 10, output=40.0), "b1", "b2", mode=PUBS)
    (change,) = cluster.step(Dynamoth(CONFIG)).changes
    assert (change.mode, change.brokers, change.reason.cause) == (SINGLE, ("b2",), Cause.COOLED)


def test_a_cooled_topic_stays_where_no_broker_could_take_it_whole() -> None:
    cluster = cluster_with({"b1": 0.55, "b2": 0.55}, load(10, 10, output=400.0), "b1", "b2", mode=PUBS)
    proposal = cluster.step(Dynamoth(CONFIG))
    assert proposal.changes == ()
    assert "'hot' needs 1 of its 2 brokers" in proposal.problem


def test_replication_that_would_overload_a_broker_is_put_off() -> None:
    cluster = cluster_with({"b1": 0.5, "b2": 0.75}, load(2500, 10, output=200.0), "b1")
    proposal = cluster.step(Dynamoth(CONFIG))
    assert proposal.changes == ()
    assert "'hot' needs 2 brokers and has 1" in proposal.problem


def test_a_topic_too_large_for_its_broker_is_divided_even_if_all_are_too_busy() -> None:
    """1.5 on one broker becomes 0.5 on three: above lr_high there, but less than it was."""
    cluster = cluster_with({"b1": 0.0, "b2": 0.5, "b3": 0.5}, load(50, 50, output=1500.0, publishers=50), "b1")
    proposal = cluster.step(Dynamoth(CONFIG))
    assert len(cluster.placements["hot"].brokers) == 3
    assert proposal.placements[0].reason.cause is Cause.HIGH_LOAD
    assert max(cluster.ratios.values()) == pytest.approx(0.85)  # and then levelled; the mean is 0.833
    assert "no broker can be rented" in proposal.problem
