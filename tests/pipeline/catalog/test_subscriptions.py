"""Subscriptions by version: what an execution answers does not change after it was opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.channels import StoredChannel
from nearcast.pipeline.catalog.database import CatalogFull, CatalogLimits

CHANNEL = StoredChannel(
    name="c",
    text="...",
    parameters={"n": "INT"},
    period_s=1.0,
    continuous=False,
    new_datasets=("d",),
    whole_datasets=(),
    columns=("id",),
)


@pytest.fixture
def catalog(tmp_path: Path):
    catalog = Catalog(tmp_path, CatalogLimits(subscriptions=3, channels=1, brokers=2))
    catalog.datasets.create("d", "id INT")
    catalog.create_channel(CHANNEL)
    yield catalog
    catalog.close()


def ids(catalog: Catalog, version: int) -> list[int]:
    return sorted(parameters["n"] for _, parameters in catalog.subscriptions.at("c", version))


def test_a_version_keeps_its_subscriptions(catalog):
    held = {n: catalog.subscriptions.attach("b1", CHANNEL, {"n": n}).subscription for n in (1, 2)}
    before = catalog.channels.numbers("c").version
    catalog.subscriptions.detach("b1", held[1])
    catalog.subscriptions.attach("b1", CHANNEL, {"n": 3})
    assert ids(catalog, before) == [1, 2]
    now = catalog.channels.numbers("c").version
    assert ids(catalog, now) == [2, 3]
    catalog.subscriptions.attach("b2", CHANNEL, {"n": 1})
    assert ids(catalog, now) == [2, 3]
    assert ids(catalog, catalog.channels.numbers("c").version) == [1, 2, 3]
    catalog.subscriptions.forget_removed("c", now)
    assert ids(catalog, now) == [2, 3]


def test_holding_again_changes_no_version(catalog):
    first = catalog.subscriptions.attach("b1", CHANNEL, {"n": 1})
    version = catalog.channels.numbers("c").version
    assert catalog.subscriptions.attach("b1", CHANNEL, {"n": 1}) == first
    assert catalog.subscriptions.attach("b2", CHANNEL, {"n": 1}) == first
    catalog.subscriptions.detach("b1", first.subscription)
    catalog.subscriptions.detach("b1", first.subscription)
    assert catalog.channels.numbers("c").version == version
    catalog.drop_broker("b2")
    assert ids(catalog, version + 1) == []
    assert catalog.channels.numbers("c").held == 0


def test_limits_are_told(catalog):
    for n in range(3):
        catalog.subscriptions.attach("b1", CHANNEL, {"n": n})
    with pytest.raises(CatalogFull, match="3 backend subscriptions"):
        catalog.subscriptions.attach("b1", CHANNEL, {"n": 9})
    catalog.subscriptions.attach("b2", CHANNEL, {"n": 1})
    catalog.brokers.put("b1", "u")
    catalog.brokers.put("b2", "u")
    with pytest.raises(CatalogFull, match="2 brokers"):
        catalog.brokers.put("b3", "u")


def test_the_floor_is_the_oldest_position_that_may_be_asked_for(catalog):
    assert catalog.executions.floor("d", 7) == 0
    catalog.subscriptions.attach("b1", CHANNEL, {"n": 1})
    execution = catalog.executions.next(CHANNEL, {"d": 5})
    assert execution is not None
    assert execution.inputs.new == {"d": (0, 5)}
    assert catalog.executions.next(CHANNEL, {"d": 6}) == execution, "the open one first, with its inputs"
    assert catalog.executions.floor("d", 7) == 0
    assert catalog.executions.commit(execution, {})
    assert not catalog.executions.commit(execution, {}), "once"
    assert catalog.executions.floor("d", 7) == 5
    assert catalog.executions.floor("other", 7) == 7
