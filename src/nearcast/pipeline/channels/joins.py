"""How two relations of a channel are joined: the kinds of conditions, recognised in bound SQL.

    grid         distance(a.lat, a.lon, b.lat, b.lon) < radius     cells of a grid on both sides (`geography.py`)
    hash         a.x = b.y                                         Spark's own hash or sort-merge join
    range        a.x BETWEEN b.low AND b.high                      buckets of the mean interval's length
    nested loop  anything else                                     every pair is looked at, up to a limit

A condition that a kind does not use is still checked on each pair that the kind finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from nearcast.pipeline.channels.geography import is_distance
from nearcast.pipeline.channels.language import DIALECT
from nearcast.pipeline.channels.validation import family

_INSTANTS = {exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ}


@dataclass(frozen=True)
class Near:
    """`around` is exploded into the cells that its circle touches, `point` is in one cell."""

    around: str
    around_lat: exp.Expr
    around_lon: exp.Expr
    radius: exp.Expr
    point: str
    point_lat: exp.Expr
    point_lon: exp.Expr


@dataclass(frozen=True)
class Within:
    """`interval` is exploded into the buckets from low to high, `point` is in one bucket."""

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
    """One side's columns of one relation, the other side's of another: the keys of a hash join."""
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
    """The value as a double: never before a smaller one, which is all that buckets need."""
    if scale == "date":
        return exp.cast(exp.func("UNIX_DATE", node.copy(), dialect=DIALECT), "double")
    if scale == "time":
        return exp.cast(exp.func("UNIX_MICROS", exp.cast(node.copy(), "timestampltz"), dialect=DIALECT), "double")
    return exp.cast(node.copy(), "double")


def scale_of(within: Within) -> str:
    return _scale(within.value, within.low, within.high)


def _scale(*nodes: exp.Expr) -> str:
    """What the values are measured in; empty where buckets cannot be made."""
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
    """The relation that all these take their columns from; empty if one takes none, or there are two."""
    each = {relations_of(node) for node in nodes}
    if len(each) != 1:
        return ""
    names = next(iter(each))
    return next(iter(names)) if len(names) == 1 else ""
