"""`nearcast demo`: short real runs, and the screen at the sizes people have."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from nearcast.cli import demo as command
from nearcast.cli.app import app
from nearcast.cli.demo_view import View
from nearcast.core.bus import BrokerView, Report
from nearcast.core.placement import Mode, Placement
from nearcast.testbed.demo import Demo, Happening, Summary
from nearcast.testbed.games import CLIENTS_MIN, GAMES, SITES, DemoPlan

NEARCAST = (sys.executable, "-m", "nearcast", "demo")
SUMMARY = Summary(
    **dict.fromkeys(("seconds", "clients", "seed", "messages", "deliveries", "moves", "mode_changes"), 1),
    **dict.fromkeys(("agent_kills", "controller_kills", "lost", "duplicated", "reordered", "gaps", "interrupted"), 0),
    p50_ms=12.3,
    p99_ms=None,
    exact=True,
    examples=[],
)


@pytest.mark.live
def test_a_short_run_keeps_every_message_and_prints_json_alone() -> None:
    result = subprocess.run([*NEARCAST, "--seconds", "6", "--output", "json"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["exact"]
    assert [summary[name] for name in ("lost", "duplicated", "reordered", "gaps", "interrupted")] == [0] * 5
    assert summary["messages"] > 500
    assert summary["moves"] > 0
    assert summary["p50_ms"] >= 8  # no player is nearer to a broker
    assert "starting" in result.stderr


@pytest.mark.live
def test_ctrl_c_ends_it_with_the_summary_so_far_and_leaves_nothing_running() -> None:
    with subprocess.Popen([*NEARCAST, "--seconds", "600"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "Each game is a topic" in process.stdout.readline()
        time.sleep(1)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "guarantee" in shown
    assert "kept" in shown
    assert len(children) > len(SITES)
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


@pytest.mark.live
def test_ctrl_c_while_it_starts_ends_it_at_once() -> None:
    with subprocess.Popen(NEARCAST, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("starting")
        process.send_signal(signal.SIGINT)
        shown, said = process.communicate(timeout=20)
    assert (process.returncode, shown, said) == (130, "", "")


@pytest.mark.parametrize(("exact", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_says_whether_the_guarantee_was_kept(
    exact: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def finished(*_: object) -> Summary:
        return replace(SUMMARY, exact=exact, examples=[] if exact else ["subscriber 1 misses 3"])

    monkeypatch.setattr(command, "_demo", finished)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == code
    assert ("kept" in result.stdout, "BROKEN" in result.stdout) == (exact, not exact)
    assert ("subscriber 1 misses 3" in result.stderr) is not exact


def test_help_shows_an_example() -> None:
    assert "Example: nearcast demo --seconds 30" in " ".join(CliRunner().invoke(app, ["demo", "--help"]).stdout.split())


def test_fewer_clients_than_sites_need_are_a_usage_error() -> None:
    assert command.CLIENTS_MIN == CLIENTS_MIN
    result = CliRunner().invoke(app, ["demo", "--clients", str(CLIENTS_MIN - 1)])
    assert result.exit_code == 2
    assert "--clients" in result.stderr


def busy_demo() -> Demo:
    """A demo that never ran, filled with the widest things it can show."""
    demo = Demo(DemoPlan(), tell=print)
    for game in demo.games.values():
        game.placement = Placement(123, Mode.ALL_SUBSCRIBERS, ("paris", "virginia"))
        game.target, game.moves = (Mode.ALL_PUBLISHERS, ("paris", "virginia")), 123
        game.recent.add(demo.now_s, 2.345)
    for site in SITES:
        report = Report(site, 0.0, 1.0, 1_234_567.0, 1_234_567.0, 50, 10_000_000, 0.123, 0.0)
        demo.brokers[site] = BrokerView("redis://h", site, "member", alive=True, report=report)
    demo.events.extend(Happening(60.0, f"game.virginia: {'x' * 100}", kill=False) for _ in range(40))
    return demo


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30)])
def test_the_screen_fits_the_terminal(width: int, height: int) -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=width, height=height, color_system=None)
    console.print(View(console).screen(busy_demo()))
    lines = shown.getvalue().splitlines()
    assert len(lines) == height - 1
    assert max(map(len, lines)) <= width
    assert [line for line in lines if "…" in line] == [line for line in lines if "virginia: x" in line]  # only events
    assert all(any(line.startswith(topic) and "> paris+virginia" in line for line in lines) for topic in GAMES)
    assert all(any(line.startswith(site) and "1234.6" in line for line in lines) for site in SITES)


def test_lines_for_pipes_name_every_topic(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearcast.cli.demo_view.LINES_S", 0.01)

    async def scenario() -> None:
        demo = busy_demo()
        demo.begun.set()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(View(Console(force_terminal=False)).show(demo), 0.1)

    asyncio.run(scenario())
    shown = capsys.readouterr().out
    assert all(f"        {topic}" in shown for topic in GAMES)
    assert "noticed by subscribers: nothing" in shown
