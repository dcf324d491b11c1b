"""`nearcast channel`, `feed` and `dataset` against the real API, without Spark behind it."""

from __future__ import annotations

import datetime as dt
import json
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from nearcast.cli import data
from nearcast.cli.app import app
from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.feeds import FeedProgress
from nearcast.pipeline.feeds import Feeds
from nearcast.pipeline.logs import ClusterLogs
from nearcast.pipeline.service.app import create_app
from nearcast.pipeline.service.state import CatalogOnly, EngineNotReady, ServiceSettings

NEAR = "CREATE CHANNEL near(kind STRING) PERIOD 10 SECONDS AS\nSELECT id FROM NEW reports\nWHERE kind = :kind\n"


class Engine(CatalogOnly):
    """Makes feeds, which needs a cluster and no Spark; notes what it was to load."""

    def __init__(self, catalog, url) -> None:
        self.catalog = catalog
        self._feeds = Feeds(catalog.database, catalog.datasets, url)
        self.loaded = []

    @property
    def feeds(self):
        return self._feeds

    def load(self, name, file, *, file_format, schema, key):
        self.loaded.append((name, file.read_bytes(), file_format, schema, key))
        self.catalog.datasets.create(name, schema, key)


@pytest.fixture
def engine(brokers, tmp_path, monkeypatch):
    catalog = Catalog(tmp_path / "data")
    engine = Engine(catalog, brokers.store_url)
    client = TestClient(create_app(catalog, ServiceSettings(token="secret"), engine), base_url="http://data:1")
    monkeypatch.setattr(httpx, "request", lambda *arguments, timeout, **more: client.request(*arguments, **more))
    monkeypatch.setenv("NEARCAST_DATA", "http://data:1")
    monkeypatch.setenv("NEARCAST_DATA_TOKEN", "secret")
    monkeypatch.chdir(tmp_path)
    yield engine
    for feed in engine.feeds.all():
        engine.feeds.drop(feed.name)
    catalog.close()


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def run_json(*arguments: str):
    result = run(*arguments, "--output", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def make_reports() -> None:
    schema = "id INT NOT NULL, kind STRING"
    run_json("feed", "create", "reports", "--topic", "command.*", "--schema", schema)


def test_feeds_are_made_listed_changed_and_dropped(engine, brokers):
    make_reports()
    make_reports()
    (feed,) = run_json("feed", "list")["feeds"]
    assert (feed["name"], feed["topic"], feed["records"]) == ("reports", "command.*", 0)
    logs = ClusterLogs(brokers.store_url)
    (log,) = [log for log in logs.all() if log.name == "feed-reports" and log.topics == ("command.*",)]
    assert feed["log"] == f"feed-reports@{log.created}"
    altered = run_json("feed", "alter", "reports", "--add", "severity INT")["feeds"][0]
    assert altered["columns"]["severity"] == "INT"
    table = run("feed", "list").stdout
    assert "id INT, kind STRING, severity INT" in table
    other = run("feed", "create", "reports", "--topic", "x", "--schema", "id INT")
    assert other.exit_code == 2
    assert "reports" in other.stderr
    assert run("dataset", "drop", "reports").exit_code == 2, "a feed fills it"
    assert run("feed", "drop", "reports").exit_code == 0
    assert run_json("feed", "list") == {"feeds": []}
    assert "feed-reports" not in [log.name for log in logs.all()]
    assert run("dataset", "drop", "reports").exit_code == 0
    assert run_json("dataset", "list") == {"datasets": []}


def test_dead_letters_are_shown_the_newest_first(engine):
    make_reports()
    columns = ("kind", "reason", "topic", "payload", "publisher", "sequence", "published_at", "ingested_at")
    at = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    for number in (1, 2):
        folder = engine.catalog.warehouse.dead_letters("reports", number)
        folder.mkdir(parents=True)
        row = ("record", f"field id is not INT: {number}", "emergency.x", b"{\xff}", "p", "1", at, None)
        pq.write_table(pa.Table.from_pylist([dict(zip(columns, row, strict=True))]), folder / "part.parquet")
        progress = FeedProgress(commits=number, dead=number)
        engine.catalog.feeds.advance("reports", progress, dead_letters=True)
    letters = run_json("feed", "dead-letters", "reports")["dead_letters"]
    assert [letter["reason"] for letter in letters] == ["field id is not INT: 2", "field id is not INT: 1"]
    assert letters[0]["payload"] == "{\\xff}"
    assert letters[0]["published_at"].startswith("2026-01-31T12:00:00")
    assert len(run_json("feed", "dead-letters", "reports", "--last", "1")["dead_letters"]) == 1
    assert "field id" in run("feed", "dead-letters", "reports").stdout
    assert run("feed", "dead-letters", "nowhere").exit_code == 2


def test_dropping_a_feed_that_channels_read_is_warned_of(engine, tmp_path):
    make_reports()
    (tmp_path / "near.sql").write_text(NEAR)
    run_json("channel", "create", "-f", "near.sql")
    dropped = run("feed", "drop", "reports")
    assert dropped.exit_code == 0
    assert "warning: its dataset gets no more new records, but it is still read by near" in dropped.stderr


def test_a_channel_is_replaced_under_its_subscriptions(engine, tmp_path):
    make_reports()
    (tmp_path / "near.sql").write_text(NEAR)
    run_json("channel", "create", "-f", "near.sql")
    near = engine.catalog.channels.get("near")
    engine.catalog.subscriptions.attach("b1", near, dict.fromkeys(near.parameters, "fire"))
    (tmp_path / "near.sql").write_text(NEAR.replace("CREATE", "CREATE OR REPLACE"))
    replaced = run("channel", "create", "-f", "near.sql", "--output", "json")
    assert replaced.stderr == "channel near was replaced; its 1 subscriptions continue with execution 1\n"
    assert json.loads(replaced.stdout)["made"] == "replaced"
    assert run_json("channel", "create", "-f", "near.sql")["made"] == "unchanged"
    (tmp_path / "near.sql").write_text(NEAR.replace("CREATE", "CREATE OR REPLACE").replace("STRING", "INT"))
    refused = run("channel", "create", "-f", "near.sql")
    assert refused.exit_code == 2


def test_channels_are_created_shown_and_dropped(engine, tmp_path):
    make_reports()
    (tmp_path / "near.sql").write_text(NEAR)
    assert run_json("channel", "create", "-f", "near.sql")["columns"] == ["id"]
    assert [channel["name"] for channel in run_json("channel", "list")["channels"]] == ["near"]
    shown = run("channel", "show", "near")
    assert shown.exit_code == 0
    assert "every 10 s" in shown.stdout
    assert "WHERE kind = :kind" in shown.stdout
    assert run_json("channel", "show", "near", "--plan")["last"] == []
    assert run("channel", "drop", "near").exit_code == 0
    gone = run("channel", "show", "near")
    assert (gone.exit_code, gone.stderr) == (2, "error: unknown channel near: the channels are: none\n")


def test_a_channel_is_checked_against_the_data_cluster_and_not_created(engine, tmp_path):
    make_reports()
    (tmp_path / "near.sql").write_text(NEAR)
    checked = run_json("channel", "check", "-f", "near.sql", "--explain")
    assert (checked["channel"], checked["new_datasets"], checked["columns"]) == ("near", ["reports"], ["id"])
    assert [join["kind"] for join in checked["joins"]] == ["hash"]
    assert checked["sql"].startswith("WITH _sets AS")
    assert "sql" not in run_json("channel", "check", "-f", "near.sql")
    assert "channel near: ok" in run("channel", "check", "-f", "near.sql").stdout
    assert run_json("channel", "list") == {"channels": []}
    (tmp_path / "near.sql").write_text(NEAR.replace("kind = :kind", "knd = :kind"))
    refused = run("channel", "check", "-f", "near.sql")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: line 3, column 7: ")


def test_a_refused_channel_shows_the_place(engine, tmp_path):
    make_reports()
    (tmp_path / "near.sql").write_text(NEAR.replace("kind = :kind", "knd = :kind"))
    refused = run("channel", "create", "-f", "near.sql")
    assert (refused.exit_code, refused.stdout) == (2, "")
    first, line, caret = refused.stderr.splitlines()
    assert first.startswith("error: line 3, column 7: ")
    assert line == "  WHERE knd = :kind"
    assert caret.index("^") == line.index("knd")
    assert run("channel", "create", "-f", "nowhere.sql").exit_code == 2


def test_a_dataset_is_sent_whole(engine, tmp_path):
    (tmp_path / "shelters.csv").write_bytes(b"name\nhall\n")
    loaded = run_json("dataset", "load", "shelters", "shelters.csv", "--schema", "name STRING", "--key", "name")
    assert loaded["datasets"][0]["columns"]["name"] == "STRING"
    assert engine.loaded == [("shelters", b"name\nhall\n", "csv", "name STRING", "name")]
    assert "ends in .csv" in run("dataset", "load", "shelters", "shelters.txt").stderr
    assert "cannot read" in run("dataset", "load", "shelters", "nowhere.csv").stderr


def test_a_wrong_token_is_told(engine, monkeypatch):
    monkeypatch.setenv("NEARCAST_DATA_TOKEN", "wrong")
    refused = run("channel", "list")
    assert refused.exit_code == 2
    assert "NEARCAST_DATA_TOKEN" in refused.stderr


def test_a_data_cluster_that_is_not_there_exits_with_1_and_one_line():
    result = run("channel", "list", "--data", "http://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: no data cluster answers at http://127.0.0.1:1")
    assert "nearcast data --store" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert run("feed", "list", "--data", "nonsense").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["data"], "needs --store URL and --folder DIR"),
        (["data", "--store", "x://h", "--folder", "f"], "bad server URL"),
        (["data", "--store", "redis://h", "--folder", "f", "--listen", "8100"], "write HOST:PORT"),
        (["data", "--master", "local[1]", "check"], "give --master after the subcommand"),
        (["data", "--store", "redis://h", "--folder", "f", "--master", "none"], "unknown Spark master"),
        (["data", "--store", "redis://h", "--folder", "f", "--listen", "0.0.0.0:8100"], "set NEARCAST_DATA_TOKEN"),
        (["data", "--store", "redis://h", "--folder", "f", "--listen", "host.example:8100"], "set NEARCAST_DATA_TOKEN"),
    ],
)
def test_wrong_calls_of_the_process_exit_with_2(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("NEARCAST_STORE", "NEARCAST_DATA_TOKEN", "NEARCAST_GATEWAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.parametrize(("operator", "said"), [("same", "are equal"), ("", "NEARCAST_DATA_TOKEN is not: set it too")])
def test_a_token_of_gateways_that_protects_nothing_is_refused(operator, said, tmp_path, monkeypatch):
    monkeypatch.setenv("NEARCAST_DATA_TOKEN", operator)
    monkeypatch.setenv("NEARCAST_GATEWAY_TOKEN", "same")
    result = run("data", "--store", "redis://h", "--folder", str(tmp_path / "f"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert not (tmp_path / "f").exists()


def test_a_command_waits_for_spark_that_is_starting(engine, monkeypatch):
    load, waited = engine.load, []

    def load_later(*arguments, **more):
        if len(waited) < 2:
            raise EngineNotReady("Spark is starting", starting=True)
        load(*arguments, **more)

    monkeypatch.setattr(engine, "load", load_later)
    monkeypatch.setattr(data, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waited.append))
    Path("shelters.csv").write_text("name\nhall\n")
    loaded = run("dataset", "load", "shelters", "shelters.csv", "--schema", "name STRING")
    assert loaded.exit_code == 0, loaded.stderr
    assert loaded.stderr.count("Spark is starting at http://data:1: waiting for it") == 1
    assert [len(engine.loaded), len(waited)] == [1, 2]
