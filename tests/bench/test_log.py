"""The benchmark of logs: a tiny run gives every figure."""

from __future__ import annotations

import json
from math import isfinite

import msgspec
import pytest
from typer.testing import CliRunner

from nearcast.bench.log import LogBench
from nearcast.cli.app import app
from nearcast.cli.bench import _log_rows


@pytest.mark.live
def test_a_tiny_run_gives_every_figure() -> None:
    options = ["--json", "--seconds", "0.2", "--messages", "20000", "--rounds", "1"]
    result = CliRunner().invoke(app, ["bench", "log", *options])
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert set(figures) == set(LogBench.__struct_fields__)
    assert all(isinstance(value, float) and isfinite(value) and value > 0 for value in figures.values())
    assert figures["ratio"] == pytest.approx(figures["log_publish_per_s"] / figures["publish_per_s"])
    assert "round 1 of 1: kept_50" in result.stderr


def test_the_table_shows_the_goals() -> None:
    found = msgspec.convert(dict.fromkeys(LogBench.__struct_fields__, 2.0), LogBench)
    goals = [goal for _, _, goal in _log_rows(found) if goal]
    assert goals == [">= 0.7 x", ">= 0.5 x", ">= 4 x", ">= 0.5 x", "<= 50 ms"]
