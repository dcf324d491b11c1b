"""How two relations of a channel are joined: the kinds of conditions, recognised in bound SQL.

    grid         distance(a.lat, a.lon, b.lat, b.lon) < radius     cells of a grid on both sides (`geography.py`)
    hash         a.x = b.y                                         Spark's own hash or sort-merge join
    range        a.x BETWEEN b.low AND b.high                      buckets of the mean interval's length
    nested loop  anything else                                     every pair is examined, up to a limit

A condition that a kind does not use is still checked on each pair that the kind finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from nearcast.pipeline.channels import geography
from nearcast.pipeline.channels.geography import filled, is_distance
from nearcast.pipeline.channels.language import DIALECT
from nearcast.pipeline.channels.validation import family

# --- kinds of conditions


_INSTANTS = {exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ}


@dataclass(frozen=True)
class Near:
    """A grid join: `around` is exploded into the cells that its circle touches; `point` is in one cell."""

    around: str
    around_lat: exp.Expr
    around_lon: exp.Expr
    radius: exp.Expr
    point: str
    point_lat: exp.Expr
    point_lon: exp.Expr


@dataclass(frozen=True)
class Within:
    """A range join: `interval` is exploded into the buckets from low to high; `point` is in one bucket."""

    interval: str
    low: exp.Expr
    high: exp.Expr
    point: str
    value: exp.Expr


def conjuncts(condition: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that must all hold."""
    if condition is None:
        return []
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        return [*conjuncts(condition.left), *conjuncts(condition.right)]
    return [condition]


def relations_of(node: exp.Expr) -> frozenset[str]:
    return frozenset(column.table for column in node.find_all(exp.Column))


def is_equality(condition: exp.Expr) -> bool:
    """Whether each side's columns belong to one relation, and not the same one: the keys of a hash join."""
    if not isinstance(condition, exp.EQ | exp.NullSafeEQ):
        return False
    left, right = relations_of(condition.this), relations_of(condition.expression)
    return bool(left) and bool(right) and not left & right


def as_near(condition: exp.Expr, prefer: Sequence[str]) -> Near | None:
    """The grid join of a distance condition; `prefer` names the relations to explode, the best first."""
    match condition:
        case exp.LT(this=call, expression=radius) | exp.LTE(this=call, expression=radius) if is_distance(call):
            pass
        case exp.GT(this=radius, expression=call) | exp.GTE(this=radius, expression=call) if is_distance(call):
            pass
        case _:
            return None
    first, second = tuple(call.expressions[:2]), tuple(call.expressions[2:])
    sides = {_one_relation(*first): first, _one_relation(*second): second}
    if len(sides) != 2 or "" in sides:
        return None
    for around in prefer:
        if around in sides and relations_of(radius) <= {around}:
            point = next(name for name in sides if name != around)
            (lat, lon), (point_lat, point_lon) = sides[around], sides[point]
            return Near(around, lat, lon, radius, point, point_lat, point_lon)
    return None


def as_within(conditions: Sequence[exp.Expr], prefer: Sequence[str]) -> Within | None:
    """The first range join among the conditions: a BETWEEN, or two comparisons of one value."""
    bounds: dict[str, dict[str, exp.Expr]] = {}
    for condition in conditions:
        for value, end, limit in _bounds(condition):
            of_value = bounds.setdefault(value.sql(), {"value": value})
            of_value.setdefault(end, limit)
    for found in bounds.values():
        if "low" not in found or "high" not in found:
            continue
        value, low, high = found["value"], found["low"], found["high"]
        interval, point = _one_relation(low, high), _one_relation(value)
        if interval and point and interval != point and interval in prefer and _scale(value, low, high):
            return Within(interval, low, high, point, value)
    return None


def on_a_line(node: exp.Expr, scale: str) -> exp.Expr:
    """The value as a double that keeps its order, which is all that buckets need."""
    if scale == "date":
        return exp.cast(exp.func("UNIX_DATE", node.copy(), dialect=DIALECT), "double")
    if scale == "time":
        return exp.cast(exp.func("UNIX_MICROS", exp.cast(node.copy(), "timestampltz"), dialect=DIALECT), "double")
    return exp.cast(node.copy(), "double")


def scale_of(within: Within) -> str:
    return _scale(within.value, within.low, within.high)


def _scale(*nodes: exp.Expr) -> str:
    """The unit of the values; empty where buckets are not possible."""
    families = {family(node) for node in nodes}
    if families == {"number"}:
        return "number"
    if families != {"time"}:
        return ""
    kinds = {node.type.this for node in nodes if node.type is not None}
    if kinds == {exp.DType.DATE}:
        return "date"
    return "time" if kinds <= _INSTANTS else ""


def _bounds(condition: exp.Expr) -> list[tuple[exp.Expr, str, exp.Expr]]:
    """(value, low or high, limit) for each way to read the condition."""
    match condition:
        case exp.Between():
            return [(condition.this, "low", condition.args["low"]), (condition.this, "high", condition.args["high"])]
        case exp.GT() | exp.GTE():
            return [(condition.this, "low", condition.expression), (condition.expression, "high", condition.this)]
        case exp.LT() | exp.LTE():
            return [(condition.this, "high", condition.expression), (condition.expression, "low", condition.this)]
    return []


def _one_relation(*nodes: exp.Expr) -> str:
    """The relation that all these take their columns from; empty if one has no columns, or if there are two."""
    each = {relations_of(node) for node in nodes}
    if len(each) != 1:
        return ""
    names = next(iter(each))
    return next(iter(names)) if len(names) == 1 else ""


# --- cells and buckets


# Buckets are counted in 64 bits; clipping at both ends keeps the order of values, including infinities.
_LARGEST = 1e15
_CUT = f"GREATEST(-{_LARGEST!r}D, LEAST({_LARGEST!r}D, :value))"
_BUCKET = f"CAST(FLOOR(({_CUT}) / :width) AS BIGINT)"


class Cells:
    """The relations by name, each with the cell columns added so far.

    Grid and range joins compare extra columns, which a wrapper adds to a relation: `(SELECT r.*, ... FROM r) AS r`. One
    relation of each pair is exploded into a row for each cell or bucket that it reaches; the other keeps its rows, each
    in one cell. Cells do not overlap and an exploded row names none twice, so a pair meets at most once.
    """

    def __init__(self, sources: dict[str, exp.Expr]) -> None:
        self._plain = dict(sources)
        self.sources = dict(sources)
        self.exploded: set[str] = set()
        self._count = 0

    def meet_near(self, near: Near) -> exp.Expr:
        """Add grid cells to both relations; returns the condition that their rows share a cell.

        Each step is a separate column, because Spark would spend most of an execution analysing a single expression.
        """
        row, column, columns, height = self._names("_row", "_column", "_columns", "_height")
        square = f"POWER({geography.bounded_radius_m(near.radius).sql(DIALECT)}, 2)"
        h = geography.cell_degrees(self._mean(near.around, near.radius, square))
        for name in (near.around, near.point):
            self._wrap(name, f"SELECT {{r}}.*, :h AS {height} FROM {{r}}", h=h)
        self._explode_into_cells(near, row, column, columns, exp.column(height, near.around, quoted=True))
        self._put_into_one_cell(near, row, column, columns, exp.column(height, near.point, quoted=True))
        self.exploded.add(near.around)
        return exp.and_(*(_same(near.around, near.point, name) for name in (row, column)))

    def _explode_into_cells(self, near: Near, row: str, column: str, columns: str, h: exp.Expr) -> None:
        reach, half_width = self._names("_reach", "_half_width")
        name, lat, lon = near.around, near.around_lat, near.around_lon
        reached, wide, each, there = (exp.column(c, name, quoted=True) for c in (reach, half_width, row, columns))
        self._add(name, reach, geography.reach_degrees(near.radius))
        self._add(name, half_width, geography.half_width_degrees(lat, reached))
        rows = geography.rows_touched(lat, lon, near.radius, reached, h)
        self._wrap(name, f"SELECT {{r}}.*, {row} FROM {{r}} LATERAL VIEW EXPLODE(:rows) {row}s AS {row}", rows=rows)
        self._add(name, columns, geography.columns_of(each, h))
        self._wrap(
            name,
            f"SELECT {{r}}.*, PMOD({column}_all, :there) AS {column} FROM {{r}} "
            f"LATERAL VIEW EXPLODE(:columns) {column}s AS {column}_all",
            columns=geography.columns_touched(lon, wide, there),
            there=there,
        )

    def _put_into_one_cell(self, near: Near, row: str, column: str, columns: str, h: exp.Expr) -> None:
        name, lat, lon = near.point, near.point_lat, near.point_lon
        self._add(name, row, geography.row_of(lat, lon, h))
        self._add(name, columns, geography.columns_of(exp.column(row, name, quoted=True), h))
        self._add(name, column, geography.column_of(lat, lon, exp.column(columns, name, quoted=True)))

    def meet_within(self, within: Within) -> exp.Expr:
        """Add buckets to both relations; returns the condition that their rows share one.

        Buckets are as wide as the mean interval, so N intervals together reach at most 2 N buckets.
        """
        bucket, width = self._names("_bucket", "_width")
        scale = scale_of(within)
        low, high = (filled(_CUT, value=on_a_line(end, scale)) for end in (within.low, within.high))
        length = f"GREATEST(0D, {high.sql(DIALECT)} - {low.sql(DIALECT)})"
        mean = filled("COALESCE(NULLIF(:mean, 0D), 1D)", mean=self._mean(within.interval, within.low, length))
        for name in (within.interval, within.point):
            self._wrap(name, f"SELECT {{r}}.*, :w AS {width} FROM {{r}}", w=mean)
        first, last = (_bucket_of(end, scale, within.interval, width) for end in (within.low, within.high))
        # The CASE is needed because SEQUENCE counts down if the first bound is larger.
        buckets = filled("CASE WHEN :first <= :last THEN SEQUENCE(:first, :last) END", first=first, last=last)
        self._wrap(
            within.interval,
            f"SELECT {{r}}.*, {bucket} FROM {{r}} LATERAL VIEW EXPLODE(:buckets) {bucket}s AS {bucket}",
            buckets=_if_both(within.low, within.high, buckets),
        )
        value = _bucket_of(within.value, scale, within.point, width)
        self._wrap(
            within.point, f"SELECT {{r}}.*, :value AS {bucket} FROM {{r}}", value=_if_both(within.value, None, value)
        )
        self.exploded.add(within.interval)
        return _same(within.interval, within.point, bucket)

    def count(self, name: str) -> exp.Expr:
        query = exp.select("COUNT(*)").from_(self._plain[name].copy())
        return query.subquery()

    def _names(self, *stems: str) -> tuple[str, ...]:
        self._count += 1
        return tuple(f"{stem}_{self._count}" for stem in stems)

    def _mean(self, name: str, of: exp.Expr, sql: str) -> exp.Expr:
        """The mean over a relation, as a scalar subquery; the mean of a constant is the constant."""
        value = filled(sql)
        if not relations_of(of):
            return value
        return exp.select(exp.func("AVG", value)).from_(self._plain[name].copy()).subquery()

    def _add(self, name: str, column: str, value: exp.Expr) -> None:
        self._wrap(name, f"SELECT {{r}}.*, :value AS {column} FROM {{r}}", value=value)

    def _wrap(self, name: str, template: str, **parts: exp.Expr) -> None:
        query = filled(template.replace("{r}", f"`{name}`"), **parts)
        query.args["from_"].set("this", self.sources[name].copy())
        alias = exp.TableAlias(this=exp.to_identifier(name, quoted=True))
        self.sources[name] = exp.Subquery(this=query, alias=alias)


def _bucket_of(value: exp.Expr, scale: str, name: str, width: str) -> exp.Expr:
    return filled(_BUCKET, value=on_a_line(value, scale), width=exp.column(width, name, quoted=True))


def _if_both(one: exp.Expr, other: exp.Expr | None, value: exp.Expr) -> exp.Expr:
    """GREATEST and LEAST skip NULL, so without this a NULL would be in the last bucket."""
    known = [exp.Not(this=exp.Is(this=node.copy(), expression=exp.Null())) for node in (one, other) if node is not None]
    return exp.Case().when(exp.and_(*known), value)


def _same(one: str, other: str, column: str) -> exp.Expr:
    return exp.EQ(this=exp.column(column, one, quoted=True), expression=exp.column(column, other, quoted=True))
