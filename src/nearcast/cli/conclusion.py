"""How an experiment of `nearcast reproduce` ends: its files, its figures, and its progress until then."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.shared import Output, errors_as_exit_codes, say, show

if TYPE_CHECKING:
    from nearcast.experiments.result import Progress, Result

Out = Annotated[Path | None, typer.Option("--out", help="Folder for PNG and JSON. Default: ./results/NAME.")]
AsJson = Annotated[bool, typer.Option("--json", help="The same as --output json.")]


def conclude(
    name: str, experiment: Callable[[Progress], Result], out: Path | None, as_json: bool, output: Output
) -> None:
    """Run it, write its files, print its figures."""
    with errors_as_exit_codes():
        from nearcast.experiments.result import open_folder, write

        folder = open_folder(out or Path("results") / name)
        with shown_progress() as progress:
            result = experiment(progress)
        files = write(result, folder)
    say(f"picture: {files.png}")
    say(f"series: {files.json}")
    show(Output.JSON if as_json else output, result.figures, ("", ""), result.rows)


@contextlib.contextmanager
def shown_progress() -> Iterator[Progress]:
    """A bar on a terminal; one line per step elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    if not sys.stderr.isatty():
        yield lambda done, total, what: say(f"{done}/{total} {what}")
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)
