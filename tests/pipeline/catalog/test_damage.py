"""A row of the catalogue that cannot be read is set aside and told; the others are served."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from nearcast.errors import UsageError
from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.channels import described
from nearcast.pipeline.catalog.database import Damaged
from nearcast.pipeline.channels.execution import prepare
from nearcast.pipeline.channels.language import parse_channel
from nearcast.pipeline.service.app import create_app

CHANNEL = "CREATE CHANNEL {}(kind STRING) PERIOD 10 SECONDS AS SELECT id FROM NEW reports WHERE kind = :kind"


@pytest.fixture
def catalog(tmp_path):
    opened = Catalog(tmp_path)
    opened.datasets.create("reports", "id INT NOT NULL, kind STRING")
    for name in ("good", "bad"):
        schemas = {"reports": opened.datasets.schema("reports")}
        opened.create_channel(described(prepare(parse_channel(CHANNEL.format(name)), schemas)))
    yield opened
    opened.close()


def damage_channel(catalog: Catalog) -> None:
    """As a period of 400 digits once did: it became null."""
    sql = "UPDATE channels SET definition = replace(definition, '10.0', 'null') WHERE name = 'bad'"
    assert catalog.database.run(sql) == 1


def test_a_damaged_channel_does_not_hide_the_others_and_can_be_dropped(catalog):
    damage_channel(catalog)
    assert [channel.name for channel in catalog.channels.all()] == ["good"]
    api = TestClient(create_app(catalog))
    assert [channel["name"] for channel in api.get("/channels").json()["channels"]] == ["good"]
    (told,) = api.get("/health").json()["damaged"]
    assert told.startswith("channel bad: ")
    refused = api.get("/channels/bad")
    assert refused.status_code == 409
    assert "nearcast channel drop bad" in refused.json()["hint"]
    with pytest.raises(Damaged):
        catalog.channels.get("bad")
    assert api.delete("/channels/bad").status_code == 204
    assert api.get("/health").json()["damaged"] == []


def test_a_damaged_dataset_does_not_hide_the_others_and_can_be_dropped(catalog):
    catalog.datasets.create("odd", "id INT")
    catalog.database.run("UPDATE datasets SET schema = 'id NONSENSE(' WHERE name = 'odd'")
    assert catalog.datasets.names() == ["reports"]
    api = TestClient(create_app(catalog))
    assert [dataset["name"] for dataset in api.get("/datasets").json()["datasets"]] == ["reports"]
    assert api.get("/health").json()["damaged"][0].startswith("dataset odd: ")
    assert api.post("/channels", json={"text": CHANNEL.format("more")}).status_code == 201
    assert api.delete("/datasets/odd").status_code == 204
    assert api.get("/health").json()["damaged"] == []


@pytest.mark.parametrize("period", ["9" * 400, "0.1", "1e3", "99999999999"])
def test_a_period_that_makes_no_sense_is_refused(catalog, period):
    api = TestClient(create_app(catalog))
    text = CHANNEL.format("later").replace("PERIOD 10", f"PERIOD {period}")
    refused = api.post("/channels", json={"text": text})
    assert refused.status_code == 422
    assert "period" in refused.json()["problem"] or "SECONDS" in refused.json()["problem"]
    assert len(api.get("/channels").json()["channels"]) == 2


@pytest.mark.parametrize(
    "schema",
    [
        "n DECIMAL(99, 2)",
        "n DECIMAL(10, 12)",
        "n " + "ARRAY<" * 30 + "INT" + ">" * 30,
        "n STRUCT<a: INT, A: INT>",
        "n MAP<MAP<INT, INT>, INT>",
        ", ".join(f"c{n} INT" for n in range(2001)),
        "n" + "n" * 300 + " INT",
        "n STRUCT<`a b;`: INT>",
    ],
)
def test_a_schema_that_spark_or_parquet_would_not_take_is_refused(catalog, schema):
    with pytest.raises(UsageError):
        catalog.datasets.create("odd", schema)
    assert catalog.datasets.names() == ["reports"]
