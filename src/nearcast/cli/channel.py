"""`nearcast channel`: parameterised queries of the data cluster, and a check of one there or against files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.data import DEFAULT_DATA, DataUrl, call, path
from nearcast.cli.shared import Output, OutputOption, errors_as_exit_codes, print_table, say, show
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


CHANNEL_COLUMNS = ("channel", "runs", "parameters", "result", "subscriptions", "executions", "problem")
EXECUTION_COLUMNS = ("execution", "new records", "results", "seconds", "latency s")

Name = Annotated[str, typer.Argument(metavar="CHANNEL")]
TextFile = Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="A file with the channel's text.")]


def text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}; give a text file with CREATE CHANNEL ...") from None


@errors_as_exit_codes()
def create(file: TextFile, data: DataUrl = DEFAULT_DATA, output: OutputOption = Output.TABLE) -> None:
    """Create a channel, and run it from now on.

    It is first checked against the data cluster's datasets.

    A text that begins with CREATE OR REPLACE CHANNEL replaces a channel of the same name and keeps its subscriptions.

    Example: nearcast channel create -f near_me.sql
    """
    channel = call(data, "POST", "/channels", json={"text": text_of(file)})
    for warning in channel["warnings"]:
        say(f"warning: {warning}")
    if channel["made"] == "replaced":
        first = channel["from_execution"]
        held = channel["subscriptions"]
        say(f"channel {channel['name']} was replaced; its {held} subscriptions continue with execution {first}")
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
    plan: Annotated[bool, typer.Option("--plan", help="Also show Spark's plan of the last one.")] = False,
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
    """Drop a channel, with its subscriptions and results.

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
        return (str(execution["execution"]), "", "", "running", "")
    latency_s = execution["latency_s"]
    return (
        str(execution["execution"]),
        str(execution["rows_in"]),
        str(execution["rows_out"]),
        f"{execution['seconds']:.2f}",
        "" if latency_s is None else f"{latency_s:.2f}",
    )


app = typer.Typer(help="Manage channels: queries with parameters.", no_args_is_help=True)

COLUMNS = ("", "name", "")


app.command("create")(create)
app.command("list")(list_channels)
app.command("show")(show_channel)
app.command("drop")(drop)


@app.command("check")
@errors_as_exit_codes()
def check(
    file: TextFile,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            "--dataset",
            metavar="NAME=PATH",
            help="Check against a .parquet or .csv file, on a local Spark. Repeatable.",
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the query that serves all subscriptions.")] = False,
    data: DataUrl = DEFAULT_DATA,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a channel without creating it.

    It is checked against the data cluster's datasets, and the answer shows how its subscriptions will be joined with
    them. With --dataset, no data cluster is needed.

    Example: nearcast channel check -f near_me.sql --dataset reports=reports.parquet --dataset shelters=shelters.csv
    """
    text = text_of(file)
    found = _checked_here(text, dataset) if dataset else call(data, "POST", "/channels/check", json={"text": text})
    sql = found["sql"] if explain else found.pop("sql")
    for warning in found["warnings"]:
        say(f"warning: {warning}")
    show(output, found, COLUMNS, _rows(found), f"channel {found['channel']}: ok")
    if explain and output is Output.TABLE:
        print(sql)


def _checked_here(text: str, datasets: list[str]) -> dict[str, Any]:
    from nearcast.pipeline import spark as session
    from nearcast.pipeline.channels.analysis import analyse, explained
    from nearcast.pipeline.channels.execution import schemas_of
    from nearcast.pipeline.channels.language import parse_channel

    parsed = parse_channel(text)
    paths = dict(_dataset(named) for named in datasets)
    with session.open_session(session.SessionSettings(master="local[1]", app_name="nearcast-check")) as spark:
        schemas = schemas_of({name: _read(spark, path) for name, path in paths.items()})
        return explained(analyse(spark, parsed, schemas))


def _dataset(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not name.isidentifier() or Path(path).suffix not in (".parquet", ".csv"):
        raise UsageError(f"--dataset {text}: write NAME=PATH, with a path that ends in .parquet or .csv")
    if not Path(path).exists():
        raise UsageError(f"--dataset {text}: there is no file {path}")
    return name, Path(path)


def _read(spark: SparkSession, path: Path) -> DataFrame:
    if path.suffix == ".csv":
        return spark.read.csv(str(path.absolute()), header=True, inferSchema=True)
    return spark.read.parquet(str(path.absolute()))


def _rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    period = f"{found['period_s']:g} s"
    return [
        ("runs", f"continuous, {period} apart" if found["continuous"] else f"every {period}", ""),
        *(("parameter", name, kind) for name, kind in found["parameters"].items()),
        *(("new records of", name, "") for name in found["new_datasets"]),
        *(("whole dataset", name, "") for name in found["whole_datasets"]),
        *((f"{join['kind']} join", join["relation"], " AND ".join(join["on"])) for join in found["joins"]),
        *(("result column", name, "") for name in found["columns"]),
    ]
