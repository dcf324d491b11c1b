"""What the policy reads into Algorithm 1, one test for each reading."""

from __future__ import annotations

import msgspec
import pytest
from cluster_model import CAPACITY, traffic
from geo_model import GeoCluster

from nearcast.core.model.distances import Candidate, TopicDistances
from nearcast.core.model.placement import Mode
from nearcast.core.model.planning import AddBroker, Cause, TopicLoad
from nearcast.errors import UsageError
from nearcast.policies.epulsar import EPulsar, EPulsarConfig, Ranking

WEST, MIDDLE, EAST = (0.0, 0.0), (0.05, 0.0), (0.1, 0.0)
RANKINGS = pytest.mark.parametrize("ranking", list(Ranking))


def coast_to_coast() -> GeoCluster:
    return GeoCluster({"west": WEST, "middle": MIDDLE, "east": EAST})


def moves(cluster: GeoCluster, **config: object) -> dict[str, str]:
    proposal = EPulsar(msgspec.convert(config, EPulsarConfig)).propose(cluster.snapshot, cluster.plan)
    return {change.topic: change.brokers[0] for change in proposal.placements}


def problem(cluster: GeoCluster, **config: object) -> str:
    return EPulsar(msgspec.convert(config, EPulsarConfig)).propose(cluster.snapshot, cluster.plan).problem


# --- bounds


@RANKINGS
def test_a_topic_goes_where_its_clients_are(ranking: str) -> None:
    cluster = coast_to_coast()
    cluster.topic("game", "west", [EAST], [EAST], 0.04)
    cluster.topic("calm", "west", [EAST], [EAST], 0.21)
    cluster.topic("free", "west", [EAST], [EAST])
    proposal = EPulsar(EPulsarConfig(ranking=Ranking(ranking))).propose(cluster.snapshot, cluster.plan)
    (change,) = proposal.placements
    assert (change.topic, change.brokers) == ("game", ("east",))
    assert (change.reason.cause, change.reason.measure) == (Cause.BOUND, "worst_s")
    assert change.reason.value == pytest.approx(0.2)
    assert change.predicted_s == pytest.approx(0.0, abs=1e-9)
    assert change.moved_bytes_per_s == 10.0


def test_a_percentile_leaves_the_farthest_pairs_out() -> None:
    cluster = coast_to_coast()
    crowd = [WEST] * 19
    cluster.topic("all", "west", [WEST], [*crowd, EAST], 0.08)
    cluster.topic("most", "west", [WEST], [*crowd, EAST], 0.08, percentile=90)
    cluster.topic("half", "west", [WEST], [*crowd, EAST], 0.08, percentile=50)
    cluster.topic("nearly all", "west", [WEST], [*crowd, EAST], 0.08, percentile=95)
    assert "all" not in moves(cluster)  # no broker is better
    assert "2 topics find no broker" in problem(cluster)  # the 95th percentile is not known: the worst pair decides


def test_a_percentile_is_predicted_too() -> None:
    cluster = coast_to_coast()
    cluster.topic("most", "east", [WEST], [*[WEST] * 19, EAST], 0.08, percentile=90)
    (change,) = EPulsar().propose(cluster.snapshot, cluster.plan).placements
    assert (change.brokers, change.predicted_s, change.reason.measure) == (("west",), 0.0, "p90_s")


@pytest.mark.parametrize(("publishers", "subscribers"), [((), (EAST,)), ((EAST,), ())])
def test_without_publishers_or_subscribers_nothing_is_missed(publishers: tuple, subscribers: tuple) -> None:
    cluster = coast_to_coast()
    cluster.topic("quiet", "west", publishers, subscribers, 0.01)
    assert moves(cluster) == {}


def test_a_report_from_before_a_move_says_nothing() -> None:
    cluster = coast_to_coast()
    cluster.topic("game", "east", [EAST], [EAST], 0.04)
    stale = TopicDistances(Candidate("west", 0.1, 0.1, 0.2))
    snapshot = msgspec.structs.replace(cluster.snapshot, distances={"game": stale})
    assert EPulsar().propose(snapshot, cluster.plan).changes == ()


def test_values_that_cannot_be_are_no_candidates() -> None:
    cluster = coast_to_coast()
    cluster.topic("game", "west", [EAST], [EAST], 0.04)
    lies = [Candidate(name, value, 0.0, value) for name, value in (("middle", float("nan")), ("east", -1.0))]
    known = TopicDistances(Candidate("west", 0.1, 0.1, 0.2), (*lies, Candidate("gone", 0.0, 0.0, 0.0)))
    snapshot = msgspec.structs.replace(cluster.snapshot, distances={"game": known})
    assert EPulsar().propose(snapshot, cluster.plan).changes == ()


# --- a bound that no broker keeps


def test_what_no_broker_keeps_moves_only_if_it_is_worth_it() -> None:
    cluster = coast_to_coast()
    cluster.topic("far", "west", [EAST], [EAST, MIDDLE], 0.01)  # 0.05 over middle or east, 0.2 here
    cluster.topic("near", "west", [WEST], [MIDDLE], 0.01)  # 0.05 everywhere between
    assert moves(cluster) == {"far": "east"}
    assert (
        "1 topic finds no broker that keeps the bound, such as 'far' within 10 ms (the best, east, would take 50 ms)"
        in (problem(cluster))
    )
    cluster.step(EPulsar())
    assert moves(cluster) == {}


def test_the_margin_is_a_threshold() -> None:
    cluster = GeoCluster({"a": (0.0, 0.0), "b": (0.004, 0.0)})
    cluster.topic("t", "a", [(0.05, 0.0)], [(0.05, 0.0)], 0.01)  # 0.1 here, 0.092 there: 8 % less
    assert moves(cluster) == {}
    assert moves(cluster, gain_min=0.05) == {"t": "b"}


def test_it_is_placed_last() -> None:
    cluster = coast_to_coast()
    cluster.topic("hopeless", "west", [EAST], [EAST, MIDDLE], 0.01, load=500.0)
    cluster.topic("kept", "west", [EAST], [EAST], 0.04, load=400.0)
    assert moves(cluster) == {"kept": "east", "hopeless": "middle"}


# --- order, and room


def test_fewest_candidates_first_then_rate_then_name() -> None:
    cluster = GeoCluster({"a": WEST, "near": EAST, "next": (0.1, 0.01)})
    for name, bound_s, load in (("wide", 0.03, 600.0), ("tight", 0.01, 600.0)):
        cluster.topic(name, "a", [EAST], [EAST], bound_s, load)
    assert moves(cluster) == {"tight": "near", "wide": "next"}
    cluster.bounds["tight"] = cluster.bounds["wide"]
    cluster.loads["wide"] = TopicLoad(10, 10, 10, 101, 60, 600)  # the higher rate
    assert moves(cluster) == {"wide": "near", "tight": "next"}
    cluster.loads["wide"] = cluster.loads["tight"]
    assert moves(cluster) == {"tight": "near", "wide": "next"}  # by name


def test_a_full_broker_gets_nothing_and_the_problem_says_so() -> None:
    cluster = coast_to_coast()
    cluster.topic("there", "east", [EAST], [EAST], None, load=800.0)
    cluster.topic("game", "west", [EAST], [EAST], 0.04, load=100.0)
    assert moves(cluster) == {}
    assert "1 topic must wait, such as 'game': the brokers that would keep the bound have no room" in problem(cluster)


@pytest.mark.parametrize("row", [{"memory_share": 0.9}, {"cpu_share": 0.9}, {"messages_per_s": 2e6}])
def test_every_resource_counts(row: dict[str, float]) -> None:
    cluster = coast_to_coast()
    cluster.topic("game", "west", [EAST], [EAST], 0.04)
    cluster.rows["east"] = row
    assert moves(cluster) == {}


def test_a_topic_brings_its_share_of_its_brokers_cpu() -> None:
    cluster = coast_to_coast()
    cluster.topic("game", "west", [EAST], [EAST], 0.04)
    cluster.topic("rest", "west", [WEST], [WEST])
    cluster.rows = {"west": {"cpu_share": 0.6}, "east": {"cpu_share": 0.5}}
    assert moves(cluster) == {"game": "east"}  # half of 0.6 and 0.5
    cluster.rows["east"] = {"cpu_share": 0.6}
    assert moves(cluster) == {}


# --- overload


def test_an_overloaded_broker_gives_away_its_busiest_topics() -> None:
    cluster = coast_to_coast()
    for number in range(5):
        cluster.topic(f"t{number}", "west", [WEST], [WEST], load=190.0)
    cluster.loads["t3"] = TopicLoad(10, 10, 10, 200, 19, 190)
    proposal = EPulsar().propose(cluster.snapshot, cluster.plan)
    (change,) = proposal.placements
    assert (change.topic, change.brokers) == ("t3", ("middle",))  # the nearest with room
    assert (change.reason.cause, change.reason.measure) == (Cause.HIGH_LOAD, "load_ratio")
    assert change.reason.value == pytest.approx(0.95)


def test_the_rate_falls_to_rate_times_threshold_over_utilisation() -> None:
    cluster = coast_to_coast()
    for number in range(10):
        cluster.topic(f"t{number}", "west", [WEST], [WEST], load=1.0)
    cluster.rows["west"] = {"cpu_share": 0.98}  # 10 x 0.85 / 0.98 = 8.7 topics may stay
    assert len(moves(cluster)) == 2


def test_output_messages_have_a_threshold_of_their_own() -> None:
    cluster = coast_to_coast()
    for number in range(3):
        cluster.topic(f"t{number}", "west", [WEST], [WEST])
    cluster.put("in", TopicLoad(10, 500, 1, 10, 10, 10), "west")  # much in, little out: first in order
    cluster.rows["west"] = {"messages_per_s": 310.0}
    assert moves(cluster, messages_high_per_s=290) == {"in": "east", "t0": "middle"}  # one of unknown latency


def test_a_profiled_broker_has_its_own_threshold_of_messages() -> None:
    cluster = coast_to_coast()
    for number in range(3):
        cluster.topic(f"t{number}", "west", [WEST], [WEST])
    cluster.rows["west"] = {"messages_per_s": 310.0}
    assert moves(cluster) == {}  # the configured threshold is far away
    cluster.rows["west"] = {"messages_per_s": 310.0, "messages_high_per_s": 250.0}
    assert moves(cluster) == {"t0": "middle"}
    cluster.rows["middle"] = {"messages_high_per_s": 50.0}  # too low for any of them
    assert moves(cluster) == {"t0": "east"}
    cluster.rows["west"] = {"messages_per_s": 310.0, "messages_high_per_s": 400.0}
    assert moves(cluster, messages_high_per_s=250) == {}  # its own counts, also if it is the higher one


def test_topics_that_miss_their_bound_count_for_the_overload() -> None:
    cluster = coast_to_coast()
    cluster.topic("game", "west", [EAST], [EAST], 0.04, load=300.0)
    cluster.topic("rest", "west", [WEST], [WEST], load=600.0)
    assert moves(cluster) == {"game": "east"}


def test_if_one_topic_finds_no_room_the_next_is_tried() -> None:
    cluster = coast_to_coast()
    cluster.topic("large", "west", [WEST], [WEST], load=700.0)
    cluster.loads["large"] = TopicLoad(10, 10, 10, 200, 70, 700)
    cluster.topic("small", "west", [WEST], [WEST], load=200.0)
    cluster.topic("m", "middle", [MIDDLE], [MIDDLE], load=300.0)
    cluster.topic("e", "east", [EAST], [EAST], load=300.0)
    assert moves(cluster) == {"small": "middle"}


def test_memory_is_only_reported() -> None:
    cluster = coast_to_coast()
    cluster.topic("t", "west", [WEST], [WEST])
    cluster.rows["west"] = {"memory_share": 0.95}
    assert moves(cluster) == {}
    assert "west uses 95% of its memory, above 85%" in problem(cluster)


def test_load_that_no_topic_explains_is_said() -> None:
    cluster = coast_to_coast()
    cluster.rows["west"] = {"cpu_share": 0.95}
    assert "west stays at cpu_share 0.95, above 0.85: its load comes from no topic" in problem(cluster)


def test_a_broker_is_requested_if_one_topic_would_fit_on_it() -> None:
    cluster = GeoCluster({"only": WEST}, spare=2)
    cluster.topic("t1", "only", [WEST], [WEST], load=500.0)
    cluster.topic("t2", "only", [WEST], [WEST], load=500.0)
    assert [type(change) for change in EPulsar().propose(cluster.snapshot, cluster.plan).changes] == [AddBroker]
    cluster.coming = 1
    assert EPulsar().propose(cluster.snapshot, cluster.plan).changes == ()
    assert "a new broker is coming" in problem(cluster)
    giant = GeoCluster({"only": WEST}, spare=2)
    giant.topic("t", "only", [WEST], [WEST], load=5 * CAPACITY)
    assert EPulsar().propose(giant.snapshot, giant.plan).changes == ()


# --- what is left alone


def test_a_replicated_topic_is_reported_and_not_moved() -> None:
    cluster = coast_to_coast()
    cluster.topic("wide", "west", [EAST], [EAST], 0.04)
    cluster.put("wide", traffic(10.0), "west", "middle", mode=Mode.ALL_SUBSCRIBERS)
    assert moves(cluster) == {}
    assert "of the topics on several brokers, 1 topic misses the bound, such as 'wide'" in problem(cluster)


def test_a_topic_that_settles_stays_and_its_load_counts() -> None:
    cluster = coast_to_coast()
    cluster.topic("game", "west", [EAST], [EAST], 0.04, load=800.0)
    cluster.topic("other", "west", [WEST], [WEST], load=100.0)
    cluster.settling = frozenset({"game"})
    assert moves(cluster) == {"other": "middle"}


def test_a_quorum_needs_replicas() -> None:
    cluster = coast_to_coast()
    cluster.topic("kept", "west", [EAST], [EAST], 0.11)
    cluster.quorums["kept"] = 2
    cluster.rows = {"west": {"replicas": 1}, "middle": {"replicas": 1}}
    for ranking in Ranking:
        assert moves(cluster, ranking=ranking) == {"kept": "middle"}
    cluster.quorums["kept"] = 3
    assert moves(cluster) == {}


@RANKINGS
def test_a_broker_that_is_removed_gets_nothing_and_keeps_nothing(ranking: str) -> None:
    cluster = coast_to_coast()
    cluster.topic("game", "west", [EAST], [EAST], 0.11)
    cluster.topic("home", "east", [EAST], [EAST], 0.11)
    cluster.put("unknown", traffic(10.0), "east")
    cluster.draining = ["east"]
    assert moves(cluster, ranking=ranking) == {"game": "middle", "home": "middle", "unknown": "west"}
    cluster.rows = {"middle": {"memory_share": 0.9}}
    assert "1 topic fits on no broker but east" in problem(cluster, ranking=ranking)


# --- centroids


def test_centroids_overstate_what_clients_apart_would_get() -> None:
    """W(t, b) adds the deviations from both centroids, whichever way they go."""
    cluster = GeoCluster({"west": WEST, "east": (0.15, 0.0)})
    apart = [(0.1, -0.05), (0.1, 0.05)]
    cluster.topic("apart", "west", apart, apart, 0.15)
    assert moves(cluster) == {"apart": "east"}
    assert problem(cluster) == ""  # 141 ms
    assert moves(cluster, ranking=Ranking.CENTROIDS) == {"apart": "east"}  # W(t, west) is worse still
    assert "(the best, east, would take 200 ms)" in problem(cluster, ranking=Ranking.CENTROIDS)


def test_brokers_without_a_coordinate_are_not_ranked() -> None:
    cluster = coast_to_coast()
    cluster.topic("game", "west", [EAST], [EAST], 0.11)
    cluster.rows = {"east": {"coordinate": ()}}
    assert moves(cluster, ranking=Ranking.CENTROIDS) == {"game": "middle"}
    cluster.rows = {name: {"coordinate": ()} for name in cluster.capacities}
    assert moves(cluster, ranking=Ranking.CENTROIDS) == {}


@pytest.mark.parametrize("change", [{"resource_high": 0.0}, {"messages_high_per_s": 0.0}, {"gain_min": 1.0}])
def test_thresholds_keep_their_rules(change: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="break the rule"):
        EPulsarConfig(**change)
