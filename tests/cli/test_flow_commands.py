"""`nearcast simulate flow` and `nearcast bench flow`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearcast.cli.app import app

SHORT = ["simulate", "flow", "--seconds", "20", "--players", "50:200", "--tiles", "5x4"]


@pytest.mark.parametrize("command", ["simulate flow", "bench flow"])
def test_help_shows_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"Example: nearcast {command}" in " ".join(result.stdout.split())


@pytest.mark.parametrize("policy", ["dynamoth", "hash_ring", "none"])
def test_a_series_is_json(policy: str) -> None:
    result = CliRunner().invoke(app, [*SHORT, "--policy", policy, "--json"])
    assert result.exit_code == 0
    series = json.loads(result.stdout)
    assert series["policy"] == policy
    assert series["clients"][0] == 50
    assert len(series["at_s"]) == len(series["response_s"]) == len(series["load_ratio_max"]) == 20


def test_people_get_a_table() -> None:
    result = CliRunner().invoke(app, SHORT)
    assert result.exit_code == 0
    assert "response ms" in result.stdout
    assert len(result.stdout.splitlines()) == 23


def test_delays_come_from_a_matrix(tmp_path: Path) -> None:
    (tmp_path / "matrix.csv").write_text(",a,b\na,500,500\nb,500,500\n")
    result = CliRunner().invoke(app, [*SHORT, "--matrix", str(tmp_path / "matrix.csv"), "--json"])
    assert min(json.loads(result.stdout)["response_s"]) > 0.5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--players", "many"], "bad --players 'many'"),
        (["--players", "5:-1"], "must not be negative"),
        (["--tiles", "12"], "bad --tiles '12'"),
        (["--tiles", "0x3"], "use 1 or more each way"),
        (["--brokers", "9"], "use 1 to 8"),
        (["--policy", "best"], "'dynamoth'"),
        (["--matrix", "no such file"], "cannot read the matrix"),
    ],
)
def test_a_wrong_call_says_so_and_exits_with_2(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["simulate", "flow", "--seconds", "2", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_the_bench_measures_growth() -> None:
    result = CliRunner().invoke(
        app, ["bench", "flow", "--clients", "200", "--seconds", "5", "--largest", "2000", "--json"]
    )
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["clients"], found["topics"], found["simulated_s"]) == (200, 20, 5)
    assert [size["clients"] for size in found["scaling"]] == [200, 2000]
    assert 0 < found["seconds"] < 20
    assert found["exponent"] is not None
