"""A matrix of round trips in a CSV file, in milliseconds.

    ,Dallas,NewYork            the first line: a cell that is ignored, then the names of the places
    Dallas,0.0,44.5            then one line for each place in the same order: its name, its round trips
    NewYork,44.4,0.0

Cells may be empty where nothing was measured: they take the value of the other direction, or the median of the
matrix.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from nearcast.errors import UsageError
from nearcast.flow.demand import FloatArray


def read_matrix(path: Path) -> tuple[tuple[str, ...], FloatArray]:
    """The places, and the round trips between them in ms."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read the matrix {path}: {error}") from None
    if len(rows) < 3:
        raise UsageError(f"{path}: not a matrix: expected a line of names and one line for each of at least two places")
    places = tuple(rows[0][1:])
    if len(set(places)) != len(places):
        raise UsageError(f"{path}: a place is named twice in the first line: every place needs its own name")
    if len(rows) - 1 != len(places):
        raise UsageError(
            f"{path}: {len(places)} places in the first line but {len(rows) - 1} lines follow: make it square"
        )
    cells = [_cells(path, number, row, places) for number, row in enumerate(rows[1:], start=2)]
    return places, _filled(path, np.array(cells, dtype=np.float64))


def _cells(path: Path, number: int, row: list[str], places: tuple[str, ...]) -> list[float]:
    expected = places[number - 2]
    if row[0] != expected:
        raise UsageError(f"{path}, line {number}: begins with {row[0]!r}, expected {expected!r} as in the first line")
    if len(row) - 1 != len(places):
        raise UsageError(f"{path}, line {number}: {len(row) - 1} values for {len(places)} places")
    return [_value(path, number, place, cell) for place, cell in zip(places, row[1:], strict=True)]


def _value(path: Path, number: int, place: str, cell: str) -> float:
    if not cell.strip():
        return np.nan
    try:
        value = float(cell)
    except ValueError:
        value = -1.0
    if not (0 <= value < np.inf):
        raise UsageError(
            f"{path}, line {number}, {place}: {cell!r} is not a round trip in ms; leave it empty if unknown"
        )
    return value


def _filled(path: Path, matrix: FloatArray) -> FloatArray:
    """Holes get the other direction's value, or the median."""
    if np.isnan(matrix).all():
        raise UsageError(f"{path}: no value at all")
    both_ways = np.where(np.isnan(matrix), matrix.T, matrix)
    return np.where(np.isnan(both_ways), np.nanmedian(matrix), both_ways)
