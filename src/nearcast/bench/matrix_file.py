"""A file of measured round trips: a square CSV in ms, with or without names, with blanks where nothing was measured.

    ,Dallas,"Paris, FR"          a first line of names and a first column of names: both, one of them, or neither
    Dallas,0.0,112.5
    "Paris, FR",112.1,           blank: not measured

Semicolons, tabs or spaces may stand for the commas, and `-`, `NaN` or `n/a` for a blank. Names may be numbers, if they
count up: `,0,1,2` is a line of names.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from nearcast.coordinates.probes import Floats
from nearcast.errors import UsageError

RTT_MAX_MS = 10_000.0
SEPARATORS = (",", ";", "\t")
UNKNOWN = frozenset(("", "-", "nan", "na", "n/a", "null", "none"))  # what stands where nothing was measured


def read_round_trips(path: Path) -> Floats:
    """The round trips in ms, symmetrical, with NaN where neither direction was measured, and zero on the diagonal."""
    lines = _lines(path)
    if not lines:
        raise UsageError(f"{path}: the file is empty; expected a square matrix of round trips in ms, as CSV")
    width = len(lines[0][1])
    for number, cells in lines:
        if len(cells) != width:
            raise UsageError(f"{path}, line {number}: {len(cells)} columns, the first line has {width}")
    first_line, first_column = (int(named) for named in _names(lines))
    values = [
        [_value(path, number, column, cell) for column, cell in list(enumerate(cells, start=1))[first_column:]]
        for number, cells in lines[first_line:]
    ]
    matrix = np.array(values, dtype=np.float64).reshape(len(values), width - first_column)
    if matrix.shape[0] != matrix.shape[1]:
        raise UsageError(
            f"{path}: {matrix.shape[0]} lines and {matrix.shape[1]} columns of round trips: make it square"
        )
    return _symmetrical(matrix)


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The lines that are not empty, with their numbers."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            text = file.read()
            separator = _separator(text)
            lines = [line.strip() for line in text.splitlines()] if separator == " " else io.StringIO(text, newline="")
            reader = csv.reader(lines, delimiter=separator, skipinitialspace=True)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
            return [(number, row) for number, row in rows if row not in ([], [""])]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read the matrix {path}: {error}") from None


def _separator(text: str) -> str:
    """The first of these that the first line has; without any of them, spaces."""
    first = text.lstrip().partition("\n")[0]
    return next((one for one in SEPARATORS if one in first), " ")


def _names(lines: list[tuple[int, list[str]]]) -> tuple[bool, bool]:
    """Whether the first line, and the first column, are names."""
    line = lines[0][1]
    column = [cells[0] for _, cells in lines]
    height, width = len(lines), len(line)
    if height != width:
        return _are_names(line[1:]), _are_names(column[1:])
    named = _are_names(line[1:]) or _are_names(column[1:]) or _is_name(line[0])
    named = named or (not line[0] and _count_up(line[1:]) and _count_up(column[1:]))
    return named, named


def _are_names(cells: list[str]) -> bool:
    """Most of them: one cell that is no number is a fault, not a name."""
    return 2 * sum(map(_is_name, cells)) > len(cells)


def _count_up(cells: list[str]) -> bool:
    numbers = [int(cell) for cell in cells if cell.isdigit()]
    return len(numbers) == len(cells) > 1 and numbers == list(range(numbers[0], numbers[0] + len(cells)))


def _is_name(cell: str) -> bool:
    if cell.lower() in UNKNOWN:
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


def _value(path: Path, line: int, column: int, cell: str) -> float:
    if cell.lower() in UNKNOWN:
        return np.nan
    try:
        value = float(cell)
    except ValueError:
        value = -1.0
    if not 0 <= value <= RTT_MAX_MS:
        raise UsageError(
            f"{path}, line {line}, column {column}: {cell!r} is not a round trip in ms, "
            f"from 0 to {RTT_MAX_MS:,.0f}; leave it blank if unknown"
        )
    return value


def _symmetrical(matrix: Floats) -> Floats:
    """The mean of both directions, or the one there is."""
    other = matrix.T
    both = np.where(np.isnan(matrix), other, np.where(np.isnan(other), matrix, (matrix + other) / 2))
    np.fill_diagonal(both, 0.0)
    return both
