"""The clock of a folder: it runs while a process has it open, and no change of the wall clock moves it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.executions import AHEAD_S, RunningTime


class Clock:
    now_s = 500.0

    def __call__(self) -> float:
        return self.now_s


def test_time_goes_on_over_restarts_and_kills_and_never_back(tmp_path: Path) -> None:
    clock = Clock()
    database = Database(tmp_path / "c.sqlite")
    running = RunningTime(database, clock)
    began_s = running()
    clock.now_s += 1000.0
    assert running() == pytest.approx(began_s + 1000.0)
    clock.now_s = 3.0  # another process, on a machine that was just started
    again = RunningTime(database, clock)
    assert began_s + 1000.0 <= again() <= began_s + 1000.0 + AHEAD_S
    database.close()


def test_the_wall_clock_does_not_move_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(tmp_path / "c.sqlite")
    running = RunningTime(database)
    before_s = running()
    there_s = time.time()
    for step_s in (25 * 3600, -25 * 3600):
        monkeypatch.setattr(time, "time", lambda step_s=step_s: there_s + step_s)
        assert 0 <= running() - before_s < 60
    database.close()
