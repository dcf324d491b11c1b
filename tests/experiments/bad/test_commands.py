"""`nearcast reproduce bad-N`: every experiment has its command, its help and its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearcast.cli.app import app
from nearcast.cli.reproduce import BAD
from nearcast.experiments.bad import distribution, prototype, sensitivity
from nearcast.experiments.bad.runs import Prototype, Simulation
from nearcast.workloads.emergency.flow import ScaleSettings
from nearcast.workloads.emergency.scenario import EmergencySettings


def test_every_experiment_has_a_command() -> None:
    own = {*prototype.LOADS, *prototype.COMPARISONS, prototype.MIGRATIONS, distribution.NAME, sensitivity.NAME}
    assert set(BAD) == own == {f"bad-{number}" for number in range(5, 15)}


@pytest.mark.parametrize("command", BAD)
def test_help_shows_an_example(command: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", command, "--help"])
    assert result.exit_code == 0
    assert f"Example: nearcast reproduce {command}" in " ".join(result.stdout.split())


@pytest.mark.parametrize(("command", "key"), [("bad-6", "ways"), ("bad-13", "gsh_below_005"), ("bad-14", "ways")])
def test_json_and_files(command: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Prototype(emergency=EmergencySettings(users=40, reports=500))
    tiny = Simulation(scale=ScaleSettings(subscribers=400, per_channel=20, subscribe_s=60, seconds=200))
    monkeypatch.setattr(sensitivity, "Prototype", lambda: small)
    monkeypatch.setattr(sensitivity, "Simulation", lambda: tiny)
    arguments = ["reproduce", command, "--json", "--seeds", "2", "--first-seed", "3", "--workers", "1"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert key in figures
    assert figures["seeds"] == [3, 4]
    assert json.loads((tmp_path / f"{command}.json").read_text())["figures"] == figures
    assert (tmp_path / f"{command}.png").stat().st_size > 10_000


def test_wrong_options_are_usage_errors(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", "bad-5", "--seeds", "0", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "--seeds" in result.stderr
