"""The benchmark of multistage balancing: a small run gives every figure."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from nearcast.bench.multistage import SUBSCRIBERS_MIN, compared, made_world, measure_multistage, timed_size
from nearcast.cli.app import app
from nearcast.errors import UsageError

ARGUMENTS = ["bench", "multistage", "--subscribers", "3000", "--backend", "300", "--brokers", "10"]


def test_a_small_run_gives_every_figure() -> None:
    result = CliRunner().invoke(app, [*ARGUMENTS, "--json"])
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert (figures["subscribers"], figures["backend"], figures["brokers"]) == (3000, 300, 10)
    assert [size["subscribers"] for size in figures["growth"]] == [SUBSCRIBERS_MIN, 3000]
    asked = figures["growth"][-1]
    assert (figures["gsh_s"], figures["ldm_s"]) == (asked["gsh"]["seconds"], asked["ldm"]["seconds"])
    assert (figures["gsh_cpu_s"], figures["ldm_cpu_s"]) == (asked["gsh"]["cpu_seconds"], asked["ldm"]["cpu_seconds"])
    assert asked["gsh"]["cov_after"] < 0.05
    assert asked["ldm"]["cov_after"] <= 0.15 < asked["ldm"]["cov_before"]
    assert asked["sdm"]["incoming_saved_share"] >= asked["ldm"]["incoming_saved_share"]
    assert figures["ratio"] == figures["reference"]["ratio"] > 10
    assert figures["reference"]["identical"] is True
    assert "3,000 subscribers" in result.stderr


def test_the_table_has_a_row_per_scheme_and_size() -> None:
    result = CliRunner().invoke(app, ARGUMENTS)
    assert result.exit_code == 0, result.stderr
    assert [result.stdout.count(name) for name in ("GSH", "LDM", "SDM", "plain Python")] == [2, 3, 2, 1]


def test_too_small_is_said() -> None:
    with pytest.raises(UsageError, match="at least 1000 subscribers, 30 subscriptions and 2 brokers"):
        measure_multistage(1000, 10, 10)


def test_the_world_is_as_described() -> None:
    demand, assignment = made_world(20_000, 1000, 100)
    same, home = made_world(20_000, 1000, 100)
    assert (demand.wanted == same.wanted).all()
    assert (assignment.home == home.home).all()
    each = np.diff(demand.starts)
    assert each.max() <= 30
    assert 18 < each.mean() < 20.5
    served = np.bincount(assignment.home, minlength=100) / 200
    assert 2 < served.max() < 4
    assert served.min() < 0.5


def test_the_reference_takes_the_same_moves() -> None:
    found = compared(500, 60, 5)
    assert found.identical
    assert found.moves > 20
    assert found.ratio > 5  # about 50 on a machine at rest


def test_a_hundred_thousand_subscribers_take_a_tenth_of_the_goal_for_a_million() -> None:
    size = timed_size(100_000, 1000, 100)
    assert size.gsh.cpu_seconds < 2  # about 0.5 on a machine at rest; the goal for a million is 10
    assert size.ldm.cpu_seconds < 2
