"""A chart as data: what is drawn, but not how. `plot.py` turns it into a picture.

Panels are stacked and share the x axis. A panel has lines, marks (single points, such as rebalancings), limits
(horizontal lines with a label) and, if needed, a second axis on the right. None in a line leaves a hole there. A panel
without any value says that there is no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

Values = Sequence[float | None]


class Colour(StrEnum):
    """Okabe and Ito's palette, which people who cannot tell red from green can read."""

    BLUE = "#0072b2"
    ORANGE = "#d55e00"
    GREEN = "#009e73"
    GREY = "#666666"
    PURPLE = "#aa4499"


class Sign(StrEnum):
    """The shape of a mark, as matplotlib names it."""

    DIAMOND = "D"
    CIRCLE = "o"
    CROSS = "X"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    x: Sequence[float]
    y: Values
    colour: Colour
    dashed: bool = False
    dotted_points: bool = False  # also show the points it goes through
    steps: bool = False  # drawn as steps, for counts


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: Colour
    sign: Sign = Sign.DIAMOND


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    y: float


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    y_label: str
    lines: tuple[Line, ...] = ()
    marks: tuple[Marks, ...] = ()
    limits: tuple[Limit, ...] = ()
    y_is_log: bool = False
    y_max: float | None = None  # cut off above it: values that explode would flatten the rest
    right_label: str = ""
    right_lines: tuple[Line, ...] = ()


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    x_label: str
    x_is_log: bool = False
    x_is_time: bool = False  # x is seconds since 1970, shown as times of the day in UTC
    panels: tuple[Panel, ...]
