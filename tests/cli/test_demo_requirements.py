"""What keeps the last act from being played, and what is said about it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearcast.cli import demo
from nearcast.cli.app import app
from nearcast.cli.demo import ActName


def test_the_free_memory_is_read_from_the_system(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 8000000 kB\nMemAvailable:    2000000 kB\n")
    assert demo.available_bytes(tmp_path / "meminfo") == 2_000_000 * 1024
    assert demo.available_bytes(tmp_path / "none") is None


def test_a_machine_too_small_is_told_and_plays_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "available_bytes", lambda: 1 << 30)
    assert demo._chosen(ActName.ALL) == (ActName.MOVES, ActName.POLICY, ActName.PLACES)
    assert "act 4 is left out: it needs 3.2 GB of memory, but 1.1 GB are free" in capsys.readouterr().err


def test_the_act_alone_is_refused_where_it_cannot_be_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "available_bytes", lambda: 1 << 30)
    result = CliRunner().invoke(app, ["demo", "--act", "channels"])
    assert result.exit_code == 2
    assert "act 4 cannot be played" in result.stderr


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else True)
    assert demo.obstacle() == "it needs pyspark: pip install 'nearcast[data]'"
