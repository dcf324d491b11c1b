"""Options that several commands share, and the names they accept."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import typer

from nearcast.errors import UsageError


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


Url = Annotated[
    str,
    typer.Option("--url", envvar="NEARCAST_URL", metavar="URL", help="Any server of the cluster, or its store."),
]
DEFAULT_URL = "redis://127.0.0.1:6379"

OutputOption = Annotated[Output, typer.Option("--output", "-o", help="A table for people, JSON for programs.")]

StoreUrl = Annotated[
    str,
    typer.Option(
        "--store", envvar="NEARCAST_STORE", metavar="URL", help="The store's server; brokers and consoles need it too."
    ),
]

# Names stand in channel names, in comma lists and in tables.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def checked_name(kind: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"bad {kind} name {name!r}: use 1 to 64 letters, digits, dots, dashes and underscores")
    return name


def name_list(kind: str, text: str) -> tuple[str, ...]:
    """The names in `a,b,c`."""
    return tuple(checked_name(kind, name.strip()) for name in text.split(","))


def refuse_options_before(context: typer.Context) -> None:
    """Of a command with subcommands: an option before the subcommand would be read here and not there."""
    for parameter in context.params:
        name, source = parameter.replace("_", "-"), context.get_parameter_source(parameter)
        if source is not None and source.name == "COMMANDLINE":
            command = f"nearcast {context.info_name} {context.invoked_subcommand}"
            raise UsageError(f"give --{name} after the subcommand: {command} ... --{name} ...")
