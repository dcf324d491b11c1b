"""`nearcast feed`: topics whose messages become records of datasets."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from nearcast.cli.data import DEFAULT_DATA, DataUrl, call, path
from nearcast.cli.shared import Output, OutputOption, errors_as_exit_codes, say, show

app = typer.Typer(help="Manage feeds: topics whose messages become records.", no_args_is_help=True)

COLUMNS = ("feed", "topic", "format", "key", "log", "records", "dead letters", "lost", "columns")
DEAD_LETTER_COLUMNS = ("kind", "topic", "published at", "reason", "payload")

Name = Annotated[str, typer.Argument(metavar="FEED")]


class Format(StrEnum):
    JSON = "json"
    MSGPACK = "msgpack"


@app.command("create")
@errors_as_exit_codes()
def create(
    name: Name,
    topic: Annotated[str, typer.Option("--topic", metavar="PATTERN", help="A topic, or a pattern such as emergency.*")],
    schema: Annotated[str, typer.Option("--schema", metavar="COLUMNS", help="As in CREATE TABLE.")],
    key: Annotated[str, typer.Option("--key", metavar="COLUMN", help="Keep the newest record per value.")] = "",
    format: Annotated[Format, typer.Option("--format", help="How messages are encoded.")] = Format.JSON,
    data: DataUrl = DEFAULT_DATA,
    output: OutputOption = Output.TABLE,
) -> None:
    """Store the messages of topics as records.

    The dataset has the name of the feed. Every message published after this command is stored. If no log covers the
    topics, one is made. Repeating the command changes nothing.

    Example: nearcast feed create emergency_reports --topic 'emergency.*'
    --schema 'kind STRING NOT NULL, lat DOUBLE, lon DOUBLE, message STRING'
    """
    body = {"name": name, "topic": topic, "schema": schema, "key": key, "format": str(format)}
    _show([call(data, "POST", "/feeds", json=body)], output)


@app.command("list")
@errors_as_exit_codes()
def list_feeds(data: DataUrl = DEFAULT_DATA, output: OutputOption = Output.TABLE) -> None:
    """Show all feeds, and what became of their messages.

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
    """Add columns to a feed's dataset.

    Existing records have null in them.

    Example: nearcast feed alter emergency_reports --add 'severity INT'
    """
    _show([call(data, "PATCH", path("feeds", name), json={"add": add})], output)


@app.command("drop")
@errors_as_exit_codes()
def drop(name: Name, data: DataUrl = DEFAULT_DATA) -> None:
    """Drop a feed. Its dataset stays; see `nearcast dataset drop`.

    Example: nearcast feed drop emergency_reports
    """
    readers = call(data, "DELETE", path("feeds", name))["readers"]
    say(f"feed {name} was dropped")
    if readers:
        say(f"warning: its dataset gets no more new records, but it is still read by {', '.join(readers)}")


@app.command("dead-letters")
@errors_as_exit_codes()
def dead_letters(
    name: Name,
    last: Annotated[int, typer.Option("--last", min=1, max=1000, help="How many to show, newest first.")] = 20,
    data: DataUrl = DEFAULT_DATA,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the messages of a feed that are not in its dataset.

    Those are the messages that could not become records, with the reason, and notes about messages that were lost.

    Example: nearcast feed dead-letters emergency_reports
    """
    found = call(data, "GET", path("feeds", name, "dead-letters"), params={"last": last})["dead_letters"]
    parts = ("kind", "topic", "published_at", "reason", "payload")
    rows = [tuple("" if letter[part] is None else str(letter[part]) for part in parts) for letter in found]
    show(output, {"dead_letters": found}, DEAD_LETTER_COLUMNS, rows)


def _show(feeds: list[dict[str, Any]], output: Output) -> None:
    rows = [
        (
            *(feed[part] for part in ("name", "topic", "format", "key", "log")),
            *(str(feed[part]) for part in ("records", "dead")),
            f"at least {feed['lost']}" if feed["parts_lost"] else str(feed["lost"]),
            ", ".join(f"{name} {kind}" for name, kind in feed["columns"].items() if not name.startswith("_")),
        )
        for feed in feeds
    ]
    show(output, {"feeds": feeds}, COLUMNS, rows)
