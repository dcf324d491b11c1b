"""Retention: files and rows of old results go, and subscriptions that ended are forgotten when nobody needs them."""

from __future__ import annotations

import time

import pytest

from nearcast.pipeline.catalog.database import EXPIRED_LEAST
from nearcast.pipeline.service import engine
from nearcast.pipeline.service.engine import Housekeeping
from nearcast.pipeline.service.state import ServiceSettings


def test_results_beyond_the_number_kept_lose_their_files(cluster):
    (fire,) = cluster.subscribe("b1", "fire")
    for number in range(4):
        cluster.execute("by_kind", {fire: [{"id": number, "message": ""}]})
    folders = [cluster.catalog.warehouse.results("by_kind", number) for number in (1, 2, 3, 4)]
    Housekeeping(cluster.catalog, ServiceSettings(keep_executions=2)).drop_results()
    assert [folder.exists() for folder in folders] == [False, False, True, True]
    told = cluster.api.get("/brokers/b1/notifications?after=0&wait_s=0").json()["notifications"]
    assert [notification["execution"] for notification in told] == [3, 4]
    for number in (3, 4):
        assert cluster.api.get(f"/results/by_kind/{number}/{fire}").status_code == 200
    Housekeeping(cluster.catalog, ServiceSettings(keep_s=1e-6)).drop_results()
    assert not any(folder.exists() for folder in folders)
    assert cluster.api.get(f"/results/by_kind/4/{fire}").status_code == 410
    listed = cluster.api.get(f"/subscriptions/{fire}/executions").json()
    assert listed == {"executions": [], "upto": 4, "oldest": 5, "problem": ""}


def oldest(cluster) -> int:
    return cluster.catalog.channels.numbers("by_kind").oldest


@pytest.mark.parametrize("hours", [25, 24 * 400, -25])
def test_a_wall_clock_that_is_set_expires_nothing(cluster, monkeypatch, hours):
    (fire,) = cluster.subscribe("b1", "fire")
    cluster.execute("by_kind", {fire: [{"id": 1, "message": ""}]})
    assert cluster.api.get(f"/results/by_kind/1/{fire}").status_code == 200
    there_s = time.time()
    monkeypatch.setattr(time, "time", lambda: there_s + hours * 3600)
    Housekeeping(cluster.catalog, ServiceSettings()).drop_results()
    assert oldest(cluster) == 1
    assert cluster.api.get(f"/results/by_kind/1/{fire}").status_code == 200


def test_what_nobody_has_fetched_does_not_grow_old(cluster):
    (fire,) = cluster.subscribe("b1", "fire")
    for number in (1, 2, 3):
        cluster.execute("by_kind", {fire: [{"id": number, "message": ""}]})
    housekeeping = Housekeeping(cluster.catalog, ServiceSettings(keep_s=1e-6))
    housekeeping.drop_results()
    assert oldest(cluster) == 1
    assert cluster.api.get(f"/results/by_kind/1/{fire}").status_code == 200
    housekeeping.drop_results()
    assert oldest(cluster) == 2, "the first was fetched, the second was not"
    cluster.catalog.drop_broker("b1")
    housekeeping.drop_results()
    assert oldest(cluster) == 4, "nobody holds the subscription any more"


def test_the_number_of_executions_ends_what_nobody_fetches_and_it_is_said(cluster, caplog):
    (fire,) = cluster.subscribe("b1", "fire")
    for number in (1, 2, 3):
        cluster.execute("by_kind", {fire: [{"id": number, "message": ""}]})
    Housekeeping(cluster.catalog, ServiceSettings(keep_executions=1)).drop_results()
    assert oldest(cluster) == 3
    assert "executions 1 to 2, some not yet fetched" in caplog.text


def test_a_round_drops_a_small_share(cluster):
    cluster.subscribe("b1", "fire")
    for _ in range(2 * EXPIRED_LEAST):
        cluster.execute("by_kind", {})
    housekeeping = Housekeeping(cluster.catalog, ServiceSettings(keep_s=1e-6))
    housekeeping.drop_results()
    assert oldest(cluster) == 1 + EXPIRED_LEAST
    housekeeping.drop_results()
    assert oldest(cluster) == 1 + 2 * EXPIRED_LEAST


def test_a_dropped_channel_leaves_no_files(cluster):
    (fire,) = cluster.subscribe("b1", "fire")
    cluster.execute("by_kind", {fire: [{"id": 1, "message": ""}]})
    cluster.catalog.drop_channel("by_kind")
    Housekeeping(cluster.catalog, ServiceSettings()).drop_results()
    assert not cluster.catalog.warehouse.results("by_kind", 1).exists()
    assert cluster.catalog.database.rows("SELECT * FROM executions") == []


def test_subscriptions_that_ended_stay_for_an_open_execution(cluster):
    (fire,) = cluster.subscribe("b1", "fire")
    cluster.add_batch()
    execution = cluster.catalog.next_execution(cluster.catalog.channels.get("by_kind"))
    cluster.catalog.subscriptions.detach("b1", fire)
    housekeeping = Housekeeping(cluster.catalog, ServiceSettings())
    housekeeping.forget_subscriptions()
    assert cluster.catalog.subscriptions.at("by_kind", execution.version) == [(fire, {"kind": "fire"})]
    cluster.catalog.executions.commit(execution, {})
    housekeeping.forget_subscriptions()
    assert cluster.catalog.database.rows("SELECT * FROM subscriptions") == []


AWAY_S = ServiceSettings().broker_away_s


@pytest.fixture
def later(cluster, monkeypatch):
    """Lets seconds of running time go by: `later(10)`."""
    clock, gone_s = cluster.catalog.brokers._clock, 0.0

    def go_by(seconds: float) -> None:
        nonlocal gone_s
        gone_s += seconds

    monkeypatch.setattr(cluster.catalog.brokers, "_clock", lambda: clock() + gone_s)
    return go_by


def held(cluster) -> dict[str, int]:
    return {broker["broker"]: broker["held"] for broker in cluster.api.get("/brokers").json()["brokers"]}


def test_a_broker_that_is_silent_while_others_are_heard_is_released(cluster, later, caplog):
    cluster.subscribe("b1", "fire", "flood")
    cluster.subscribe("b2", "fire")
    housekeeping = Housekeeping(cluster.catalog, ServiceSettings())
    for _ in range(10):
        later(AWAY_S / 9.5)
        housekeeping.release_brokers()
        assert cluster.api.get("/brokers/b2/notifications?after=0&wait_s=0").status_code == 200
    assert held(cluster) == {"b1": 2, "b2": 1}
    housekeeping.release_brokers()
    assert held(cluster) == {"b2": 1}
    assert cluster.api.get("/channels/by_kind").json()["subscriptions"] == 1, "what another holds goes on"
    assert "broker b1 was not heard from for 168 h: the 2 subscriptions it holds end" in caplog.text
    assert cluster.api.get("/brokers/b1/notifications?after=0").status_code == 404, "so it introduces itself again"
    cluster.subscribe("b1", "fire", "flood")
    housekeeping.release_brokers()
    assert held(cluster) == {"b1": 2, "b2": 1}


def test_if_all_are_silent_or_a_clock_is_set_nobody_is_released(cluster, later, monkeypatch):
    for broker in ("b1", "b2"):
        cluster.subscribe(broker, "fire")
    later(100 * AWAY_S)
    there_s = time.time()
    monkeypatch.setattr(time, "time", lambda: there_s + 100 * AWAY_S)
    Housekeeping(cluster.catalog, ServiceSettings()).release_brokers()
    assert held(cluster) == {"b1": 1, "b2": 1}


def test_a_round_releases_a_part_and_a_broker_that_comes_back_keeps_the_rest(cluster, later, monkeypatch):
    monkeypatch.setattr(engine, "RELEASED_MOST", 2)
    cluster.subscribe("b1", *"abcde")
    later(2 * AWAY_S)
    cluster.subscribe("b2", "fire")
    housekeeping = Housekeeping(cluster.catalog, ServiceSettings())
    housekeeping.release_brokers()
    assert cluster.api.get("/channels/by_kind").json()["subscriptions"] == 1 + 3
    cluster.subscribe("b1", "a", "b", "c", "d")
    housekeeping.release_brokers()
    assert set("abcd") <= {values["kind"] for _, values in subscribed(cluster)}
    assert held(cluster)["b1"] >= 4


def subscribed(cluster) -> list:
    return cluster.catalog.subscriptions.at("by_kind", cluster.catalog.channels.numbers("by_kind").version)
