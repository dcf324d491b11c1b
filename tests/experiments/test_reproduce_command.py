"""`nearcast reproduce`: JSON alone on stdout, files beside each other, errors that say what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearcast.cli import reproduce
from nearcast.cli.app import app
from nearcast.experiments.checks import ReplaySettings
from nearcast.experiments.dynamoth import elasticity, scalability
from nearcast.workloads.rgame import Ramp

COMMANDS = ("dynamoth-4a", "dynamoth-4b", "dynamoth-5", "dynamoth-6", "dynamoth-7")
PNG = b"\x89PNG\r\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", command, "--help"])
    assert result.exit_code == 0
    assert f"Example: nearcast reproduce {command}" in " ".join(result.stdout.split())


def test_json_stands_alone_on_stdout_and_the_files_are_where_they_should_be(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nearcast", "reproduce", "dynamoth-4b", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert (figures["supported_one"], figures["supported_three"], figures["setting"]) == (200, 600, "flow")
    folder = tmp_path / "results" / "dynamoth-4b"
    assert json.loads((folder / "dynamoth-4b.json").read_text())["figures"] == figures
    assert (folder / "dynamoth-4b.png").read_bytes().startswith(PNG)
    assert "16/16 done" in ran.stderr
    assert "dynamoth-4b.png" in ran.stderr


@pytest.mark.parametrize("command", ["dynamoth-5", "dynamoth-6", "dynamoth-7"])
def test_the_other_experiments_print_a_table(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = elasticity.Game(tiles_per_side=3, servers=2)
    tiny = scalability.Growth(game=small, players_first=20, players_last=60, hold_s=5.0, seeds=(0,), virtual_nodes=(8,))
    moving = elasticity.ElasticitySettings(
        game=small,
        players=Ramp(((0.0, 20), (60.0, 60), (90.0, 10))),
        messages=ReplaySettings(publishers=1, subscribers=2),
    )
    monkeypatch.setattr(reproduce, "_growth", lambda *given: tiny)
    monkeypatch.setattr(elasticity, "ElasticitySettings", lambda **given: moving)
    result = CliRunner().invoke(app, ["reproduce", command, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.stderr
    assert "servers" in result.stdout
    assert (tmp_path / f"{command}.png").stat().st_size > 10_000
    assert json.loads((tmp_path / f"{command}.json").read_text())["experiment"] == command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dynamoth-5", "--seeds", "0"], "--seeds"),
        (["dynamoth-5", "--tiles", "0"], "--tiles"),
        (["dynamoth-7", "--seed", "-1"], "--seed"),
        (["dynamoth-4a", "--matrix", "no-such-file.csv"], "no-such-file.csv"),
        (["dynamoth-4a", "--live", "--matrix", "m.csv"], "leave out --live or --matrix"),
        (["dynamoth-4a", "--out", "taken/inner"], "--out"),
        (["dynamoth-8"], "dynamoth-8"),
    ],
)
def test_wrong_options_are_usage_errors(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file, not a folder")
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert said in result.stderr


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:

    def without(*given: object) -> None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr("nearcast.experiments.dynamoth.replication.run_flow", without)
    result = CliRunner().invoke(app, ["reproduce", "dynamoth-4b", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "nearcast[plots]" in result.stderr


def test_the_command_has_the_settings_of_the_experiments() -> None:
    given = reproduce._game(reproduce.TILES_PER_SIDE, reproduce.SPEED_TILES_PER_S, reproduce.WAIT_S)
    assert given == elasticity.Game()
    assert reproduce._growth(given, reproduce.PLAYERS, 0, 5) == scalability.Growth()
