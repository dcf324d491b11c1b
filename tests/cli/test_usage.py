"""The command line without a cluster: help, usage errors, and what is not imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from nearcast.__main__ import main
from nearcast.cli.app import app
from nearcast.cli.shared import Output, name_server, printable, show, topic_data, topic_row
from nearcast.cli.topic import MoveMode
from nearcast.core.model.placement import Mode, Placement
from nearcast.core.wire.views import TopicState

HERE = Placement(7, Mode.SINGLE, ("b2",))
COMMANDS = [
    "up",
    "agent",
    "controller",
    "brokers",
    "brokers calibrate",
    "brokers capacity",
    "brokers drain",
    "channel create",
    "channel list",
    "channel show",
    "channel drop",
    "data",
    "dataset load",
    "dataset list",
    "dataset drop",
    "feed create",
    "feed list",
    "feed alter",
    "feed drop",
    "topic move",
    "topic show",
    "plan show",
    "plan decisions",
    "bench client",
    "bench coordinates",
    "bench plan",
    "bench flow",
    "simulate protocol",
    "simulate flow",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"Example: nearcast {command}" in " ".join(result.stdout.split())


GROUPS = [group.name or "" for group in app.registered_groups]


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_no_line_of_a_list_of_commands_is_cut(group: str) -> None:
    result = CliRunner().invoke(app, [*group.split(), "--help"], terminal_width=80)
    assert result.exit_code == 0
    _, commands = result.stdout.split("Commands:\n")
    assert [line for line in commands.splitlines() if line and not line.endswith(".")] == []
    assert [line for line in commands.splitlines() if line.endswith("...")] == []


@pytest.mark.parametrize("command", [*COMMANDS, "topic", "plan", "bench", ""])
def test_an_unknown_option_is_a_usage_error(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--no-such-option"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "--no-such-option" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topic", "move", "t"], "--to"),
        (["topic", "move", "t", "--to", "b1", "--mode", "homes"], "'all_publishers'"),
        (["topic", "move", "t", "--to", "b1", "--mode", "none"], "'single'"),
        (["topic", "move", "t", "--to", ""], "bad broker name ''"),
        (["topic", "move", "t", "--to", "b1,"], "bad broker name ''"),
        (["topic", "move", "", "--to", "b1"], "must not be empty"),
        (["topic", "move", "nc:t", "--to", "b1"], "'nc:' is reserved"),
        (["topic", "move", "x" * 513, "--to", "b1"], "at most 512"),
        (["topic", "show", "nc:t"], "'nc:' is reserved"),
        (["topic", "show", "--url", "http://localhost"], "bad server URL"),
        (["topic", "show", "--output", "yaml"], "'json'"),
        (["brokers", "--url", "redis://h:port"], "bad server URL"),
        (["brokers", "--url", "redis://h", "drain", "b1"], "give --url after the subcommand: nearcast brokers drain"),
        (["brokers", "-o", "json", "calibrate"], "give --output after the subcommand"),
        (["brokers", "capacity", "b1", "fast"], "125MB, 80MiB, 1Gbit"),
        (["brokers", "capacity", "b/1", "1MB"], "bad broker name"),
        (["brokers", "calibrate", "--seconds", "0"], "--seconds"),
        (["brokers", "calibrate", "--payload-bytes", "0"], "--payload-bytes"),
        (["up", "--brokers", "0"], "at least one broker"),
        (["up", "--brokers", "a b"], "bad broker name 'a b'"),
        (["agent", "--broker", "b1", "--server", "redis://h"], "--store"),
        (["agent", "--broker", "b,1", "--server", "redis://h", "--store", "redis://s"], "bad broker name"),
        (["agent", "--broker", "b", "--server", "redis://h", "--store", "redis://s", "--site", "/"], "bad site name"),
        (["agent", "--broker", "b", "--server", "x://h", "--store", "redis://s"], "bad server URL"),
        (
            ["agent", "--broker", "b", "--server", "redis://h", "--store", "redis://s", "--advertise", "redis://:p@h"],
            "not contain a user or password",
        ),
        (["topic", "move", "scores.*", "--to", "b1"], "not by pattern"),
        (["up", "--max-brokers", "4"], "--max-brokers needs a policy"),
        (["controller", "--store", "redis://s", "--max-brokers", "4"], "--max-brokers needs a policy"),
        (["up", "--policy", "dynamoth", "--set", "lr_high=7"], "lr_high <= 1"),
        (["up", "--timer", "lease_s=5"], "timers break the rule 1.1 * lease_s < dead_s"),
        (["controller", "--store", "redis://s", "--timer", "idle_s=inf"], "idle_s is inf s"),
        (["controller", "--store", "redis://s", "--timer", "gap_s=2"], "there is no timer gap_s"),
        (["controller", "--store", "redis://s", "--timer", "lease_s"], "NAME=VALUE"),
        (
            ["controller", "--store", "redis://s", "--timer", "idle_s=60", "--timer", "idle_s=90"],
            "idle_s is given twice",
        ),
        (["up", "--policy", "dynamoth", "--set", "lr_high=0.7", "--set", "lr_high = 0.8"], "lr_high is given twice"),
        (
            ["up", "--balance", "ldm", "--balance-set", "alpha=0.1", "--balance-set", "alpha=0.1"],
            "alpha is given twice",
        ),
        (["controller", "--store", "redis://s", "--timer", "dead_s=soon"], "soon is not a number of seconds"),
        (["controller"], "--store"),
        (["controller", "--store", "nonsense"], "bad server URL"),
        (["bench", "client", "--seconds", "0"], "--seconds"),
        (["bench", "coordinates"], "--matrix"),
        (["bench", "coordinates", "--matrix", "gone.csv"], "cannot read the matrix gone.csv"),
        (["bench", "coordinates", "--matrix", "gone.csv", "--probes", "0"], "--probes"),
    ],
)
def test_a_wrong_call_says_so_and_exits_with_2(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_a_server_that_is_not_there_exits_with_1_and_one_line() -> None:
    result = CliRunner().invoke(app, ["brokers"], env={"NEARCAST_URL": "redis://127.0.0.1:1"})
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: redis://127.0.0.1:1: cannot connect")
    assert len(result.stderr.splitlines()) == 1


def test_all_modes_can_be_chosen_but_homes_which_is_not_there_yet() -> None:
    assert set(MoveMode) == set(Mode) - {Mode.HOMES}


def test_the_module_is_the_command() -> None:
    run = subprocess.run([sys.executable, "-m", "nearcast", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.strip().count(".") == 2


def test_help_does_not_import_what_only_commands_need() -> None:
    code = "import sys, nearcast.cli.app; print([m for m in sys.modules if m.startswith(('rich.table', 'redis'))])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_without_typer_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nearcast.cli.app")
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"pip install 'nearcast\[cli\]'"):
        main()


def test_a_name_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(Output.TABLE, {}, ("topic",), [("\x1b[2J",), ("[red]plain[/red]",)])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[red]plain[/red]" in out
    assert printable("été") == "été"


def test_a_topic_says_where_it_is_going() -> None:
    target = Placement(8, Mode.ALL_PUBLISHERS, ("b1", "b3"))
    state = TopicState(HERE, target, "ready")
    assert topic_row("t", state) == ("t", "single", "b2", "7", "moving to b1, b3 (all_publishers), stage ready")
    assert topic_data(state)["target"] == {"epoch": 8, "mode": "all_publishers", "brokers": ("b1", "b3")}
    assert topic_row("t", TopicState(HERE))[-1] == "settled"
    assert topic_row("t", TopicState(HERE, planned=False))[-1] == "not placed: on its directory"


def test_json_is_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    show(Output.JSON, {"topics": {"t": 1}}, ("topic",), [("t",)], "a title")
    assert json.loads(capsys.readouterr().out) == {"topics": {"t": 1}}


@pytest.mark.parametrize("command", [["simulate", "flow"], ["bench", "plan"], ["reproduce", "dynamoth-4a"]])
def test_a_missing_extra_is_named(command: list[str]) -> None:
    without = f"import sys; sys.modules['numpy'] = None; sys.argv = ['nearcast', *{command}]"
    program = f"{without}; from nearcast.__main__ import main; main()"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert "pip install 'nearcast[policies]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def commands_of(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The commands below one that do something, by how they are called."""
    below = getattr(command, "commands", {})
    if not below or getattr(command, "invoke_without_command", False):
        yield path, command
    for name, sub in below.items():
        yield from commands_of(sub, f"{path} {name}")


def test_every_command_shows_an_example() -> None:
    found = dict(commands_of(get_command(app), "nearcast"))
    assert len(found) > 50
    assert [name for name, command in found.items() if f"Example: {name}" not in (command.help or "")] == []


# --- servers of the machine


def test_a_server_found_on_path_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    name_server()
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    name_server()
    assert capsys.readouterr().err == f"using {server}, found on PATH\n"
