"""Brokers find their coordinates through the leader, and clients are placed among them."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from nearcast.agent.estimates import Estimates
from nearcast.agent.locating import SETTINGS, Locating
from nearcast.coordinates.embedding import placed
from nearcast.core.agent.followers import TopicClients
from nearcast.core.model.distances import BrokerCoordinate

PLACES = [(0.0, 0.0), (0.08, 0.0), (0.0, 0.06), (0.08, 0.06), (0.04, 0.1)]
NAMES = [f"b{number}" for number in range(len(PLACES))]


def round_trip_s(one: tuple[float, float], other: tuple[float, float]) -> float:
    return math.dist(one, other) + 0.004


def rows() -> dict[str, dict[str, float]]:
    return {
        name: {other: round_trip_s(here, there) for other, there in zip(NAMES, PLACES, strict=True) if other != name}
        for name, here in zip(NAMES, PLACES, strict=True)
    }


def found_after(messages: int) -> dict[str, BrokerCoordinate]:
    """What all agents say after so many messages of the leader."""
    agents = {name: Locating(Random(name)) for name in NAMES}
    known: dict[str, BrokerCoordinate] = {}
    for _ in range(messages):
        known = {name: agent.heard(known, rows()[name]) for name, agent in agents.items()}
    return known


def apart_s(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return math.dist(one[:-1], other[:-1]) + one[-1] + other[-1]


def test_brokers_know_where_they_are_after_a_few_messages() -> None:
    known = found_after(12)
    errors = [
        abs(apart_s(known[one].point_s, known[other].point_s) - true_s) / true_s
        for one, row in rows().items()
        for other, true_s in row.items()
    ]
    assert np.median(errors) < 0.1
    assert {len(one.point_s) for one in known.values()} == {SETTINGS.dimensions + 1}


def test_what_cannot_be_a_coordinate_moves_nobody() -> None:
    before = found_after(12)
    agent = Locating(Random("b0"))
    nan, nowhere = BrokerCoordinate((math.nan,) * 5, 0.1), BrokerCoordinate((0.1, 0.1), 0.1)
    here = agent.heard({"b1": nan, "b2": nowhere}, rows()["b0"])
    assert here == Locating(Random("b0")).heard({}, {})
    assert not nan.possible
    assert before["b0"].possible
    assert agent.heard(before, rows()["b0"]) != here


def test_clients_are_placed_at_the_distances_they_have_measured() -> None:
    brokers = np.array([(*place, 0.002) for place in PLACES])
    clients = [(0.02, 0.03), (0.07, 0.05)]
    probed = np.array([[round_trip_s(client, place) for place in PLACES] for client in clients])
    found = placed(brokers, np.vstack([probed, np.full(len(PLACES), np.nan)]))
    for client, point in zip(clients, found[:2], strict=True):
        assert math.dist(client, point[:2]) < 0.004
    assert np.isnan(found[2]).all()


def test_centroids_are_reported_if_they_are_wanted() -> None:
    known = found_after(12)
    estimates = Estimates("b0")
    estimates.between(rows(), rows()["b0"], 0.0)
    topic = [TopicClients("t", (1,), (1, 2))]
    measured = {
        client: {name: round_trip_s(place, there) for name, there in zip(NAMES, PLACES, strict=True)}
        for client, place in ((1, (0.07, 0.01)), (2, (0.08, 0.02)))
    }
    plain = estimates.of(topic, measured)["t"]
    assert plain is not None
    assert plain.centroids is None
    assert estimates.located(known)
    assert not estimates.located(known)
    found = estimates.of(topic, measured)["t"]
    assert found is not None
    assert found.best == plain.best
    assert found.centroids is not None
    nearest = min(NAMES, key=lambda name: apart_s(known[name].point_s, found.centroids.publishers))
    assert nearest == "b1"
    at_b1_s = (apart_s(known["b1"].point_s, found.centroids.publishers)) / 2
    at_b1_s += (apart_s(known["b1"].point_s, found.centroids.subscribers) + found.centroids.deviation_s) / 2
    assert at_b1_s >= 0.9 * next(one.worst_s for one in found.best if one.broker == "b1"), "W(t, b) bounds E(t)"
    assert estimates.located({})
    assert estimates.of(topic, measured)["t"] == plain


@pytest.mark.parametrize("strange", [BrokerCoordinate((0.1, 0.1), 0.1)])
def test_a_broker_with_another_kind_of_coordinate_does_not_count(strange: BrokerCoordinate) -> None:
    estimates = Estimates("b0")
    estimates.between(rows(), rows()["b0"], 0.0)
    estimates.located(found_after(12) | {"b1": strange, "gone": strange})
    known = {1: rows()["b2"] | {"b2": 0.001}}
    found = estimates.of([TopicClients("t", (1,), (1,))], known)["t"]
    assert found is not None
    assert found.centroids is not None
