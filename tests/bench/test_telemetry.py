"""`nearcast bench telemetry`, whole: it starts two Spark sessions, one after the other."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from nearcast.bench.telemetry import measure_telemetry
from nearcast.errors import UsageError


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_result_is_that_of_the_reference() -> None:
    command = [sys.executable, "-m", "nearcast", "bench", "telemetry", "--rows", "20000", "--rounds", "1", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert found["identical"] is True
    assert [size["rows"] for size in found["growth"]] == [2000, 6000, 20_000]
    assert all(len(size["spark"]["seconds"]) == len(size["duckdb"]["seconds"]) == 2 for size in found["growth"])
    assert found["local2_rows_per_s"] > 0


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="at least"):
        measure_telemetry(10)
