"""Retention: files and rows of old results go, and subscriptions that ended are forgotten when nobody needs them."""

from __future__ import annotations

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
    Housekeeping(cluster.catalog, ServiceSettings(keep_s=1e-6)).drop_results()
    assert not any(folder.exists() for folder in folders)
    assert cluster.api.get(f"/results/by_kind/4/{fire}").status_code == 410
    listed = cluster.api.get(f"/subscriptions/{fire}/executions").json()
    assert listed == {"executions": [], "upto": 4, "oldest": 5}


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
