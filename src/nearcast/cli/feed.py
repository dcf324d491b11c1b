"""`nearcast feed`: topics whose messages become records of datasets."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from nearcast.cli.data_api import DEFAULT_DATA, DataUrl, call, path
from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import show
from nearcast.cli.running import errors_as_exit_codes, say

app = typer.Typer(help="Feeds: messages of topics, stored as records of a dataset.", no_args_is_help=True)

COLUMNS = ("feed", "topic", "format", "key", "records", "dead letters", "gaps", "lost", "columns")

Name = Annotated[str, typer.Argument(metavar="FEED")]


class Format(StrEnum):
    JSON = "json"
    MSGPACK = "msgpack"


@app.command("create")
@errors_as_exit_codes()
def create(
    name: Name,
    topic: Annotated[str, typer.Option("--topic", metavar="PATTERN", help="A topic, or a pattern as emergency.*")],
    schema: Annotated[str, typer.Option("--schema", metavar="COLUMNS", help="As in CREATE TABLE.")],
    key: Annotated[str, typer.Option("--key", metavar="COLUMN", help="Keep the newest record of each value.")] = "",
    format: Annotated[Format, typer.Option("--format", help="How messages are written.")] = Format.JSON,
    data: DataUrl = DEFAULT_DATA,
    output: OutputOption = Output.TABLE,
) -> None:
    """Store the messages of topics as records of the dataset of the same name. The same again changes nothing.

    Example: nearcast feed create emergency_reports --topic 'emergency.*'
    --schema 'kind STRING NOT NULL, lat DOUBLE, lon DOUBLE, message STRING'
    """
    body = {"name": name, "topic": topic, "schema": schema, "key": key, "format": str(format)}
    _show([call(data, "POST", "/feeds", json=body)], output)


@app.command("list")
@errors_as_exit_codes()
def list_feeds(data: DataUrl = DEFAULT_DATA, output: OutputOption = Output.TABLE) -> None:
    """Show all feeds, with what became of their messages.

    Example: nearcast feed list
    """
    _show(call(data, "GET", "/feeds")["feeds"], output)


@app.command("alter")
@errors_as_exit_codes()
def alter(
    name: Name,
    add: Annotated[str, typer.Option("--add", metavar="COLUMNS", help="As in CREATE TABLE.")],
    data: DataUrl = DEFAULT_DATA,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add columns to a feed's dataset; records that are there have null in them.

    Example: nearcast feed alter emergency_reports --add 'severity INT'
    """
    _show([call(data, "PATCH", path("feeds", name), json={"add": add})], output)


@app.command("drop")
@errors_as_exit_codes()
def drop(name: Name, data: DataUrl = DEFAULT_DATA) -> None:
    """End a feed. Its dataset stays, see `nearcast dataset drop`.

    Example: nearcast feed drop emergency_reports
    """
    call(data, "DELETE", path("feeds", name))
    say(f"feed {name} was dropped")


def _show(feeds: list[dict[str, Any]], output: Output) -> None:
    rows = [
        (
            *(str(feed[part]) for part in ("name", "topic", "format", "key", "records", "dead", "gaps", "lost")),
            ", ".join(f"{name} {kind}" for name, kind in feed["columns"].items() if not name.startswith("_")),
        )
        for feed in feeds
    ]
    show(output, {"feeds": feeds}, COLUMNS, rows)
