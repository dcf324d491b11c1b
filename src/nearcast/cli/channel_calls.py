"""`nearcast channel create|list|show|drop`: channels at the data cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nearcast.cli.data_api import DEFAULT_DATA, DataUrl, call, path
from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import print_table, show
from nearcast.cli.running import errors_as_exit_codes, say
from nearcast.errors import UsageError

CHANNEL_COLUMNS = ("channel", "runs", "parameters", "result", "subscriptions", "executions", "problem")
EXECUTION_COLUMNS = ("execution", "new records", "results", "seconds", "latency s")

Name = Annotated[str, typer.Argument(metavar="CHANNEL")]
TextFile = Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="The text of the channel.")]


def text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}; give a text file with CREATE CHANNEL ...") from None


@errors_as_exit_codes()
def create(file: TextFile, data: DataUrl = DEFAULT_DATA, output: OutputOption = Output.TABLE) -> None:
    """Check a channel against the data cluster's datasets, and run it from now on.

    A text that begins with CREATE OR REPLACE CHANNEL takes the place of another one of the name: subscriptions stay.

    Example: nearcast channel create -f near_me.sql
    """
    channel = call(data, "POST", "/channels", json={"text": text_of(file)})
    for warning in channel["warnings"]:
        say(f"warning: {warning}")
    if channel["made"] == "replaced":
        first = channel["from_execution"]
        held = channel["subscriptions"]
        say(f"channel {channel['name']} was replaced: its {held} subscriptions go on with execution {first}")
    show(output, channel, CHANNEL_COLUMNS, [_row(channel)])


@errors_as_exit_codes()
def list_channels(data: DataUrl = DEFAULT_DATA, output: OutputOption = Output.TABLE) -> None:
    """Show all channels.

    Example: nearcast channel list
    """
    found = call(data, "GET", "/channels")
    show(output, found, CHANNEL_COLUMNS, [_row(channel) for channel in found["channels"]])


@errors_as_exit_codes()
def show_channel(
    name: Name,
    last: Annotated[int, typer.Option("--last", min=1, max=1000, help="Executions to show.")] = 10,
    plan: Annotated[bool, typer.Option("--plan", help="With Spark's plan of the last one.")] = False,
    data: DataUrl = DEFAULT_DATA,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a channel and its last executions.

    Example: nearcast channel show near_me --last 3 --plan
    """
    channel = call(data, "GET", path("channels", name))
    params = {"last": last, "plan": plan}
    executions = call(data, "GET", path("channels", name, "executions"), params=params)["executions"]
    rows = [_execution_row(execution) for execution in executions]
    if output is Output.TABLE:
        print_table(CHANNEL_COLUMNS, [_row(channel)])
        print(channel["text"])
    show(output, {**channel, "last": executions}, EXECUTION_COLUMNS, rows)
    if plan and output is Output.TABLE and executions:
        print(executions[0]["plan"])


@errors_as_exit_codes()
def drop(name: Name, data: DataUrl = DEFAULT_DATA) -> None:
    """End a channel, with its subscriptions and results.

    Example: nearcast channel drop near_me
    """
    call(data, "DELETE", path("channels", name))
    say(f"channel {name} was dropped")


def _row(channel: dict[str, Any]) -> tuple[str, ...]:
    period = f"{channel['period_s']:g} s"
    return (
        channel["name"],
        f"continuous, {period} apart" if channel["continuous"] else f"every {period}",
        ", ".join(f"{name} {kind}" for name, kind in channel["parameters"].items()),
        ", ".join(channel["columns"]),
        str(channel["subscriptions"]),
        str(channel["committed"]),
        channel["problem"],
    )


def _execution_row(execution: dict[str, Any]) -> tuple[str, ...]:
    if execution["committed"] is None:
        return (str(execution["execution"]), "", "", "runs", "")
    latency_s = execution["latency_s"]
    return (
        str(execution["execution"]),
        str(execution["rows_in"]),
        str(execution["rows_out"]),
        f"{execution['seconds']:.2f}",
        "" if latency_s is None else f"{latency_s:.2f}",
    )
