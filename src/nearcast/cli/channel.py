"""`nearcast channel`: parameterised queries at the data cluster, and a check of one without it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli import channel_calls
from nearcast.cli.channel_calls import TextFile, text_of
from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import show
from nearcast.cli.running import errors_as_exit_codes, say
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nearcast.pipeline.channels.language import Channel
    from nearcast.pipeline.channels.rewrite import Rewritten

app = typer.Typer(help="Channels: queries with parameters, run for all their subscriptions.", no_args_is_help=True)

COLUMNS = ("", "name", "")


app.command("create")(channel_calls.create)
app.command("list")(channel_calls.list_channels)
app.command("show")(channel_calls.show_channel)
app.command("drop")(channel_calls.drop)


@app.command("check")
@errors_as_exit_codes()
def check(
    file: TextFile,
    dataset: Annotated[
        list[str] | None,
        typer.Option("--dataset", metavar="NAME=PATH", help="A dataset it reads, .parquet or .csv; repeat it."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the query for all subscriptions.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a channel against its datasets, and show how its subscriptions will be joined with them.

    Example: nearcast channel check -f near_me.sql --dataset reports=reports.parquet --dataset shelters=shelters.csv
    """
    from nearcast.pipeline import session
    from nearcast.pipeline.channels.analysis import analyse
    from nearcast.pipeline.channels.execution import schemas_of
    from nearcast.pipeline.channels.language import parse_channel

    parsed = parse_channel(text_of(file))
    paths = dict(_dataset(text) for text in dataset or ())
    with session.open_session(session.SessionSettings(master="local[1]", app_name="nearcast-check")) as spark:
        schemas = schemas_of({name: _read(spark, path) for name, path in paths.items()})
        rewritten = analyse(spark, parsed, schemas).rewritten
    for warning in rewritten.warnings:
        say(f"warning: {warning}")
    show(output, _data(parsed, rewritten, explain), COLUMNS, _rows(parsed, rewritten), f"channel {parsed.name}: ok")
    if explain and output is Output.TABLE:
        print(rewritten.sql(pretty=True))


def _dataset(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not name.isidentifier() or Path(path).suffix not in (".parquet", ".csv"):
        raise UsageError(f"--dataset {text}: write NAME=PATH, with a path that ends in .parquet or .csv")
    if not Path(path).exists():
        raise UsageError(f"--dataset {text}: there is no {path}")
    return name, Path(path)


def _read(spark: SparkSession, path: Path) -> DataFrame:
    if path.suffix == ".csv":
        return spark.read.csv(str(path.absolute()), header=True, inferSchema=True)
    return spark.read.parquet(str(path.absolute()))


def _data(parsed: Channel, rewritten: Rewritten, explain: bool) -> dict[str, object]:
    data: dict[str, object] = {
        "channel": parsed.name,
        "period_s": parsed.period_s,
        "continuous": parsed.continuous,
        "parameters": dict(parsed.parameters),
        "new_datasets": parsed.new_datasets,
        "whole_datasets": parsed.whole_datasets,
        "columns": rewritten.columns,
        "joins": [{"relation": join.relation, "kind": join.kind, "on": join.conditions} for join in rewritten.joins],
        "warnings": rewritten.warnings,
    }
    return {**data, "sql": rewritten.sql(pretty=True)} if explain else data


def _rows(parsed: Channel, rewritten: Rewritten) -> list[tuple[str, str, str]]:
    mode = f"every {parsed.period_s:g} s" if not parsed.continuous else f"continuous, {parsed.period_s:g} s apart"
    return [
        ("runs", mode, ""),
        *(("parameter", name, kind) for name, kind in parsed.parameters.items()),
        *(("new records of", name, "") for name in parsed.new_datasets),
        *(("whole dataset", name, "") for name in parsed.whole_datasets),
        *((f"{join.kind} join", join.relation, " AND ".join(join.conditions)) for join in rewritten.joins),
        *(("result column", name, "") for name in rewritten.columns),
    ]
