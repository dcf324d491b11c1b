"""`nearcast dataset`: stored records, from feeds or loaded from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nearcast.cli.data import DEFAULT_DATA, DataUrl, call, path
from nearcast.cli.shared import Output, OutputOption, errors_as_exit_codes, say, show
from nearcast.errors import UsageError

app = typer.Typer(help="Manage datasets: records that channels read.", no_args_is_help=True)

COLUMNS = ("dataset", "source", "key", "rows", "bytes", "batches", "columns")
FORMATS = ("csv", "json", "parquet")

Name = Annotated[str, typer.Argument(metavar="DATASET")]


@app.command("load")
@errors_as_exit_codes()
def load(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .csv, .json or .parquet file.")],
    schema: Annotated[
        str, typer.Option("--schema", metavar="COLUMNS", help="As in CREATE TABLE. Default: inferred from the file.")
    ] = "",
    key: Annotated[
        str, typer.Option("--key", metavar="COLUMN", help="A column with a different value in each row.")
    ] = "",
    data: DataUrl = DEFAULT_DATA,
    output: OutputOption = Output.TABLE,
) -> None:
    """Load a file as a static dataset.

    Its records replace those that the dataset had, all at once.

    Example: nearcast dataset load shelters shelters.csv
    """
    format = file.suffix.removeprefix(".").lower()
    if format not in FORMATS:
        raise UsageError(f"cannot tell the format of {file}: give a file that ends in .{', .'.join(FORMATS)}")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    params = {"format": format, "schema": schema, "key": key}
    _show([call(data, "POST", path("datasets", name), content=content, params=params)], output)


@app.command("list")
@errors_as_exit_codes()
def list_datasets(data: DataUrl = DEFAULT_DATA, output: OutputOption = Output.TABLE) -> None:
    """Show all datasets.

    Example: nearcast dataset list
    """
    _show(call(data, "GET", "/datasets")["datasets"], output)


@app.command("drop")
@errors_as_exit_codes()
def drop(name: Name, data: DataUrl = DEFAULT_DATA) -> None:
    """Delete a dataset that no channel reads and no feed fills.

    Example: nearcast dataset drop shelters
    """
    call(data, "DELETE", path("datasets", name))
    say(f"dataset {name} was deleted")


def _show(datasets: list[dict[str, Any]], output: Output) -> None:
    rows = [
        (
            *(str(dataset[part]) for part in ("name", "source", "key", "rows", "bytes", "position")),
            ", ".join(f"{name} {kind}" for name, kind in dataset["columns"].items() if not name.startswith("_")),
        )
        for dataset in datasets
    ]
    show(output, {"datasets": datasets}, COLUMNS, rows)
