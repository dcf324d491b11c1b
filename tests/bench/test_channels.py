"""The benchmark of channels: a small run gives every figure, and all sides the same results."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SIZES = ["--records", "20000", "--subscriptions", "500", "--rounds", "1", "--sample", "2"]


@pytest.mark.slow
@pytest.mark.timeout(600)  # a Spark session of its own has to start
def test_a_small_run_gives_every_figure() -> None:
    command = [sys.executable, "-m", "nearcast", "bench", "channels", *SIZES, "--json"]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    found = json.loads(done.stdout)
    assert (found["records"], found["subscriptions"], found["parameter_sets"]) == (20_000, 500, 500)
    assert found["identical"] is True
    # Each subscription asks for what one of the records has.
    assert found["equality_output"]["rows"] >= 500
    assert found["distance_output"]["rows"] >= 500
    assert 0 < found["pairs_matching_share"] < 1
    assert found["ratio_equality"] == pytest.approx(found["equality_s"] / found["duckdb_equality_s"])
    assert found["ratio_naive"] == pytest.approx(found["naive_equality_s_estimated"] / found["equality_s"])
    assert found["overhead_s"] == max(found["overhead_equality_s"], found["overhead_distance_s"])
    assert "round 1: equality" in done.stderr


def test_too_few_records_are_refused() -> None:
    command = [sys.executable, "-m", "nearcast", "bench", "channels", "--records", "1"]
    assert subprocess.run(command, capture_output=True).returncode == 2
