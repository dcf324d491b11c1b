"""What commands print: a table for people, or JSON for programs, alone on stdout."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from nearcast.cli.options import Output

_WIDE = 1000  # a pipe has no width: do not fold lines that a program will cut into words


def show(output: Output, data: object, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print `data` as JSON, or the rows as a table with a title line above."""
    if output is Output.JSON:
        print_json(data)
    else:
        print_table(columns, rows, title)


def print_json(data: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(data), indent=2).decode(), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    if title:
        console.print(Text(printable(title)))
    console.print(table)


def printable(text: str) -> str:
    """Names come from anywhere: none of them may send commands to the terminal."""
    return text if text.isprintable() else ascii(text)
