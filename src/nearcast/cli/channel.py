"""`nearcast channel`: parameterised queries at the data cluster, and a check of one there or against files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli import channel_calls
from nearcast.cli.channel_calls import TextFile, text_of
from nearcast.cli.data_api import DEFAULT_DATA, DataUrl, call
from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import show
from nearcast.cli.running import errors_as_exit_codes, say
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        typer.Option(
            "--dataset",
            metavar="NAME=PATH",
            help="Check against files, with a Spark of its own: .parquet or .csv; repeat it.",
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the query for all subscriptions.")] = False,
    data: DataUrl = DEFAULT_DATA,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a channel against the data cluster's datasets, and show how its subscriptions will be joined with them.

    Nothing is created. With --dataset no data cluster is needed.

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
    from nearcast.pipeline import session
    from nearcast.pipeline.channels.analysis import analyse
    from nearcast.pipeline.channels.execution import schemas_of
    from nearcast.pipeline.channels.explanation import explained
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
        raise UsageError(f"--dataset {text}: there is no {path}")
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
