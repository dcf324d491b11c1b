"""One task: ranges of real parts become files, each message once, and the manifest says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from nearcast.core.model.logs import Log
from nearcast.core.wire.backend import Credentials
from nearcast.core.wire.batches import encode_batch
from nearcast.core.wire.frames import UserPayload
from nearcast.errors import ConnectFailed
from nearcast.pipeline.ingest.orders import FeedOrder, Manifest, Order
from nearcast.pipeline.ingest.task import ingested
from nearcast.pipeline.logs import ClusterLogs
from nearcast.pipeline.sources.positions import PartRange
from nearcast.pipeline.storage import parse_schema

if TYPE_CHECKING:
    from conftest import Brokers

pytestmark = pytest.mark.live

SCHEMA = "id INT NOT NULL, tags ARRAY<STRING>, s STRUCT<a: INT>, m MAP<STRING, INT>"
NOON_NS = 1_767_268_800_000_000_000


class Kept:
    """A part with entries of our own making."""

    def __init__(self, brokers: Brokers, name: str) -> None:
        self.log: Log = brokers.create_log(name, f"{name}.*")
        brokers.move(f"{name}.0", "b1")
        brokers.publish(f"{name}.0", json.dumps({"id": 0}).encode())
        (self.stream,) = ClusterLogs(brokers.store_url).positions(self.log)
        self.url = brokers.cluster.urls["b1"]
        self._server = brokers.server("b1")
        self.count = 1

    def append(self, *batches: tuple[str, Sequence[bytes | None]]) -> None:
        """One entry."""
        fields: list[bytes | str | int] = []
        for topic, payloads in batches:
            self.count += len(payloads)
            fields += (topic, encode_batch(1, 0xAB, 100, [(payload, NOON_NS) for payload in payloads]))
        self._server.ask("XADD", self.stream, "*", "publisher", "ab", "logs", 1, "count", self.count, *fields)

    def order(self, folder: Path, **changes: Any) -> FeedOrder:
        made = FeedOrder(
            name="f",
            log=self.log.key,
            topic=f"{self.log.name}.*",
            format="json",
            columns=parse_schema(SCHEMA),
            key="",
            since={},
            number=3,
            records=str(folder / "records"),
            dead_letters=str(folder / "dead"),
        )
        return FeedOrder(**{field: changes.get(field, getattr(made, field)) for field in FeedOrder.__struct_fields__})

    def run(self, *orders: FeedOrder, after: int = 0, upto: int = 0) -> Manifest:
        wanted = PartRange(self.stream, after, upto or self.count)
        return ingested(Order(orders, Credentials()), [(wanted, self.url)])


def record(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number} | more).encode()


def rows(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def test_messages_become_rows_with_where_and_when(brokers: Brokers, tmp_path: Path) -> None:
    kept = Kept(brokers, "rows")
    kept.append(("rows.a", [record(1, tags=["x", None], s={"a": 1}, m={"k": 2})]), ("rows.b", [record(2), record(3)]))
    manifest = kept.run(kept.order(tmp_path))
    (outcome,), (read,) = manifest.outcomes, manifest.ranges
    assert (outcome.records, outcome.dead, outcome.dead_letters, read.lost) == (4, 0, None, 0)
    assert outcome.file is not None
    assert outcome.file.bytes == Path(outcome.file.path).stat().st_size
    found = rows(tmp_path / "records")
    assert [(row["id"], row["_topic"], row["_batch"]) for row in found] == [
        *((0, "rows.0", 3), (1, "rows.a", 3), (2, "rows.b", 3), (3, "rows.b", 3))
    ]
    assert (found[1]["tags"], found[1]["s"], found[1]["m"]) == (["x", None], {"a": 1}, [("k", 2)])
    assert found[1]["_published_at"].isoformat() == "2026-01-01T12:00:00+00:00"
    assert found[0]["_ingested_at"] <= found[1]["_ingested_at"] == found[2]["_ingested_at"]


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
def test_two_ranges_have_every_message_once_wherever_they_meet(brokers: Brokers, tmp_path: Path, cut: int) -> None:
    kept = Kept(brokers, f"cut{cut}")
    kept.append((f"cut{cut}.a", [record(1), record(2)]), (f"cut{cut}.b", [record(3)]))
    kept.append((f"cut{cut}.a", [record(4), None, record(5)]))  # the number in the middle was given up
    order = kept.order(tmp_path)
    manifests = [kept.run(order, upto=cut), kept.run(order, after=cut)]
    assert sorted(row["id"] for row in rows(tmp_path / "records")) == [0, 1, 2, 3, 4, 5]
    assert [read.lost for manifest in manifests for read in manifest.ranges] == [0, 0]
    again = kept.run(order, upto=cut)
    assert again == manifests[0]
    assert len(list((tmp_path / "records").iterdir())) == 2, "a range that is read again has the same file"


def test_each_feed_gets_what_it_wants(brokers: Brokers, tmp_path: Path) -> None:
    kept = Kept(brokers, "wants")
    kept.append(("wants.a", [record(1)]), ("wants.b", [record(2)]), ("wants.a", [record(3)]))
    orders = [
        kept.order(tmp_path / "a", name="a", topic="wants.a"),
        kept.order(tmp_path / "late", name="late", since={kept.stream: 2}),
        kept.order(tmp_path / "other", name="other", log="other@1"),
    ]
    outcomes = {outcome.feed: outcome for outcome in kept.run(*orders).outcomes}
    assert {name: outcome.records for name, outcome in outcomes.items()} == {"a": 2, "late": 2, "other": 0}
    assert [row["id"] for row in rows(tmp_path / "a" / "records")] == [1, 3]
    assert [row["id"] for row in rows(tmp_path / "late" / "records")] == [2, 3]
    assert not (tmp_path / "other").exists()


def test_what_cannot_be_read_is_put_aside_with_its_origin(brokers: Brokers, tmp_path: Path) -> None:
    kept = Kept(brokers, "bad")
    user = UserPayload.of("ann", record(7))
    kept.append(("bad.a", [record(1), None, b"x" * 9000, user]))
    (outcome,) = kept.run(kept.order(tmp_path), after=1).outcomes
    assert (outcome.records, outcome.dead) == (2, 1)
    assert [row["id"] for row in rows(tmp_path / "records")] == [1, 7]
    (letter,) = rows(tmp_path / "dead")
    assert (letter["kind"], letter["reason"], letter["topic"]) == ("record", "the payload is not json", "bad.a")
    assert (letter["publisher"], letter["sequence"], len(letter["payload"])) == (f"{0xAB:016x}", "102", 4096)


def test_of_a_key_the_newest_is_written(brokers: Brokers, tmp_path: Path) -> None:
    kept = Kept(brokers, "keyed")
    kept.append(("keyed.a", [record(1, m={"n": 1}), record(2), record(1, m={"n": 2})]))
    kept.append(("keyed.b", [record(2, m={"n": 3})]))
    (outcome,) = kept.run(kept.order(tmp_path, key="id"), after=1).outcomes
    assert outcome.file is not None
    assert (outcome.records, outcome.file.rows) == (4, 2)
    assert [(row["id"], row["m"]) for row in rows(tmp_path / "records")] == [(1, [("n", 2)]), (2, [("n", 3)])]


def test_what_is_gone_is_counted(brokers: Brokers, tmp_path: Path) -> None:
    kept = Kept(brokers, "gone")
    for number in range(1, 6):
        kept.append(("gone.a", [record(2 * number - 1), record(2 * number)]))
    with brokers.server("b1") as server:
        server.ask("XTRIM", kept.stream, "MAXLEN", 2)
    order = kept.order(tmp_path)
    assert [read.lost for read in kept.run(order, upto=8).ranges] == [7]
    assert [row["id"] for row in rows(tmp_path / "records")] == [7]
    nobody = ingested(Order((order,), Credentials()), [(PartRange(kept.stream, 8, 11), "")])
    assert [read.lost for read in nobody.ranges] == [3]
    with pytest.raises(ConnectFailed):
        ingested(Order((order,), Credentials()), [(PartRange(kept.stream, 8, 11), "redis://127.0.0.1:1")])
