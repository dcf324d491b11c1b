"""Distances of topics' clients: measured where they have probed, estimated elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.agent import estimates as module
from nearcast.agent.estimates import (
    LEARN_AGAIN_MAX_S,
    LEARN_AGAIN_S,
    SPENT_SHARE,
    SPENT_SHARE_NEWCOMERS,
    Estimates,
)
from nearcast.core.agent.followers import TopicClients
from nearcast.core.model.counters import Behind
from nearcast.core.model.distances import BrokerCoordinate
from nearcast.core.wire.probes import landmarks_of

BROKERS = [f"b{number:02}" for number in range(24)]


class World:
    """Brokers and clients on a plane; a round trip is a distance and 2 ms of access."""

    def __init__(self, clients: int = 30, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.places = rng.uniform(0.0, 0.1, (len(BROKERS) + clients, 2))

    def round_trip_s(self, one: int, other: int) -> float:
        return float(np.linalg.norm(self.places[one] - self.places[other])) + 0.002

    def rows(self) -> dict[str, dict[str, float]]:
        return {
            name: {other: self.round_trip_s(one, two) for two, other in enumerate(BROKERS) if other != name}
            for one, name in enumerate(BROKERS)
        }

    def of_client(self, client: int) -> list[float]:
        return [self.round_trip_s(len(BROKERS) + client, broker) for broker in range(len(BROKERS))]

    def probes(self, client: int, count: int = 8) -> dict[str, float]:
        true_s = self.of_client(client)
        return {BROKERS[broker]: true_s[broker] for broker in range(0, len(BROKERS), len(BROKERS) // count)}


def test_the_best_brokers_of_a_topic_are_near_the_best_although_few_were_probed() -> None:
    world = World()
    estimates = Estimates("b00")
    assert estimates.between(world.rows(), world.rows()["b00"], 0.0)
    topics = [TopicClients(f"t{n}", (3 * n,), (3 * n + 1, 3 * n + 2)) for n in range(10)]
    found = estimates.of(topics, {client: world.probes(client) for client in range(30)})
    for topic in topics:
        ours, theirs = (
            np.array([world.of_client(client) for client in side]) for side in (topic.publishers, topic.subscribers)
        )
        worst_s = (ours.max(axis=0) + theirs.max(axis=0)) / 2
        distances = found[topic.topic]
        assert distances is not None
        assert distances.now.broker == "b00"
        assert distances.now.worst_s == pytest.approx(worst_s[0], abs=1e-4), "it was probed"
        best_s = min(worst_s[BROKERS.index(one.broker)] for one in distances.best)
        assert best_s <= 1.05 * worst_s.min()


def test_only_news_about_brokers_changes_the_estimates() -> None:
    world = World()
    estimates = Estimates("b00")
    rows = world.rows()
    assert estimates.between(rows, rows["b00"], 0.0)
    assert not estimates.between(rows, rows["b00"], 100.0)
    noise = {name: {other: one_s + 0.0005 for other, one_s in row.items()} for name, row in rows.items()}
    assert not estimates.between(noise, noise["b00"], 100.0), "too little"
    moved = rows | {"b01": rows["b01"] | {"b02": 0.5}}
    assert not estimates.between(moved, rows["b00"], LEARN_AGAIN_S - 1), "learning takes its time"
    assert estimates.between(moved, rows["b00"], LEARN_AGAIN_S + 1)
    fewer = {name: row for name, row in rows.items() if name != "b23"}
    assert estimates.between(fewer, rows["b00"], LEARN_AGAIN_S + 2), "a broker has left"


def test_what_is_known_is_replaced_the_more_seldom_the_more_work_it_makes() -> None:
    world = World()
    estimates = Estimates("b00")
    rows = world.rows()
    estimates.between(rows, rows["b00"], 0.0)
    estimates.of([TopicClients("t", (1,), (2,))], {client: world.probes(client) for client in (1, 2)})
    estimates._spent_s = 4.0
    moved = rows | {"b01": rows["b01"] | {"b02": 0.5}}
    assert not estimates.between(moved, rows["b00"], 4.0 / SPENT_SHARE - 1)
    fewer = {name: row for name, row in rows.items() if name != "b23"}
    assert not estimates.between(fewer, rows["b00"], 4.0 / SPENT_SHARE_NEWCOMERS - 1)
    assert estimates.between(fewer, rows["b00"], 4.0 / SPENT_SHARE_NEWCOMERS + 1)
    estimates._spent_s = 1e6
    assert estimates.between(moved, rows["b00"], 1000.0 + LEARN_AGAIN_MAX_S)


def test_only_some_of_very_many_brokers_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BROKERS_MAX", 10)
    world = World()
    estimates = Estimates("b00")
    rows = world.rows()
    estimates.between(rows, rows["b00"], 0.0)
    found = estimates.of([TopicClients("t", (1,), (2,))], {client: world.probes(client) for client in (1, 2)})["t"]
    assert found is not None
    assert found.now.broker == "b00"
    assert {one.broker for one in found.best} <= {"b00", *landmarks_of(rows, 10)}


def test_one_broker_that_is_stuck_hardly_spoils_the_estimates_for_others() -> None:
    world, rows = World(), World().rows()
    stuck = {name: row | {other: 10.0 for other in row if "b03" in (name, other)} for name, row in rows.items()}
    missed = []
    for told in (rows, stuck):
        estimates = Estimates("b00")
        estimates.between(told, told["b00"], 0.0)
        known = {client: world.probes(client) | {"b03": world.of_client(client)[3]} for client in range(30)}
        estimates.of([TopicClients("t", tuple(known), tuple(known))], known)
        others = [number for number, name in enumerate(BROKERS) if name != "b03"]
        truth, found = (
            np.array([row[others] for row in rows_of])
            for rows_of in (
                [np.array(world.of_client(client)) for client in known],
                [estimates._clients[client].all_s for client in known],
            )
        )
        missed.append(float(np.percentile(np.abs(found - truth) / truth, 90)))
    assert missed[1] < 0.2


def test_a_small_cluster_needs_no_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Estimator", None)
    estimates = Estimates("b1")
    estimates.between({"b2": {"b1": 0.01}}, {"b2": 0.01}, 0.0)
    known = {1: {"b1": 0.02, "b2": 0.03}, 2: {"b1": 0.04, "b2": 0.001, "gone": 5.0}}
    found = estimates.of([TopicClients("t", (1,), (2,)), TopicClients("u", (1,), ())], known)
    assert found["u"] is None
    assert found["t"] is not None
    assert [one.broker for one in found["t"].best] == ["b2", "b1"]
    assert found["t"].now.worst_s == pytest.approx(0.03)


def test_a_client_that_has_moved_is_estimated_again_and_the_others_are_not() -> None:
    estimates = Estimates("b1")
    estimates.between({"b2": {"b1": 0.01}}, {"b2": 0.01}, 0.0)
    known = {1: {"b1": 0.02, "b2": 0.02}, 2: {"b1": 0.02, "b2": 0.02}}
    topic = [TopicClients("t", (1,), (2,))]
    estimates.of(topic, known)
    kept = estimates._clients[1].all_s
    known[2] = {"b1": 0.06, "b2": 0.02}
    found = estimates.of(topic, known)["t"]
    assert found is not None
    assert found.now.worst_s == pytest.approx(0.04)
    assert estimates._clients[1].all_s is kept


def test_what_is_remembered_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENTS_MAX", 5)
    estimates = Estimates("b1")
    estimates.between({"b2": {"b1": 0.01}}, {"b2": 0.01}, 0.0)
    for client in range(20):
        pair = {client: {"b1": 0.02, "b2": 0.02}, client + 100: {"b1": 0.02, "b2": 0.02}}
        assert estimates.of([TopicClients("t", (client,), (client + 100,))], pair)["t"] is not None
        assert len(estimates._clients) <= 5


def test_a_client_that_probed_only_brokers_that_are_gone_counts_nowhere() -> None:
    estimates = Estimates("b1")
    estimates.between({"b2": {"b1": 0.01}}, {"b2": 0.01}, 0.0)
    assert estimates.of([TopicClients("t", (1,), (1,))], {1: {"gone": 0.01}}) == {"t": None}


def test_the_best_brokers_that_some_client_has_not_probed_are_sought() -> None:
    world = World()
    estimates = Estimates("b00")
    estimates.between(world.rows(), world.rows()["b00"], 0.0)
    topic = TopicClients("t", (0,), (1, 2))
    known = {client: world.probes(client) for client in (0, 1, 2)}
    found = estimates.of([topic], known)
    assert found["t"] is not None
    best = {one.broker for one in found["t"].best}
    assert estimates.sought([topic], found) == {"t": best - known[0].keys()}
    for client in (0, 1):
        true_s = dict(zip(BROKERS, world.of_client(client), strict=True))
        known[client] = known[client] | {broker: true_s[broker] for broker in best}
    found = estimates.of([topic], known)
    assert estimates.sought([topic], found)["t"] >= best - known[2].keys(), "one client is missing"


def test_measuring_the_best_brokers_finds_a_better_one() -> None:
    world = World(clients=60, seed=4)
    estimates = Estimates("b00")
    estimates.between(world.rows(), world.rows()["b00"], 0.0)
    topics = [TopicClients(f"t{n}", (3 * n,), (3 * n + 1, 3 * n + 2)) for n in range(20)]
    known = {client: world.probes(client, 4) for client in range(60)}

    def regret() -> float:
        """How much longer the worst pair takes over the brokers that are chosen than over the best ones."""
        excess = []
        for topic in topics:
            worst_s = np.max([world.of_client(client) for client in topic.publishers], axis=0) / 2
            worst_s += np.max([world.of_client(client) for client in topic.subscribers], axis=0) / 2
            one = found[topic.topic]
            assert one is not None
            excess.append(worst_s[BROKERS.index(one.best[0].broker)] / worst_s.min() - 1)
        return float(np.mean(excess))

    found = estimates.of(topics, known)
    before = regret()
    for topic, brokers in estimates.sought(topics, found).items():
        for client in (*topics[int(topic[1:])].publishers, *topics[int(topic[1:])].subscribers):
            true_s = world.of_client(client)
            known[client] = known[client] | {broker: true_s[BROKERS.index(broker)] for broker in brokers}
    found = estimates.of(topics, known)
    assert regret() <= before / 2
    assert regret() < 0.01


@pytest.mark.parametrize("brokers", [2, 3, 24])
def test_a_broker_whose_probes_are_blocked_has_no_distance_but_what_clients_measured(brokers: int) -> None:
    world, names = World(), BROKERS[:brokers]
    rows = {
        name: {other: seconds for other, seconds in row.items() if other in names and other != "b00"}
        for name, row in world.rows().items()
        if name in names and name != "b00"
    }
    estimates = Estimates("b00")
    assert estimates.between(rows, {}, 0.0)
    blind = {client: {name: world.of_client(client)[BROKERS.index(name)] for name in names[1:]} for client in range(3)}
    topic = TopicClients("t", (0,), (1, 2))
    assert estimates.of([topic], blind)["t"] is None, "its clients are not judged by a guess"
    seeing = {client: row | {"b00": world.of_client(client)[0]} for client, row in blind.items()}
    assert estimates.of([topic], blind | {0: seeing[0]})["t"] is None, "some of them would be"
    found = estimates.of([topic], seeing)["t"]
    assert found is not None
    assert found.now.publisher_s == pytest.approx(seeing[0]["b00"] / 2, abs=1e-4)


def test_a_broker_that_nobody_can_measure_is_not_among_the_best() -> None:
    world = World()
    rows = {name: {other: s for other, s in row.items() if other != "b01"} for name, row in world.rows().items()}
    rows["b01"] = {}
    estimates = Estimates("b00")
    assert estimates.between(rows, rows["b00"], 0.0)
    known = {client: {name: s for name, s in world.probes(client).items() if name != "b01"} for client in range(2)}
    found = estimates.of([TopicClients("t", (0,), (1,))], known)["t"]
    assert found is not None
    assert len(found.best) == 8
    assert "b01" not in {one.broker for one in found.best}


def test_a_gateway_counts_as_the_farthest_of_its_users() -> None:
    estimates = Estimates("b1")
    estimates.between({"b2": {"b1": 0.01}}, {"b2": 0.01}, 0.0)
    known = {1: {"b1": 0.02, "b2": 0.06}, 2: {"b1": 0.04, "b2": 0.002}}
    plain = TopicClients("t", (1,), (1, 2))
    behind = TopicClients("u", (1,), (1, 2), {2: Behind(0.5, 0.08)})
    found = estimates.of([plain, behind], known)
    assert found["t"] is not None
    assert (found["t"].now.publisher_s, found["t"].now.subscriber_s) == pytest.approx((0.01, 0.02))
    assert found["u"] is not None
    assert (found["u"].now.publisher_s, found["u"].now.subscriber_s) == pytest.approx((0.01, 0.06))
    assert [one.broker for one in found["t"].best] == ["b1", "b2"]
    assert {one.broker: one.worst_s for one in found["u"].best} == pytest.approx({"b1": 0.07, "b2": 0.071})
    one_pair = estimates.of([TopicClients("v", (2,), (2,), {2: Behind(0.1, 0.2)})], known)["v"]
    assert one_pair is not None
    assert one_pair.now.worst_s == one_pair.now.p90_s == pytest.approx(0.04 + 0.15)


def test_users_behind_a_gateway_raise_the_height_of_its_coordinate() -> None:
    estimates = Estimates("b1")
    estimates.between({"b2": {"b1": 0.01}}, {"b2": 0.01}, 0.0)
    estimates.located(
        {name: BrokerCoordinate((0.01 * number, 0.0, 0.001), 0.1) for number, name in enumerate(["b1", "b2"])}
    )
    known = {1: {"b1": 0.02, "b2": 0.02}}
    topics = [TopicClients("t", (1,), (1,)), TopicClients("u", (1,), (1,), {1: Behind(0.0, 0.08)})]
    plain, behind = (found.centroids for found in estimates.of(topics, known).values() if found is not None)
    assert plain is not None
    assert behind is not None
    assert behind.publishers == plain.publishers
    assert behind.subscribers == pytest.approx((*plain.subscribers[:-1], plain.subscribers[-1] + 0.08), abs=1e-5)
