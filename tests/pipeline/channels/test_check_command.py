"""`nearcast channel check`: what it prints, and its exit codes."""

from __future__ import annotations

import contextlib
import json

import pytest
from typer.testing import CliRunner

from nearcast.cli.app import app
from nearcast.pipeline import spark as spark_module

TEXT = (
    "CREATE CHANNEL near(lat DOUBLE, lon DOUBLE) PERIOD 10 SECONDS AS\n"
    "SELECT r.id, s.name FROM NEW reports r, shelters s "
    "WHERE distance(r.lat, r.lon, :lat, :lon) < 500 AND s.places > r.id"
)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "near.sql").write_text(TEXT)
    (tmp_path / "reports.csv").write_text("id,lat,lon\n1,52.5,13.4\n")
    (tmp_path / "shelters.csv").write_text("name,places\nhall,20\n")
    return tmp_path


def run(folder, *more: str):
    datasets = [f"--dataset={name}={folder / name}.csv" for name in ("reports", "shelters")]
    return CliRunner().invoke(app, ["channel", "check", "-f", str(folder / "near.sql"), *datasets, *more])


@pytest.fixture
def one_session(monkeypatch, spark):
    """The command opens a session of its own; the tests have one already, and there can be only one."""
    monkeypatch.setattr(spark_module, "open_session", lambda settings: contextlib.nullcontext(spark))


@pytest.mark.usefixtures("one_session")
def test_a_channel_is_shown_with_its_joins_and_warnings(files):
    done = run(files, "--explain", "--output", "json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["parameters"] == {"lat": "DOUBLE", "lon": "DOUBLE"}
    assert [join["kind"] for join in found["joins"]] == ["grid", "nested loop"]
    assert found["columns"] == ["id", "name"]
    assert found["sql"].startswith("WITH _sets AS")
    assert "warning: s is joined by a nested loop (s.places > r.id)" in done.stderr


@pytest.mark.usefixtures("one_session")
def test_an_unknown_column_is_refused_with_its_place(files):
    (files / "near.sql").write_text(TEXT.replace("s.places", "s.beds"))
    done = run(files)
    assert done.exit_code == 2
    assert "error: line 2, column 105: " in done.stderr


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--dataset", "reports"], "write NAME=PATH"),
        (["--dataset", "x=missing.csv"], "there is no file missing.csv"),
        (["--file", "missing.sql"], "cannot read missing.sql"),
    ],
)
def test_a_wrong_call_is_refused_before_spark_starts(files, more, message):
    done = run(files, *more)
    assert done.exit_code == 2
    assert message in done.stderr
