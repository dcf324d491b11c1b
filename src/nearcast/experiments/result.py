"""What an experiment gives: its figures, the series behind them, and a chart; and how they are kept.

`figures` is what `--json` prints: a struct of the experiment's own. `series` are the curves, for whoever wants to
draw them again. Both stand in one JSON file beside the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from nearcast.errors import UsageError
from nearcast.experiments.chart import Chart

# Called with the steps done, the steps in all, and what is being done.
Progress = Callable[[int, int, str], None]


def silent(done: int, total: int, what: str) -> None:
    """For callers that show no progress."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # as on the command line
    figures: msgspec.Struct
    series: Mapping[str, Any]
    chart: Chart
    rows: tuple[tuple[str, str], ...]  # the figures for people


class Files(msgspec.Struct, frozen=True):
    json: Path
    png: Path


def open_folder(path: Path) -> Path:
    """The folder for the files, made if need be: asked for before an experiment runs, not after."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror}; choose another folder with --out") from None
    return path


def write(result: Result, folder: Path) -> Files:
    from nearcast.experiments.plot import draw

    files = Files(folder / f"{result.name}.json", folder / f"{result.name}.png")
    document = {"experiment": result.name, "figures": result.figures, "series": result.series}
    encoded = msgspec.json.encode(document, enc_hook=_plain)
    files.json.write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")
    draw(result.chart, files.png)
    return files


def _plain(value: Any) -> Any:
    """NumPy arrays and numbers as lists and numbers."""
    return value.tolist()
