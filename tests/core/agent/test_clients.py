"""Who uses which topics, and how far they are, as clients say."""

from __future__ import annotations

import time

import pytest

from nearcast.core.agent import clients as module
from nearcast.core.agent import followers
from nearcast.core.agent.clients import FORGET_S, PAUSED_S, USES_EACH_MAX, Clients
from nearcast.core.agent.followers import TopicClients
from nearcast.core.model.counters import PROBED_MAX, Behind, ClientReport, Role

NEAR = {"b1": 0.01}
P, S = int(Role.PUBLISHES), int(Role.SUBSCRIBES)


def report(client: int, uses: dict[str, int] | None = None, patterns=(), **round_trips_s: float) -> ClientReport:
    return ClientReport(client, 0.0, {}, uses=uses or {}, patterns=tuple(patterns), round_trips_s=round_trips_s or NEAR)


def take(clients: Clients, count: int = 10) -> list[TopicClients]:
    """What is new, as the part of the agent that estimates distances gets it."""
    taken = clients.take(count)
    clients.again(taken.concerned())
    found = taken.complete()
    return found + clients.take(count - len(found)).complete() if taken.moved else found


def tick(clients: Clients, since_s: float, until_s: float) -> None:
    for now_s in range(round(since_s), round(until_s) + 1):
        clients.tick(float(now_s))


def test_clients_are_known_by_topic_and_role() -> None:
    clients = Clients()
    clients.heard(report(1, {"t": P}), 0.0)
    clients.heard(report(2, {"t": S, "u": P | S}), 0.0)
    assert sorted(take(clients), key=lambda one: one.topic) == [
        TopicClients("t", (1,), (2,)),
        TopicClients("u", (2,), (2,)),
    ]
    assert take(clients) == [], "nothing is new"
    assert clients.round_trips_s([1, 2]) == {1: NEAR, 2: NEAR}


def test_only_what_changes_is_new() -> None:
    clients = Clients()
    clients.heard(report(1, {"t": P}), 0.0)
    clients.heard(report(2, {"u": P}), 0.0)
    take(clients)
    clients.heard(report(1, {"t": P}), 5.0)
    assert take(clients) == []
    clients.heard(report(1, b1=0.02), 6.0)
    assert [one.topic for one in take(clients)] == ["t"]
    clients.heard(report(2, {"u": P | S}), 6.0)
    assert [one.topic for one in take(clients)] == ["u"]
    clients.all_again()
    assert len(take(clients, 1)) == len(take(clients)) == 1


def test_what_is_not_said_again_is_forgotten() -> None:
    clients = Clients()
    clients.heard(report(1, {"t": P, "u": S}, ["p*"]), 0.0)
    take(clients)
    clients.heard(report(1, {"t": P}), FORGET_S)
    tick(clients, 0, FORGET_S + 6)
    assert take(clients) == [TopicClients("u", (), ())]
    tick(clients, FORGET_S + 7, 3 * FORGET_S)
    assert take(clients) == [TopicClients("t", (), ())]
    assert (clients._clients, clients._topics, clients._uses) == ({}, {}, 0)
    assert (clients._followers.by_pattern, clients._followers._said, clients._followers._follows) == ({}, {}, 0)


def test_pattern_subscribers_count_for_topics_that_others_use() -> None:
    clients = Clients()
    clients.heard(report(1, {"game.1": P, "chat": P}), 0.0)
    take(clients)
    clients.heard(report(2, patterns=["game.*"]), 0.0)
    assert take(clients) == [TopicClients("game.1", (1,), (2,))]
    clients.heard(report(2, b1=0.05), 1.0)
    assert [one.topic for one in take(clients)] == ["game.1"], "it has moved"
    clients.heard(report(1, {"game.2": P}), 1.0)
    assert take(clients) == [TopicClients("game.2", (1,), (2,))]


@pytest.mark.parametrize("lie", [0.0, -1.0, 11.0, 1e300, float("nan"), float("inf")])
def test_an_impossible_round_trip_is_not_taken(lie: float) -> None:
    clients = Clients()
    clients.heard(report(1, {"t": P}), 0.0)
    clients.heard(report(1, {"t": P}, b1=lie), 1.0)
    assert clients.round_trips_s([1]) == {1: NEAR}
    assert clients.dropped == 1


def test_nothing_grows_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLIENTS_MAX", "USES_MAX"):
        monkeypatch.setattr(module, name, 3)
    monkeypatch.setattr(followers, "PATTERNS_MAX", 3)
    clients = Clients()
    for client in range(10):
        clients.heard(report(client, {f"t{client}.{number}": S for number in range(10)}, [f"{client}*"]), 0.0)
    many = {f"b{number}": 0.01 for number in range(PROBED_MAX + 1)}
    clients.heard(report(0, {"t0.0": S}, **many), 0.0)
    assert len(clients._clients) == len(clients._followers.by_pattern) == clients._uses == 3
    assert clients.round_trips_s([0]) == {0: NEAR}


@pytest.mark.parametrize("topic", ["", "nc:s", "x" * 600, "\ud800"])
def test_names_that_are_no_topics_are_dropped(topic: str) -> None:
    clients = Clients()
    clients.heard(report(1, {topic: P, "t": 8}), 0.0)
    assert take(clients) == []
    assert clients.dropped == 2


def test_a_client_that_has_measured_nothing_counts_nowhere() -> None:
    clients = Clients()
    clients.heard(ClientReport(1, 0.0, {}, uses={"t": P}), 0.0)
    assert take(clients) == [TopicClients("t", (), ())]


# --- what a liar could do


def test_one_client_cannot_take_all_room() -> None:
    clients = Clients()
    for number in range(40):
        clients.heard(
            report(1, {f"t{number}.{use}": P for use in range(1000)}, [f"{number}.{p}*" for p in range(50)]), 0
        )
    assert clients._uses == USES_EACH_MAX
    assert clients._followers._follows == followers.EACH_MAX
    clients.heard(report(2, {"t": P}), 0.0)
    assert clients._uses == USES_EACH_MAX + 1


def test_topics_that_end_unheard_are_not_kept() -> None:
    """Without NumPy nobody takes what is new."""
    clients = Clients()
    for turn in range(10):
        now_s = 100.0 * turn
        clients.heard(report(1, {f"{turn}.{number}": P for number in range(100)}), now_s)
        tick(clients, now_s, now_s + 2 * FORGET_S)
    assert (len(clients._changed), len(clients._given)) == (0, 0)


def test_a_topic_that_ends_is_news_only_once() -> None:
    clients = Clients()
    clients.heard(report(1, {"t": P}), 0.0)
    take(clients)
    tick(clients, 0, 2 * FORGET_S)
    assert take(clients) == [TopicClients("t", (), ())]
    assert (take(clients), clients._given) == ([], set())


def test_no_report_takes_long() -> None:
    """Patterns that are slow to compare, and 100,000 topics: comparing is left to `Taken`."""
    clients = Clients()
    for client in range(100):
        clients.heard(report(client, {f"topic.aaa{number}.{client}": P for number in range(1000)}), 0.0)
    patterns = [f"*a*a*a*{number}*b" for number in range(100)]
    taken_s = []
    for round_trip_s in (0.01, 0.02):
        began_s = time.perf_counter()
        clients.heard(report(100, patterns=patterns, b1=round_trip_s), 0.0)
        clients.take(2000)
        taken_s.append(time.perf_counter() - began_s)
    assert min(taken_s) < 0.25, "it would be 50 times as long"


def test_a_report_of_a_million_uses_is_cut_off() -> None:
    clients = Clients()
    clients.heard(report(1, {f"t{number}": P for number in range(5000)}), 0.0)
    assert (clients._uses, clients.dropped) == (1000, 4000)


def test_forgetting_is_done_little_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKS_MAX", 10)
    clients = Clients()
    for client in range(100):
        clients.heard(report(client, {"t": P}), 0.0)
    clients.tick(FORGET_S + 1)
    assert len(clients._clients) == 95
    tick(clients, FORGET_S + 2, 2 * FORGET_S + 10)
    assert clients._clients == {}


def test_an_agent_that_was_paused_first_listens() -> None:
    clients = Clients()
    clients.heard(report(1, {"t": P}), 0.0)
    tick(clients, 0, 1)
    take(clients)
    late_s = FORGET_S + PAUSED_S + 1
    tick(clients, late_s, late_s + 1)
    assert take(clients) == [], "its reports still wait to be read"
    clients.heard(report(1, {"t": P}), late_s + 1)
    tick(clients, late_s + 2, late_s + FORGET_S)
    assert take(clients) == []
    tick(clients, late_s + FORGET_S, late_s + 3 * FORGET_S)
    assert take(clients) == [TopicClients("t", (), ())], "it is silent in fact"


# --- users behind a gateway


def through_gateway(behind: Behind | None, uses: int = P | S, client: int = 1) -> ClientReport:
    found = {} if behind is None else {"t": behind, "another": Behind(1.0, 1.0)}
    return ClientReport(client, 0.0, {}, uses={"t": uses}, round_trips_s=NEAR, behind=found)


def test_users_behind_a_client_are_known_by_topic_until_they_leave() -> None:
    clients = Clients()
    clients.heard(report(2, {"t": P}), 0.0)
    clients.heard(through_gateway(Behind(0.0, 0.08)), 0.0)
    assert take(clients) == [TopicClients("t", (2, 1), (1,), {1: Behind(0.0, 0.08)})]
    clients.heard(through_gateway(None), 5.0)
    assert take(clients) == [TopicClients("t", (2, 1), (1,))]


def test_small_changes_of_users_distances_are_no_news_until_they_add_up() -> None:
    clients = Clients()
    clients.heard(through_gateway(Behind(0.0, 0.08)), 0.0)
    take(clients)
    for behind_s in (0.0801, 0.079, 0.087, 0.074):
        clients.heard(through_gateway(Behind(0.0, behind_s)), 1.0)
    assert take(clients) == []
    clients.heard(through_gateway(Behind(0.0, 0.089)), 2.0)
    assert take(clients)[0].behind == {1: Behind(0.0, 0.089)}
    clients.heard(through_gateway(Behind(0.0011, 0.089)), 3.0)
    assert take(clients)[0].behind == {1: Behind(0.0011, 0.089)}


@pytest.mark.parametrize("lie", [-0.01, 10.1, 1e300, float("nan"), float("inf")])
def test_users_at_an_impossible_distance_are_not_counted(lie: float) -> None:
    clients = Clients()
    for number, behind in enumerate([Behind(lie, 0.0), Behind(0.01, lie)], start=1):
        clients.heard(through_gateway(behind), 0.0)
        assert clients._of("t") == TopicClients("t", (1,), (1,))
        assert clients.dropped == number
