"""The programs people copy: those in `examples/`, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
RUN_S = 30.0


def run(*arguments: str, folder: Path) -> str:
    """What the program printed; it must end well and complain of nothing."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_hello(tmp_path: Path) -> None:
    assert run(str(EXAMPLES / "hello.py"), folder=tmp_path).splitlines() == [
        "brokers: b1, b2",
        *["published to 1 subscriber"] * 3,
        "got #1: hello Ada",
        "got #2: hello Grace",
        "got #3: hello Edsger",
    ]


def test_drop_in(tmp_path: Path) -> None:
    *messages, counters = run(str(EXAMPLES / "drop_in.py"), folder=tmp_path).splitlines()
    assert sorted(line.split() for line in messages) == [
        ["message", "-", "news", "goodbye"],
        ["message", "-", "news", "hello"],
        ["message", "-", "sport", "2:1"],
        ["pmessage", "weather.*", "weather.paris", "rain"],
    ]
    news = [line.split()[-1] for line in messages if " news " in line]
    assert news == ["hello", "goodbye"]  # topics may overtake each other, messages of one topic do not
    assert counters == "gaps: 0, interruptions: 0"


def test_move_while_publishing(tmp_path: Path) -> None:
    *moves, published, exact, told = run(str(EXAMPLES / "move_while_publishing.py"), folder=tmp_path).splitlines()
    assert [line.split(" in ")[0].split() for line in moves] == [
        ["moved", "to", "b1", "(single)"],
        ["moved", "to", "b2", "(single)"],
        ["moved", "to", "b1,", "b2,", "b3", "(all_subscribers)"],
        ["moved", "to", "b2,", "b3", "(all_publishers)"],
        ["moved", "to", "b3", "(single)"],
    ]
    assert int(published.removeprefix("published and acknowledged: ")) > len(moves)
    assert exact == "received exactly once and in order: True"
    assert told == "gaps and interruptions: 0"


def test_every_example_is_run_here() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in tests] == []
