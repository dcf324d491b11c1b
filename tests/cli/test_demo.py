"""`nearcast demo`: short real runs, what it prints, and its exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearcast.cli import demo
from nearcast.cli.app import app
from nearcast.cli.demo_views.summary import summary_rows
from nearcast.demo.act import Summary
from nearcast.demo.delays import Delays
from nearcast.demo.moves import CLIENTS_MIN, SITES, MovesSummary
from nearcast.demo.places import Compared, PlacesSummary
from nearcast.demo.policy import PolicySummary
from nearcast.testing.waiting import wait_until

NEARCAST = (sys.executable, "-m", "nearcast", "demo")
COMMON = {
    **dict.fromkeys(("seconds", "clients", "seed", "messages", "deliveries", "moves", "controller_kills"), 1),
    **dict.fromkeys(("lost", "duplicated", "reordered", "gaps", "interrupted"), 0),
    **dict.fromkeys(("exact", "finished"), True),
    **{name: [] for name in ("examples", "missed")},
    "p50_ms": 12.3,
    "p99_ms": None,
}
MOVES = MovesSummary(**COMMON, mode_changes=1, agent_kills=1, kept=500, read=500)
POLICY = PolicySummary(
    **COMMON, servers_added=2, servers_removed=2, topics_replicated=2, topics_collapsed=2, decisions=9
)
NEAR, FAR = Delays(11.2, 15.9, 1.0), Delays(165.0, 252.0, 0.3333)
PLACES_COMMON = {name: value for name, value in COMMON.items() if name != "controller_kills"}
PLACES = PlacesSummary(
    **PLACES_COMMON,
    bound_ms=60.0,
    before=Compared(bound=NEAR, hashed=FAR),
    during=Compared(bound=Delays(None, None, None), hashed=FAR),
    after=None,
    followed_s=8.2,
    back_s=None,
    decisions=12,
)


def children_of(process: subprocess.Popen[str]) -> list[str]:
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def still_there(children: list[str]) -> list[str]:
    return [child for child in children if Path(f"/proc/{child}").exists()]


# --- real runs


@pytest.mark.live
def test_a_short_run_keeps_every_message_and_prints_json_alone() -> None:
    arguments = ("--act", "moves", "--seconds", "6", "--output", "json")
    result = subprocess.run([*NEARCAST, *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    assert (printed["ok"], list(printed["acts"])) == (True, ["moves"])
    summary = printed["acts"]["moves"]
    assert summary["exact"]
    assert [summary[name] for name in ("lost", "duplicated", "reordered", "gaps", "interrupted")] == [0] * 5
    assert summary["messages"] > 500
    assert summary["moves"] > 0
    assert summary["p50_ms"] >= 8  # no player is nearer to a broker
    assert "starting" in result.stderr


@pytest.mark.live
@pytest.mark.parametrize(
    ("arguments", "first_line", "processes"),
    [
        (("--seconds", "600"), "Each game is a topic", len(SITES)),
        (("--act", "policy"), "People come and go", 3),
        (("--act", "places"), "Two groups of players", len(SITES)),
    ],
)
def test_ctrl_c_ends_it_with_the_summary_so_far_and_leaves_nothing_running(
    arguments: tuple[str, ...], first_line: str, processes: int
) -> None:
    with subprocess.Popen([*NEARCAST, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert first_line in process.stdout.readline()
        wait_until(lambda: len(children_of(process)) > processes, "its processes run")
        children = children_of(process)
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "ended early" in shown
    assert "kept" in shown
    assert shown.count("guarantee") == 1  # the act that was ended is the last one
    assert not still_there(children)


@pytest.mark.live
def test_ctrl_c_while_it_starts_ends_it_at_once() -> None:
    with subprocess.Popen(NEARCAST, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(("starting", "using"))
        process.send_signal(signal.SIGINT)
        shown, said = process.communicate(timeout=20)
    assert (process.returncode, shown, said) == (130, "", "")


# --- what it prints


def invoke(monkeypatch: pytest.MonkeyPatch, summaries: dict[str, Summary], *arguments: str) -> tuple[int, str, str]:
    """The command with acts that have been played already."""

    async def finished(*_: object) -> dict[str, Summary]:
        return summaries

    monkeypatch.setattr(demo, "_demo", finished)
    result = CliRunner().invoke(app, ["demo", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_json_has_the_summaries_of_all_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    code, shown, said = invoke(monkeypatch, {"moves": MOVES, "policy": POLICY}, "--output", "json")
    assert (code, said) == (0, "")
    printed = json.loads(shown)
    assert printed["ok"] is True
    assert list(printed["acts"]) == ["moves", "policy"]
    assert (printed["acts"]["policy"]["servers_added"], printed["acts"]["moves"]["mode_changes"]) == (2, 1)
    for summary in printed["acts"].values():
        assert set(COMMON) <= set(summary)


def test_json_compares_both_sides_of_the_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    _, shown, _ = invoke(monkeypatch, {"places": PLACES}, "--output", "json")
    places = json.loads(shown)["acts"]["places"]
    assert places["before"]["bound"] == {"p50_ms": 11.2, "p95_ms": 15.9, "within_share": 1.0}
    assert places["during"]["hashed"]["within_share"] == 0.3333
    assert (places["after"], places["back_s"]) == (None, None)


BROKEN = replace(MOVES, exact=False, examples=["subscriber 1 misses 3"])
IDLE = replace(POLICY, missed=["not within 40 s: a server is added"])


@pytest.mark.parametrize(
    ("summaries", "code", "said"),
    [
        ({"moves": MOVES, "policy": POLICY}, 0, ""),
        ({"moves": BROKEN, "policy": POLICY}, 1, "  subscriber 1 misses 3\n"),
        (
            {"moves": MOVES, "policy": IDLE},
            1,
            "an act did not show what it should: not within 40 s: a server is added\n",
        ),
    ],
)
def test_the_exit_code_says_whether_all_was_as_promised(
    summaries: dict[str, Summary], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for output in ("table", "json"):
        assert (code, said) == invoke(monkeypatch, summaries, "--output", output)[::2]


@pytest.mark.parametrize(
    ("summary", "rows"),
    [
        (MOVES, {"moves": "1, including 1 changes of mode", "guarantee": "kept", "latency": "p50 12 ms, p99 unknown"}),
        (POLICY, {"servers": "2 added, 2 removed", "hot topics": "2 replicated, 2 collapsed"}),
        (
            PLACES,
            {
                "bound": "60 ms from publish to receipt",
                "before the swap: with a bound": "p50 11 ms, p95 16 ms, 100% within the bound",
                "before the swap: hashed": "p50 165 ms, p95 252 ms, 33% within the bound",
                "meanwhile: with a bound": "p50 unknown, p95 unknown, unknown within the bound",
                "topics followed": "8.2 s after the swap, with 1 moves in all",
                "back within the bound": "not seen",
            },
        ),
        (BROKEN, {"guarantee": "BROKEN"}),
        (IDLE, {"policy check": "FAILED"}),
        (replace(POLICY, finished=False), {"time": "1 s, ended early", "policy check": "not finished"}),
    ],
)
def test_the_table_of_a_summary(summary: Summary, rows: dict[str, str]) -> None:
    shown = dict(summary_rows(summary))
    assert {name: shown[name] for name in rows} == rows


# --- how it is called


def test_help_shows_an_example() -> None:
    shown = " ".join(CliRunner().invoke(app, ["demo", "--help"]).stdout.split())
    assert "Example: nearcast demo --act moves --seconds 20" in shown


def test_fewer_clients_than_sites_need_are_a_usage_error() -> None:
    assert demo.CLIENTS_MIN == CLIENTS_MIN
    result = CliRunner().invoke(app, ["demo", "--clients", str(CLIENTS_MIN - 1)])
    assert result.exit_code == 2
    assert "--clients" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--act", "third"), "--act"),
        (("--act", "policy", "--seconds", "20"), "--seconds is for act 1"),
        (("--act", "policy", "--clients", "48"), "--clients is for act 1"),
    ],
)
def test_options_that_do_not_fit_are_usage_errors(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["demo", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr
