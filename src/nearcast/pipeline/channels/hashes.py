"""Equalities with parameters as one number: Spark looks up a 64-bit key several times as fast as a row with texts.

    r.kind = p.kind AND r.district = p.district
    xxhash64(TRY_CAST(r.kind AS STRING), ...) = xxhash64(TRY_CAST(p.kind AS STRING), ...)
      AND r.kind BETWEEN p.kind AND p.kind AND r.district BETWEEN p.district AND p.district

The hash finds the pairs, the rest checks them. It is written with BETWEEN because Spark would take an equality for a
further key of the join, and with that for a row again.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from nearcast.pipeline.channels.joins import is_equality, relations_of
from nearcast.pipeline.channels.language import DIALECT

# Equal values of these types have equal hashes. 0.0 and -0.0 are equal and do not. A type here is what sqlglot makes of
# the text, which is not always Spark's: INT and BIGINT of one number have two hashes, so both sides are made one type.
_EXACT = {
    **dict.fromkeys(exp.DataType.TEXT_TYPES, "STRING"),
    **dict.fromkeys(exp.DataType.INTEGER_TYPES, "BIGINT"),
    exp.DType.DATE: "DATE",
    exp.DType.BOOLEAN: "BOOLEAN",
}


def with_one_key(conditions: Sequence[exp.Expr], name: str) -> list[exp.Expr]:
    """The conditions of a join with the relation `name`, its equalities as one key where that is possible."""
    equal = [condition for condition in conditions if _is_exact(condition)]
    if len(equal) < 2 and not any(_is_text(condition.this) for condition in equal):
        return list(conditions)  # one number is a key as it is
    pairs = [_ordered(condition, name) for condition in equal]
    left, right = (exp.func("XXHASH64", *(_one_type(pair[side]) for pair in pairs)) for side in (0, 1))
    checks = [exp.Between(this=one.copy(), low=other.copy(), high=other.copy()) for one, other in pairs]
    rest = [condition for condition in conditions if not any(condition is one for one in equal)]
    return [exp.EQ(this=left, expression=right), *checks, *rest]


def _is_exact(condition: exp.Expr) -> bool:
    """Of two columns whose values are hashed alike."""
    if not isinstance(condition, exp.EQ) or not is_equality(condition):
        return False
    one, other = condition.this, condition.expression
    kinds = [_hashed_as(side) for side in (one, other)]
    return isinstance(one, exp.Column) and isinstance(other, exp.Column) and kinds[0] == kinds[1] != ""


def _hashed_as(column: exp.Expr) -> str:
    return _EXACT.get(column.type.this, "") if isinstance(column.type, exp.DataType) else ""


def _one_type(column: exp.Expr) -> exp.Expr:
    kind = exp.DataType.build(_hashed_as(column), dialect=DIALECT)
    return exp.TryCast(this=column.copy(), to=kind, safe=True)


def _is_text(column: exp.Expr) -> bool:
    return isinstance(column.type, exp.DataType) and column.type.this in exp.DataType.TEXT_TYPES


def _ordered(condition: exp.Expr, name: str) -> tuple[exp.Expr, exp.Expr]:
    """The other relation's side first."""
    one, other = condition.this, condition.expression
    return (other, one) if relations_of(one) == {name} else (one, other)
