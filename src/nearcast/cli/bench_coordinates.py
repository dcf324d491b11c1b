"""`nearcast bench coordinates`: how well latencies are known that nobody measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.shared import Output, OutputOption, errors_as_exit_codes, say, show

if TYPE_CHECKING:
    from nearcast.bench.coordinates import CoordinatesBench

COLUMNS = ("", "measured")
_BAR = 24  # characters


@errors_as_exit_codes()
def coordinates(
    matrix: Annotated[
        Path, typer.Option("--matrix", metavar="FILE.csv", help="Square CSV of round trips in ms, names allowed.")
    ],
    probes: Annotated[int, typer.Option("--probes", min=1, help="Brokers that each client measures.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare latency estimates with measured round trips.

    A quarter of the nodes become brokers, the others clients that measure a few of them. What is then estimated for
    pairs that nobody measured is compared with the file: by Vivaldi, with Serf's constants, and by the estimator. It
    takes about half a minute for 250 nodes. Blank cells are never scored.

    Example: nearcast bench coordinates --matrix latencies.csv --probes 16 --json
    """
    from nearcast.bench.coordinates import measure_coordinates

    try:
        found = measure_coordinates(matrix, probes, progress=_progress)
    finally:
        _clear()
    show(Output.JSON if as_json else output, found, COLUMNS, _rows(found), _title(found))


def _progress(done: int, total: int, what: str) -> None:
    """A bar that is overwritten on a terminal; one line per split elsewhere."""
    if sys.stderr.isatty():
        filled = _BAR * done // total
        bar = "█" * filled + "░" * (_BAR - filled)
        print(f"\r\x1b[K{bar} {done} of {total} splits, {what}", end="", file=sys.stderr, flush=True)
    elif done < total and what == "Vivaldi":
        say(f"split {done + 1} of {total}")


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _title(found: CoordinatesBench) -> str:
    return (
        f"{found.brokers} brokers, {found.clients} clients with {found.probes} probes each; "
        f"means of {found.splits} random splits"
    )


def _rows(found: CoordinatesBench) -> list[tuple[str, str]]:
    return [
        ("Vivaldi, relative error: median", f"{found.vivaldi_median_rel_error:.4f}"),
        ("  90th percentile", f"{found.vivaldi_p90_rel_error:.4f}"),
        ("estimator, relative error: median", f"{found.estimator_median_rel_error:.4f}"),
        ("  90th percentile", f"{found.estimator_p90_rel_error:.4f}"),
        ("  Vivaldi's median, relative to it", "" if found.ratio is None else f"{found.ratio:.2f} x"),
        ("broker chosen within 5 % of the best", _share(found.decision_within_5pct)),
        ("  after measuring the 8 best", _share(found.decision_within_5pct_measured8)),
        ("worst latency predicted / true, median", _factor(found.worst_predicted_over_true)),
        ("time per split: Vivaldi, estimator", f"{found.vivaldi_s:.1f} s, {found.estimator_s:.1f} s"),
    ]


def _share(value: float | None) -> str:
    return "too few clients" if value is None else f"{value:.1%}"


def _factor(value: float | None) -> str:
    return "too few clients" if value is None else f"{value:.3f}"
