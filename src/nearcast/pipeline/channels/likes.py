r"""LIKE in one pass over the text. Spark's own LIKE could take years for a pattern with a few `%` and one long record.

Spark turns `%` into `.*` and tries all combinations of places for them, so one subscriber's pattern could stop a
channel for all. Here the text after a `%` is matched at the first place where it occurs, without backtracking, which
gives the same answer. `(?>` means this in Java's regular expressions.

    fire%smoke%    (?s)\A(?>fire)(?>.*?smoke)(?>.*?\z)
"""

from __future__ import annotations

import re

from sqlglot import exp

from nearcast.pipeline.channels.geography import filled
from nearcast.pipeline.channels.language import DIALECT

WRITTEN = "written"  # key of a note on the expression that replaces a LIKE: the LIKE's SQL, to show to people
_BEGIN, _ANY, _END = r"(?s)\A(?>", ")(?>.*?", r"\z)"
_PARTS = re.compile(r"\\([\\%_])|(%)|(_)|(.)", re.DOTALL)
_PLAIN = r"\p{L}\p{N}"  # letters and digits: anything else may be special in an expression

# A pattern that is not constant is turned into an expression when it is used. Its escapes are replaced by control
# characters, which it must not contain itself; special characters get a backslash; then `%`, `_` and the control
# characters are replaced by what they stand for.
_SIGNS = {"\x01": r"\\", "\x02": r"\%", "\x03": r"\_"}
_MEANT = {"%": _ANY, "_": ".", "\x01": r"\\", "\x02": "%", "\x03": "_"}


def wrong_escape(pattern: str) -> bool:
    """Whether a backslash is followed by anything but `%`, `_` or a backslash: Spark would end the query."""
    return any(found[4] == "\\" for found in _PARTS.finditer(pattern))


def with_constant(node: exp.Expr, pattern: str) -> exp.Expr:
    """Rewrite a LIKE or ILIKE with a constant pattern that has no wrong escape."""
    parts = list(_PARTS.finditer(pattern))
    inner = "".join("%" if found[2] else "x" for found in parts).strip("%")
    if "%" not in inner or (len(inner) == len(parts) and inner.count("%") == 1):
        return node  # Spark needs one pass for a single part, or for a beginning and an end
    text, small = node.this, isinstance(node, exp.ILike)
    expression = "".join(map(_as_expression, _PARTS.finditer(pattern.lower() if small else pattern)))
    matched = exp.RegexpLike(this=_lower(text) if small else text.copy(), expression=_text(_BEGIN + expression + _END))
    return _in_place_of(node, matched)


def with_pattern(node: exp.Expr) -> exp.Expr:
    """Rewrite a LIKE or ILIKE whose pattern comes from a record or a subscription; NULL if it has a wrong escape."""
    small = isinstance(node, exp.ILike)
    text, pattern = (_lower(side) if small else side for side in (node.this, node.expression))
    escaped = pattern
    for sign, escape in _SIGNS.items():
        escaped = exp.func("REPLACE", escaped.copy(), _text(escape), _text(sign))
    special = f"[^{_PLAIN}%_{''.join(_SIGNS)}]"
    expression = exp.func("REGEXP_REPLACE", escaped.copy(), _text(special), _text(r"\\$0"))
    for sign, meant in _MEANT.items():
        expression = exp.func("REPLACE", expression, _text(sign), _text(meant))
    matched = filled(
        "CASE WHEN NOT CONTAINS(:escaped, :backslash) AND TRANSLATE(:pattern, :signs, '') = :pattern "
        "THEN :text RLIKE CONCAT(:begin, :expression, :end) END",
        escaped=escaped,
        backslash=_text("\\"),
        pattern=pattern,
        signs=_text("".join(_SIGNS)),
        text=text,
        begin=_text(_BEGIN),
        expression=expression,
        end=_text(_END),
    )
    return _in_place_of(node, matched)


def _as_expression(found: re.Match[str]) -> str:
    if found[2]:
        return _ANY
    if found[3]:
        return "."
    sign = found[1] or found[4]
    return sign if sign.isalnum() else "\\" + sign


def _in_place_of(node: exp.Expr, matched: exp.Expr) -> exp.Expr:
    safe = exp.paren(exp.Not(this=matched), copy=False) if node.args.get("negate") else matched
    safe.meta[WRITTEN] = node.sql(DIALECT)
    return safe


def _lower(node: exp.Expr) -> exp.Expr:
    return exp.func("LOWER", node.copy())


def _text(value: str) -> exp.Expr:
    return exp.Literal.string(value)
