"""Who uses which topics, and how far they are, as clients say."""

from __future__ import annotations

import pytest

from nearcast.core.agent import clients as module
from nearcast.core.agent.clients import FORGET_S, Clients, TopicClients
from nearcast.core.model.counters import Behind, ClientReport, Role

NEAR = {"b1": 0.01}
P, S = int(Role.PUBLISHES), int(Role.SUBSCRIBES)


def report(client: int, uses: dict[str, int] | None = None, patterns=(), **round_trips_s: float) -> ClientReport:
    return ClientReport(client, 0.0, {}, uses=uses or {}, patterns=tuple(patterns), round_trips_s=round_trips_s or NEAR)


def test_clients_are_known_by_topic_and_role() -> None:
    clients = Clients()
    clients.heard(report(1, {"t": P}), 0.0)
    clients.heard(report(2, {"t": S, "u": P | S}), 0.0)
    assert sorted(clients.take(10), key=lambda one: one.topic) == [
        TopicClients("t", (1,), (2,)),
        TopicClients("u", (2,), (2,)),
    ]
    assert clients.take(10) == [], "nothing is new"
    assert clients.round_trips_s([1, 2]) == {1: NEAR, 2: NEAR}


def test_only_what_changes_is_new() -> None:
    clients = Clients()
    clients.heard(report(1, {"t": P}), 0.0)
    clients.heard(report(2, {"u": P}), 0.0)
    clients.take(10)
    clients.heard(report(1, {"t": P}), 5.0)
    assert clients.take(10) == []
    clients.heard(report(1, b1=0.02), 6.0)
    assert [one.topic for one in clients.take(10)] == ["t"]
    clients.heard(report(2, {"u": P | S}), 6.0)
    assert [one.topic for one in clients.take(10)] == ["u"]
    clients.all_again()
    assert len(clients.take(1)) == len(clients.take(10)) == 1


def test_what_is_not_said_again_is_forgotten() -> None:
    clients = Clients()
    clients.heard(report(1, {"t": P, "u": S}, ["p*"]), 0.0)
    clients.take(10)
    clients.heard(report(1, {"t": P}), FORGET_S)
    clients.tick(FORGET_S + 1)
    assert clients.take(10) == [TopicClients("u", (), ())]
    clients.tick(3 * FORGET_S)
    assert clients.take(10) == [TopicClients("t", (), ())]
    assert (clients._clients, clients._patterns, clients._uses) == ({}, {}, 0)


def test_pattern_subscribers_count_for_topics_that_others_use() -> None:
    clients = Clients()
    clients.heard(report(1, {"game.1": P, "chat": P}), 0.0)
    clients.take(10)
    clients.heard(report(2, patterns=["game.*"]), 0.0)
    assert clients.take(10) == [TopicClients("game.1", (1,), (2,))]
    clients.heard(report(2, b1=0.05), 1.0)
    assert [one.topic for one in clients.take(10)] == ["game.1"], "it has moved"
    clients.heard(report(1, {"game.2": P}), 1.0)
    assert clients.take(10) == [TopicClients("game.2", (1,), (2,))]


@pytest.mark.parametrize("lie", [0.0, -1.0, 11.0, 1e300, float("nan"), float("inf")])
def test_an_impossible_round_trip_is_not_taken(lie: float) -> None:
    clients = Clients()
    clients.heard(report(1, {"t": P}), 0.0)
    clients.heard(report(1, {"t": P}, b1=lie), 1.0)
    assert clients.round_trips_s([1]) == {1: NEAR}
    assert clients.dropped == 1


def test_nothing_grows_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLIENTS_MAX", "USES_MAX", "PATTERNS_MAX"):
        monkeypatch.setattr(module, name, 3)
    clients = Clients()
    for client in range(10):
        clients.heard(report(client, {f"t{client}.{number}": S for number in range(10)}, [f"{client}*"]), 0.0)
    many = {f"b{number}": 0.01 for number in range(module.PROBED_MAX + 1)}
    clients.heard(report(0, {"t0.0": S}, **many), 0.0)
    assert len(clients._clients) == len(clients._patterns) == clients._uses == 3
    assert clients.round_trips_s([0]) == {0: NEAR}


@pytest.mark.parametrize("topic", ["", "nc:s", "x" * 600, "\ud800"])
def test_names_that_are_no_topics_are_dropped(topic: str) -> None:
    clients = Clients()
    clients.heard(report(1, {topic: P, "t": 8}), 0.0)
    assert clients.take(10) == []
    assert clients.dropped == 2


def test_a_client_that_has_measured_nothing_counts_nowhere() -> None:
    clients = Clients()
    clients.heard(ClientReport(1, 0.0, {}, uses={"t": P}), 0.0)
    assert clients.take(10) == [TopicClients("t", (), ())]


# --- users behind a gateway


def through_gateway(behind: Behind | None, uses: int = P | S, client: int = 1) -> ClientReport:
    found = {} if behind is None else {"t": behind, "another": Behind(1.0, 1.0)}
    return ClientReport(client, 0.0, {}, uses={"t": uses}, round_trips_s=NEAR, behind=found)


def test_users_behind_a_client_are_known_by_topic_until_they_leave() -> None:
    clients = Clients()
    clients.heard(report(2, {"t": P}), 0.0)
    clients.heard(through_gateway(Behind(0.0, 0.08)), 0.0)
    assert clients.take(10) == [TopicClients("t", (2, 1), (1,), {1: Behind(0.0, 0.08)})]
    clients.heard(through_gateway(None), 5.0)
    assert clients.take(10) == [TopicClients("t", (2, 1), (1,))]


def test_small_changes_of_users_distances_are_no_news_until_they_add_up() -> None:
    clients = Clients()
    clients.heard(through_gateway(Behind(0.0, 0.08)), 0.0)
    clients.take(10)
    for behind_s in (0.0801, 0.079, 0.087, 0.074):
        clients.heard(through_gateway(Behind(0.0, behind_s)), 1.0)
    assert clients.take(10) == []
    clients.heard(through_gateway(Behind(0.0, 0.089)), 2.0)
    assert clients.take(10)[0].behind == {1: Behind(0.0, 0.089)}
    clients.heard(through_gateway(Behind(0.0011, 0.089)), 3.0)
    assert clients.take(10)[0].behind == {1: Behind(0.0011, 0.089)}


@pytest.mark.parametrize("lie", [-0.01, 10.1, 1e300, float("nan"), float("inf")])
def test_users_at_an_impossible_distance_are_not_counted(lie: float) -> None:
    clients = Clients()
    for number, behind in enumerate([Behind(lie, 0.0), Behind(0.01, lie)], start=1):
        clients.heard(through_gateway(behind), 0.0)
        assert clients._of("t") == TopicClients("t", (1,), (1,))
        assert clients.dropped == number
