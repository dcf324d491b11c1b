"""`nearcast log`: times and sizes as people write them, and a log from its creation to its end on a real cluster."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import nearcast
from nearcast.cli.app import app
from nearcast.cli.log import _read, seconds, size, start
from nearcast.cli.shared import Output
from nearcast.core.model.logs import Log
from nearcast.errors import UsageError
from nearcast.runtime.console import Console
from nearcast.testing.waiting import until


@pytest.mark.parametrize(
    ("text", "wanted"), [("90", 90), ("1.5s", 1.5), ("30m", 1800), ("1h", 3600), ("7 d", 604800), ("20ms", 0.02)]
)
def test_times_are_read_as_people_write_them(text: str, wanted: float) -> None:
    assert seconds(text) == wanted


@pytest.mark.parametrize(("text", "wanted"), [("512MB", 512e6), ("2GiB", 2 << 30), ("64k", 64e3), ("1000", 1000)])
def test_sizes_are_read_as_people_write_them(text: str, wanted: int) -> None:
    assert size(text) == wanted


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (seconds, "soon", "bad time 'soon'"),
        (seconds, "-1h", "bad time '-1h'"),
        (size, "much", "bad size 'much'"),
        (size, "1QB", "bad size '1QB'"),
        (start, "yesterday", "cannot read from 'yesterday'"),
        (seconds, "9" * 400, "bad time '9999"),
        (size, "9" * 400, "bad size '9999"),
        (start, "9" * 400, "cannot read from '9999"),
    ],
)
def test_what_cannot_be_read_is_explained(read: Any, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(text)


def log(cluster: dict[str, Any], *arguments: str) -> Result:
    return CliRunner().invoke(app, ["log", *arguments, "--url", cluster["store"]])


def publish(cluster: dict[str, Any], count: int) -> None:
    async def scenario() -> None:
        async with nearcast.connect(cluster["brokers"]["b1"]) as client:
            for number in range(count):
                await client.publish(f"order.{number % 3}", f"order {number}")

    asyncio.run(scenario())


NOT_UTF8 = "\udcff"  # as the shell's bytes arrive
MISTAKES = [
    (("show", "bills"), "no log 'bills'; the cluster has: none"),
    (("create", "orders", "--topics", NOT_UTF8), "bad topic pattern '\\udcff'"),
    (("create", "orders", "--topics", "x" * 600), "bad topic pattern 'xxx"),
    (("create", "orders", "--topics", "x", "--retain", "9999999d"), "messages cannot be kept for 8.64e+11 s"),
    (("drop", NOT_UTF8), "is not UTF-8"),
    (("abandon", NOT_UTF8), "is not UTF-8"),
]


@pytest.mark.live
def test_a_log_is_created_read_shown_and_dropped(cluster: dict[str, Any]) -> None:
    made = log(cluster, "create", "orders", "--topics", "order.*", "--retain", "10m", "-o", "json")
    assert made.exit_code == 0, made.output
    (data,) = json.loads(made.stdout)["logs"]
    assert (data["log"], data["topics"], data["retain_s"], data["messages"]) == ("orders", ["order.*"], 600.0, 0)
    again = log(cluster, "create", "orders", "--topics", "order.*", "--retain", "10m")
    assert again.exit_code == 0, "it may be repeated"
    other = log(cluster, "create", "orders", "--topics", "x")
    assert (other.exit_code, "with other settings" in other.stderr) == (1, True)
    publish(cluster, 30)

    lines = log(cluster, "read", "orders").stdout.splitlines()
    assert sorted(line.split(" ", 3)[3] for line in lines) == sorted(f"order {number}" for number in range(30))
    some = log(cluster, "read", "orders", "--max", "5", "-o", "json")
    found = [json.loads(line) for line in some.stdout.splitlines()]
    assert len(found) == 5
    assert set(found[0]) == {"at", "topic", "publisher", "number", "payload"}

    assert len(log(cluster, "read", "orders", "--group", "billing").stdout.splitlines()) == 30
    publish(cluster, 6)
    assert len(log(cluster, "read", "orders", "--group", "billing").stdout.splitlines()) == 6, "it continues"
    shown = json.loads(log(cluster, "show", "orders", "-o", "json").stdout)
    assert shown["messages"] == sum(part["messages"] for part in shown["parts"]) == 36
    assert all(part["unread"].get("billing", 0) == 0 for part in shown["parts"])
    assert "billing: 0" in log(cluster, "show", "orders").stdout
    assert "orders" in log(cluster, "list").stdout

    living = log(cluster, "abandon", shown["parts"][0]["part"])
    assert (living.exit_code, "has not ended: `nearcast brokers drain b1 --abandon`" in living.stderr) == (1, True)

    assert log(cluster, "drop", "orders").exit_code == 0
    for mistake, said in MISTAKES:
        refused = log(cluster, *mistake)
        assert (refused.exit_code, said in refused.stderr) == (2, True), (mistake, refused.exit_code, refused.stderr)
    for command in ("read", "show"):
        gone = log(cluster, command, "orders")
        assert (gone.exit_code, "no log 'orders'; the cluster has: none" in gone.stderr) == (2, True)


@pytest.mark.live
def test_what_a_group_has_printed_is_committed_when_ctrl_c_ends_it(cluster: dict[str, Any]) -> None:
    assert log(cluster, "create", "orders", "--topics", "order.*").exit_code == 0
    publish(cluster, 7)
    command = ["log", "read", "orders", "--group", "tail", "--follow", "--url", cluster["store"]]
    with subprocess.Popen([sys.executable, "-m", "nearcast", *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(7)]
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=20)
    assert (process.returncode, rest) == (130, "")
    assert len(set(lines)) == 7
    assert log(cluster, "read", "orders", "--group", "tail").stdout == ""
    assert log(cluster, "drop", "orders").exit_code == 0


@pytest.mark.live
def test_who_follows_in_a_group_commits_when_nothing_comes(cluster: dict[str, Any]) -> None:
    """Where topics move, members wait until the others have committed what they have taken."""

    async def scenario() -> None:
        async with Console(cluster["store"]) as console:
            await console.create_log(Log("followed", 0, ("followed",), 60.0, 1 << 20))
            async with nearcast.connect(cluster["brokers"]["b1"]) as client:
                await client.publish("followed", "one")
            options: dict[str, Any] = {"follow": True, "limit": None, "output": Output.TABLE}
            following = asyncio.create_task(_read(cluster["store"], "followed", "billing", "earliest", **options))

            async def committed() -> bool:
                parts = (await console.logs()).parts.values()
                return [load.groups for loads in parts for load in loads.values() if load.total] == [{"billing": 0}]

            await until(committed, "what was printed is committed", 5)
            assert not following.done()
            following.cancel()
            await console.drop_log("followed")

    asyncio.run(scenario())
