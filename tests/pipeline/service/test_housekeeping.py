"""Retention: files and rows of old results go, and subscriptions that ended are forgotten when nobody needs them."""

from __future__ import annotations

import time

import pytest

from nearcast.pipeline.catalog.limits import EXPIRED_LEAST
from nearcast.pipeline.service.housekeeping import Housekeeping
from nearcast.pipeline.service.settings import ServiceSettings


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
    assert "executions from 1 to 2 go, some of which nobody has fetched" in caplog.text


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
