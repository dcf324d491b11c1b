"""The benchmark of feeds: a tiny run gives every figure."""

from __future__ import annotations

import json
import subprocess
import sys
from math import isfinite

import msgspec
import pytest

from nearcast.bench.ingest import IngestBench, record
from nearcast.cli.bench_data import _ingest_rows


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.timeout(300)
def test_a_tiny_run_gives_every_figure() -> None:
    options = ["--json", "--records", "20000", "--rounds", "1", "--seconds", "2"]
    command = [sys.executable, "-m", "nearcast", "bench", "ingest", *options]
    ran = subprocess.run(command, capture_output=True, check=True, text=True)
    found = msgspec.convert(json.loads(ran.stdout), IngestBench)
    figures = msgspec.structs.asdict(found)
    growth = figures.pop("growth")
    assert all(isfinite(value) and value > 0 for value in figures.values())
    assert found.ratio == pytest.approx(found.records_per_s / found.redis_py_records_per_s)
    assert [grown.brokers for grown in growth] == [1, 2, 4]
    assert found.records == 20_000
    assert "round 1 of 1: redis-py" in ran.stderr


def test_records_are_json_of_about_300_bytes_and_differ() -> None:
    made = [record(number) for number in range(0, 10**6, 1000)]
    assert len(set(made)) == len(made)
    assert all(300 <= len(each) <= 380 for each in made)
    assert json.loads(made[3])["id"] == 3000


def test_the_table_shows_the_goals() -> None:
    figures = dict.fromkeys(IngestBench.__struct_fields__, 2) | {"growth": []}
    goals = [goal for _, _, goal in _ingest_rows(msgspec.convert(figures, IngestBench)) if goal]
    assert goals == [">= 100,000 /s", ">= 1.2 x", "<= 2 s", "<= 1 s", "<= 2 s", "<= 1 s", "<= 0.5"]
