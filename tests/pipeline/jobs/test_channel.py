"""Executions with real Spark: what they give, and that a crash between any two steps loses and repeats nothing."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from nearcast.pipeline import storage
from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.channels import StoredChannel, described
from nearcast.pipeline.catalog.database import Conflict
from nearcast.pipeline.channels.analysis import analyse
from nearcast.pipeline.channels.execution import prepare
from nearcast.pipeline.channels.language import parse_channel
from nearcast.pipeline.jobs import channel as channel_module
from nearcast.pipeline.jobs.channel import TRIES, ChannelJob
from nearcast.pipeline.service.engine import Housekeeping
from nearcast.pipeline.service.results import Results
from nearcast.pipeline.service.state import ServiceSettings

NEAR = (
    "CREATE CHANNEL near(kind STRING, least INT) PERIOD 10 SECONDS AS SELECT r.id, r.kind, s.name AS shelter "
    "FROM NEW reports r LEFT JOIN shelters s ON s.kind = r.kind WHERE r.kind = :kind AND r.level >= :least"
)
SHELTERS = {"fire": "hall", "flood": "hill"}
KINDS = ["fire", "flood", "storm"]


class Crash(Exception):
    """Stands for a SIGKILL at this point."""


@pytest.fixture(scope="module")
def prepared_folder(spark, tmp_path_factory) -> Path:
    """A data cluster's folder with its datasets and its channel, to be copied."""
    folder = tmp_path_factory.mktemp("prepared")
    catalog = Catalog(folder)
    catalog.datasets.create("reports", "id INT NOT NULL, kind STRING, level INT")
    (folder / "shelters.csv").write_text("kind,name\n" + "".join(f"{k},{n}\n" for k, n in SHELTERS.items()))
    catalog.datasets.load(spark, "shelters", folder / "shelters.csv", "csv")
    catalog.brokers.put("b1", "http://b1")
    create(spark, catalog, NEAR)
    catalog.close()
    return folder


def create(spark, catalog: Catalog, text: str) -> None:
    schemas = {name: catalog.datasets.schema(name) for name in catalog.datasets.names()}
    prepared = analyse(spark, parse_channel(text), schemas)
    catalog.create_channel(described(prepared), replaces=prepared.channel.replaces)


class World:
    """A folder that can be opened again after a crash, and what a plain loop says the results must be."""

    def __init__(self, spark, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.expected: Counter = Counter()
        self.held: dict[str, tuple[str, int]] = {}
        self.catalog = Catalog(folder)
        self.job = ChannelJob(spark, self.catalog, self.channel)

    def restart(self) -> None:
        """As a new process does."""
        self.catalog.close()
        self.catalog = Catalog(self.folder)
        self.job = ChannelJob(self.spark, self.catalog, self.channel)

    @property
    def channel(self) -> StoredChannel:
        return self.catalog.channels.get("near")

    def subscribe(self, kind: str, least: int) -> str:
        found = self.catalog.subscriptions.attach("b1", self.channel, {"kind": kind, "least": least})
        self.held[found.subscription] = (kind, least)
        return found.subscription

    def unsubscribe(self, subscription: str) -> None:
        self.catalog.subscriptions.detach("b1", subscription)
        del self.held[subscription]

    def report(self, *ids: int) -> None:
        """A batch of reports, and what those subscribed now are to get from it."""
        datasets = self.catalog.datasets
        rows = [(number, KINDS[number % 3], number % 5) for number in ids]
        for name, (kind, least) in self.held.items():
            for number, of_kind, level in rows:
                if of_kind == kind and level >= least:
                    self.expected[(name, number, kind, SHELTERS.get(kind))] += 1
        full = [(*row, "t", None, None) for row in rows]
        schema = "id INT, kind STRING, level INT, _topic STRING, _published_at TIMESTAMP, _ingested_at TIMESTAMP"
        frame = self.spark.createDataFrame(full, schema)
        datasets.commit("reports", datasets.write(datasets.describe("reports"), frame, len(rows)))

    def execute(self) -> int | None:
        execution = self.catalog.next_execution(self.channel)
        if execution is None:
            return None
        assert self.job.run(execution)
        return execution.number

    def results(self) -> Counter:
        """Everything that the index names, read as the service reads it."""
        stored = Results(self.catalog.warehouse.results)
        found: Counter = Counter()
        for row in self.catalog.database.rows("SELECT * FROM results"):
            rows = stored.rows("near", row["number"], [row["subscription"]])[row["subscription"]]
            assert len(rows) == row["rows"]
            for result in rows:
                found[(row["subscription"], result["id"], result["kind"], result["shelter"])] += 1
        return found


@pytest.fixture
def world(spark, prepared_folder, tmp_path):
    world = World(spark, shutil.copytree(prepared_folder, tmp_path / "data"))
    yield world
    world.catalog.close()


def test_executions_give_each_subscription_its_new_records(world):
    world.subscribe("fire", 0)
    storm = world.subscribe("storm", 3)
    assert world.execute() is None, "no new records"
    world.report(*range(12))
    assert world.execute() == 1
    assert world.execute() is None
    world.unsubscribe(storm)
    world.subscribe("flood", 1)
    world.report(20, 21, 22)
    world.report(30, 31)
    assert world.execute() == 2
    assert world.results() == world.expected
    assert world.expected.total() > 8
    last, first = world.catalog.outcomes.history("near", 10, plan=True)
    assert (first["rows_in"], last["rows_in"]) == (12, 5)
    assert first["rows_out"] + last["rows_out"] == world.expected.total()
    assert last["inputs"] == {"new": {"reports": [1, 3]}, "whole": {"shelters": 1}}
    assert 0 < last["seconds"] < 60
    assert 0 < last["latency_s"] < 120
    assert "Scan parquet" in last["plan"]


def test_without_subscriptions_the_positions_move_on(world):
    world.report(1, 2, 3)
    assert world.execute() is None
    world.subscribe("flood", 0)
    assert world.execute() is None, "what came before is not for who subscribes now"
    world.report(4)
    assert world.execute() == 1
    assert world.results() == world.expected


def crash_after_opening(world, patch):
    patch.setattr(world.job, "run", crash)


def crash_before_writing(world, patch):
    patch.setattr(storage, "write", crash)


def crash_after_writing_a_part(world, patch):
    def half(frame, path):
        path.mkdir(parents=True)
        (path / "part-left-over.parquet").write_bytes(b"half a file")
        raise Crash

    patch.setattr(storage, "write", half)


def crash_before_the_commit(world, patch):
    patch.setattr(world.catalog.executions, "commit", crash)


def crash_within_the_commit(world, patch):
    real = world.catalog.database.run

    def run(sql, values=()):
        if sql.startswith("UPDATE channel_numbers SET committed"):
            raise Crash
        return real(sql, values)

    patch.setattr(world.catalog.database, "run", run)


def crash_after_the_commit(world, patch):
    world.catalog.executions.on_commit(crash)


def crash(*arguments):
    raise Crash


@pytest.mark.parametrize(
    "boundary",
    [
        crash_after_opening,
        crash_before_writing,
        crash_after_writing_a_part,
        crash_before_the_commit,
        crash_within_the_commit,
        crash_after_the_commit,
    ],
)
def test_a_crash_loses_and_repeats_nothing(world, monkeypatch, boundary):
    world.subscribe("fire", 0)
    flood = world.subscribe("flood", 0)
    world.report(*range(9))
    with monkeypatch.context() as patch:
        boundary(world, patch)
        with pytest.raises(Crash):
            world.execute()
    world.restart()
    # What changes before the execution is run again is for the next one.
    world.unsubscribe(flood)
    world.subscribe("storm", 0)
    world.report(*range(10, 20))
    numbers = [world.execute(), world.execute(), world.execute()]
    assert numbers == ([2, None, None] if boundary is crash_after_the_commit else [1, 2, None])
    assert world.results() == world.expected
    assert json.loads(world.catalog.database.rows("SELECT inputs FROM executions ORDER BY number")[0]["inputs"]) == {
        "new": {"reports": [0, 1]},
        "whole": {"shelters": 1},
    }
    assert world.catalog.executions.open() == []


def test_the_results_of_a_channel_dropped_meanwhile_do_not_stay(world):
    world.subscribe("fire", 0)
    world.report(0)
    execution = world.catalog.next_execution(world.channel)
    world.catalog.drop_channel("near")
    assert not world.job.run(execution)
    assert not world.catalog.warehouse.results("near", 1).exists()


def test_a_new_column_is_taken_up(world):
    world.subscribe("fire", 0)
    world.report(0)
    world.execute()
    world.catalog.datasets.alter("reports", "severity INT")
    datasets = world.catalog.datasets
    schema = (
        "id INT, kind STRING, level INT, severity INT, _topic STRING, _published_at TIMESTAMP, _ingested_at TIMESTAMP"
    )
    frame = world.spark.createDataFrame([(3, "fire", 3, 1, "t", None, None)], schema)
    datasets.commit("reports", datasets.write(datasets.describe("reports"), frame, 1))
    world.expected[(next(iter(world.held)), 3, "fire", "hall")] += 1
    assert world.execute() == 2
    assert world.results() == world.expected


def test_files_are_merged_under_an_open_execution(world):
    """Each round merges what nobody will ask for by its batches any more."""
    housekeeping = Housekeeping(world.catalog, ServiceSettings())
    world.subscribe("fire", 0)
    for first in range(0, 40, 2):
        world.report(first, first + 1)
    execution = world.catalog.next_execution(world.channel)
    for first in range(40, 50, 2):
        world.report(first, first + 1)
    housekeeping.run(world.spark)
    assert world.job.run(execution)
    housekeeping.run(world.spark)
    assert world.execute() == 2
    assert world.results() == world.expected


def test_a_channel_is_replaced_while_an_execution_runs(world, monkeypatch):
    """At the worst moment: its results are written. They do not count, and the new text gets the same records."""
    fire, flood = world.subscribe("fire", 0), world.subscribe("flood", 2)
    world.report(*range(6))
    assert world.execute() == 1
    world.report(*range(6, 12))
    write = storage.write

    def write_and_replace(frame, path):
        written = write(frame, path)
        monkeypatch.undo()
        create(world.spark, world.catalog, NEAR.replace("CREATE", "CREATE OR REPLACE").replace("s.name", "'none'"))
        return written

    monkeypatch.setattr(storage, "write", write_and_replace)
    assert not world.job.run(world.catalog.next_execution(world.channel))
    assert not world.catalog.warehouse.results("near", 2).exists()
    world.restart()
    assert world.execute() == 3
    for row in [row for row in world.expected if row[1] >= 6]:
        world.expected[*row[:3], "none"] += world.expected.pop(row)
    assert world.results() == world.expected
    assert {row[0] for row in world.expected} == {fire, flood}


PLANTED = "Planted: no SQL that a channel may have fails on data any more"


def plant(world, condition: str) -> None:
    """The query fails wherever this is true."""
    prepared = world.job._bound()
    fails = f"IF({condition}, RAISE_ERROR('{PLANTED}'), `_parameters`.`least`)"
    text = prepared.text.replace("`_parameters`.`least`", fails)
    assert text != prepared.text
    world.job._prepared = dataclasses.replace(prepared, text=text)


def fail_until_parts_are_tried(world) -> None:
    for _ in range(TRIES - 1):
        with pytest.raises(Exception, match=r".+"):
            world.execute()


@pytest.fixture
def several(world) -> World:
    """Subscriptions that are well, one that is not, and records for all of them."""
    for kind in KINDS:
        world.subscribe(kind, 0)
    world.culprit = world.subscribe("flood", 4)
    world.report(*range(15))
    return world


@pytest.fixture
def at_once(monkeypatch) -> None:
    """An execution that fails is done by parts without being tried again as a whole."""
    monkeypatch.setattr(channel_module, "TRIES", 1)


def expected_without(world, culprit: str) -> Counter:
    return Counter({row: count for row, count in world.expected.items() if row[0] != culprit})


def test_a_subscription_that_fails_an_execution_is_set_aside_and_all_others_get_their_results(several):
    plant(several, "`_parameters`.`least` = 4")
    fail_until_parts_are_tried(several)
    assert several.execute() == 1
    assert several.results() == expected_without(several, several.culprit)
    (problem,) = several.catalog.subscriptions.problems("near").items()
    assert problem[0] == several.culprit
    assert PLANTED in problem[1]
    assert several.catalog.subscriptions.problem(several.culprit) == problem[1]
    with pytest.raises(Conflict, match=rf"{several.culprit} is set aside: .*Planted"):
        several.subscribe("flood", 4)
    several.report(16, 19)  # of flood, for which it would fail again
    assert several.execute() == 2, "at the first try, because it is left out"
    assert several.results() == expected_without(several, several.culprit)
    several.unsubscribe(several.culprit)
    several.subscribe("flood", 4)
    assert several.catalog.subscriptions.problems("near") == {}, "who subscribes again is tried again"


@pytest.mark.usefixtures("at_once")
def test_a_crash_after_a_subscription_was_set_aside_repeats_nothing(several, monkeypatch):
    plant(several, "`_parameters`.`least` = 4")
    with monkeypatch.context() as patch:
        patch.setattr(several.catalog.executions, "commit", crash)
        with pytest.raises(Crash):
            several.execute()
    several.restart()
    plant(several, "`_parameters`.`least` = 4")
    assert several.execute() == 1
    assert several.results() == expected_without(several, several.culprit)
    assert list(several.catalog.subscriptions.problems("near")) == [several.culprit]


def test_a_full_disk_blames_nobody_and_loses_nothing(several, monkeypatch):
    def full(frame, path):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write", full)
        for _ in range(TRIES + 2):
            with pytest.raises(OSError, match="No space"):
                several.execute()
    assert several.catalog.subscriptions.problems("near") == {}
    assert several.execute() == 1
    assert several.results() == several.expected


@pytest.mark.usefixtures("at_once")
def test_subscriptions_that_are_too_many_together_are_answered_by_parts(world):
    """The limit of pairs of a nested loop: no one of them is the cause."""
    schemas = {name: world.catalog.datasets.schema(name) for name in world.catalog.datasets.names()}
    text = NEAR.replace("r.kind = :kind", "r.kind LIKE :kind")
    world.job._prepared = prepare(parse_channel(text), schemas, max_nested_loop_pairs=36)
    for kind in KINDS:
        for least in range(3):
            world.subscribe(kind, least)
    world.report(*range(9))
    assert world.execute() == 1
    assert world.results() == world.expected
    assert world.catalog.subscriptions.problems("near") == {}


@pytest.mark.usefixtures("at_once")
def test_an_execution_that_fails_for_everybody_because_of_its_data_is_given_up_and_the_next_one_runs(world):
    world.subscribe("fire", 0)
    world.subscribe("fire", 1)
    plant(world, "`r`.`id` = 6")
    world.report(6)
    world.expected.clear()
    assert world.execute() == 1
    assert "execution 1 was given up" in world.catalog.outcomes.given_up(world.channel)
    assert PLANTED in world.catalog.outcomes.given_up(world.channel)
    assert world.catalog.subscriptions.problems("near") == {}
    world.report(9)
    assert world.execute() == 2
    assert world.results() == world.expected
