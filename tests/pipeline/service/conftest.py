"""A service over a catalogue without Spark, with a feed's dataset that a test can add batches to by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.datasets import Segment
from nearcast.pipeline.catalog.executions import Execution
from nearcast.pipeline.service.app import create_app
from nearcast.pipeline.service.results import measured

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can import hostile.py beside them

REPORTS = "id INT NOT NULL, kind STRING, lat DOUBLE, lon DOUBLE, message STRING"
BY_KIND = (
    "CREATE CHANNEL by_kind(kind STRING) PERIOD 10 SECONDS AS SELECT id, message FROM NEW reports WHERE kind = :kind"
)


class Cluster:
    """The API and, behind it, the catalogue, where a test plays the part of Spark."""

    def __init__(self, folder: Path) -> None:
        self.catalog = Catalog(folder)
        self.app = create_app(self.catalog)
        self.api = TestClient(self.app)

    def add_batch(self, dataset: str = "reports", rows: int = 1) -> None:
        number = self.catalog.datasets.position(dataset) + 1
        segment = Segment(first=number, last=number, rows=rows, bytes=100, made_s=self.catalog.clock())
        self.catalog.datasets.commit(dataset, segment)

    def execute(self, channel: str, results: Mapping[str, list[dict[str, Any]]]) -> Execution:
        """One execution over a new batch that gives these rows."""
        self.add_batch()
        execution = self.catalog.next_execution(self.catalog.channels.get(channel))
        assert execution is not None
        folder = self.catalog.warehouse.results(channel, execution.number)
        folder.mkdir(parents=True)
        rows = [{"subscription_id": name, **row} for name, of_one in results.items() for row in of_one]
        if rows:
            pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")
        assert self.catalog.executions.commit(execution, measured(folder))
        return execution

    def subscribe(self, broker: str, *kinds: str) -> list[str]:
        self.api.put(f"/brokers/{broker}", json={"url": f"http://{broker}"})
        wanted = [{"channel": "by_kind", "parameters": {"kind": kind}} for kind in kinds]
        answer = self.api.post("/subscriptions", json={"broker": broker, "wanted": wanted}).json()
        return [subscribed["subscription"] for subscribed in answer["subscriptions"]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    cluster.catalog.datasets.create("reports", REPORTS)
    assert cluster.api.post("/channels", json={"text": BY_KIND}).status_code == 201
    yield cluster
    cluster.catalog.close()
