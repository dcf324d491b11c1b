"""What a channel's SELECT may be made of, and how its parts are rewritten so that no data can make them fail.

Everything in the tree of the SELECT, and thus everything in the text that Spark gets, must be on a list here, because
Spark has functions that call Java methods, start scripts, read the process's environment, or use all memory for one
number from a subscriber. A part is listed if it depends only on its arguments, needs memory in proportion to them, and
either never fails or is made safe as below.

What fails on some data becomes NULL there: one record or one subscription must not stop a channel for all. Spark's ANSI
mode ends a whole query at the first overflow, division by zero or text that is not a number. It stays on, because
without it overflows give wrong numbers; instead each part that can fail is rewritten so that it cannot:

    a + b, a - b, a * b, a / b, a % b      TRY_ADD(a, b) ...
    CAST(a AS t)                           TRY_CAST(a AS t)
    SUM(a), AVG(a)                         TRY_SUM(a), TRY_AVG(a)
    a[i], ELEMENT_AT(a, i)                 GET(a, i), TRY_ELEMENT_AT(a, i)
    ABS, -, FLOOR, CEIL, DATE_ADD, LIKE    NULL outside their range

What would differ in a second run is fixed: the current time is that of the execution, and lists are sorted.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from nearcast.pipeline.channels.geography import filled
from nearcast.pipeline.channels.language import Channel
from nearcast.pipeline.channels.likes import with_constant, with_pattern, wrong_escape

# --- what is allowed


_HINT = "use the functions listed in docs/data.md"
_CONSTANT = "write a constant, because an invalid one would fail the query for all"

_CLAUSES = (
    *(exp.Select, exp.From, exp.Join, exp.Where, exp.Group, exp.Having, exp.Distinct, exp.Subquery, exp.With, exp.CTE),
    *(exp.Union, exp.Except, exp.Intersect, exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.Lateral),
    *(exp.Table, exp.TableAlias, exp.Alias, exp.Column, exp.Identifier, exp.Star, exp.Paren, exp.Tuple, exp.Dot),
    *(exp.Window, exp.WindowSpec, exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.Placeholder),
)
_VALUES = (
    *(exp.Literal, exp.RawString, exp.HexString, exp.Boolean, exp.Null, exp.Interval, exp.Var, exp.DataType),
    *(exp.DataTypeParam, exp.ColumnDef, exp.CurrentTimestamp, exp.CurrentDate),
)
_OPERATORS = (
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.LT, exp.LTE, exp.GT, exp.GTE),
    *(exp.Between, exp.In, exp.Is, exp.Exists, exp.Like, exp.ILike, exp.RegexpLike, exp.Case, exp.If),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.DPipe, exp.Bracket, exp.Cast, exp.TryCast),
    *(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot),
)
_FUNCTIONS = (
    *(exp.Coalesce, exp.Nullif, exp.Nvl2, exp.Greatest, exp.Least, exp.IsNan, exp.Nanvl),
    *(exp.Abs, exp.Sign, exp.Floor, exp.Ceil, exp.Round, exp.Sqrt, exp.Cbrt, exp.Exp, exp.Ln, exp.Log, exp.Pow),
    *(exp.Sin, exp.Cos, exp.Tan, exp.Asin, exp.Acos, exp.Atan, exp.Atan2, exp.Degrees, exp.Radians, exp.Pi),
    *(exp.SafeAdd, exp.SafeSubtract, exp.SafeMultiply, exp.SafeDivide),
    *(exp.Lower, exp.Upper, exp.Initcap, exp.Length, exp.Trim, exp.Substring, exp.SubstringIndex, exp.Left, exp.Right),
    *(exp.Concat, exp.ConcatWs, exp.Replace, exp.Translate, exp.Reverse, exp.StrPosition, exp.StartsWith),
    *(exp.EndsWith, exp.Contains, exp.Levenshtein, exp.Soundex, exp.Ascii, exp.Hex, exp.ToBase64),
    *(exp.MD5, exp.SHA, exp.SHA2, exp.RegexpExtract, exp.RegexpReplace, exp.RegexpSplit),
    *(exp.JSONExtractScalar, exp.JSONPath, exp.JSONPathRoot, exp.JSONPathKey, exp.JSONPathSubscript, exp.JSONFormat),
    *(exp.Year, exp.Quarter, exp.Month, exp.Week, exp.WeekOfYear, exp.Day, exp.DayOfMonth, exp.DayOfWeek),
    *(exp.DayOfYear, exp.Hour, exp.Minute, exp.Second, exp.Extract, exp.LastDay, exp.MonthsBetween),
    *(exp.DateDiff, exp.TimestampDiff, exp.TsOrDsAdd, exp.AddMonths, exp.TsOrDsToDate, exp.TimeToStr),
    *(exp.TimestampTrunc, exp.DateTrunc, exp.UnixMicros, exp.UnixMillis, exp.UnixSeconds, exp.UnixDate),
    *(exp.Array, exp.ArraySize, exp.ArrayContains, exp.ArrayMin, exp.ArrayMax, exp.ArraySort),
    *(exp.ArrayToString, exp.ArrayDistinct, exp.ArrayPosition, exp.Struct, exp.PropertyEQ, exp.MapKeys),
)
_AGGREGATES = (
    *(exp.Count, exp.CountIf, exp.Sum, exp.Avg, exp.Min, exp.Max, exp.ArgMin, exp.ArgMax, exp.ApproxDistinct),
    *(exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop, exp.Median, exp.Quantile),
    *(exp.ApproxQuantile, exp.LogicalAnd, exp.LogicalOr, exp.ArrayAgg, exp.ArrayUniqueAgg),
)
# Allowed only over a window: otherwise which record is the first differs from run to run.
_RANKS = (
    *(exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist, exp.Ntile, exp.Lag, exp.Lead),
    *(exp.FirstValue, exp.LastValue, exp.NthValue),
)
_ALLOWED = frozenset((*_CLAUSES, *_VALUES, *_OPERATORS, *_FUNCTIONS, *_AGGREGATES, *_RANKS))
_GENERATORS = (exp.Explode, exp.ExplodeOuter, exp.Posexplode, exp.PosexplodeOuter)  # and sqlglot's own kinds of them
# Functions for which sqlglot has no class.
_NAMED = frozenset(
    [
        *("distance", "now", "get", "isnull", "isnotnull", "crc32", "octet_length", "btrim", "e", "weekday"),
        *("arrays_overlap", "cardinality", "map_values", "try_mod", "try_to_timestamp", "try_to_date"),
    ]
)
_DIFFERS = "its value differs each time, but an execution that is run again must give the same rows"
_FIRST_OF_SEVERAL = "it depends on the order of records; use min, max, min_by or max_by"
_INSTEAD = {
    **dict.fromkeys(("rand", "randn", "random", "uuid", "shuffle", "monotonically_increasing_id"), _DIFFERS),
    **dict.fromkeys(("first", "last", "any_value", "first_value", "last_value"), _FIRST_OF_SEVERAL),
    **dict.fromkeys(("unix_timestamp", "to_unix_timestamp"), "use unix_seconds(CAST(... AS TIMESTAMP))"),
    "to_timestamp": "with a format, use try_to_timestamp(text, format)",
    "localtimestamp": "use now()",
    "pmod": "use %",
    "div": "use CAST(a / b AS BIGINT)",
}


def check_allowed(channel: Channel) -> None:
    """Raises `InvalidChannel` for the first thing in the SELECT that is not listed."""
    refused = [node for node in channel.select.walk() if not _is_allowed(node)]
    for node in sorted(refused, key=_start):
        name = _name(node)
        hint = _INSTEAD.get(name.lower(), _HINT)
        raise channel.refuse(node, f"{name} may not be used in a channel", hint)
    for scalar in channel.select.find_all(exp.Subquery):
        if _is_value(scalar) and not _has_one_row(scalar.this):
            problem = "a subquery that may return several rows is used as a value"
            raise channel.refuse(scalar, problem, "select one aggregate without GROUP BY, or join it")


def _is_allowed(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return isinstance(node.this, str) and node.name.lower() in _NAMED and not isinstance(node.parent, exp.Dot)
    if isinstance(node, exp.With) and node.args.get("recursive"):
        return False
    if isinstance(node, exp.TimeStrToTime):
        return isinstance(node.parent, exp.TimeToStr)  # this is how sqlglot reads the first argument of date_format
    if type(node) in _RANKS:
        return node.find_ancestor(exp.Window, exp.Select) is not None and _is_windowed(node)
    if isinstance(node, exp.Select) and (node.args.get("hint") or node.args.get("operation_modifiers")):
        return False
    return type(node) in _ALLOWED or isinstance(node, _GENERATORS)


def _is_windowed(node: exp.Expr) -> bool:
    above = node.parent
    while isinstance(above, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        above = above.parent
    return isinstance(above, exp.Window)


def _start(node: exp.Expr) -> int:
    return min((part.meta["start"] for part in node.walk() if "start" in part.meta), default=0)


def _name(node: exp.Expr) -> str:
    """Its name as users write it."""
    if isinstance(node, exp.Anonymous):
        return node.name
    return node.sql_name().lower() if isinstance(node, exp.Func) else node.key.upper()


def _is_value(node: exp.Subquery) -> bool:
    relation = (exp.From, exp.Join, exp.Lateral, exp.CTE, exp.Subquery, exp.In, exp.Exists, exp.SetOperation)
    return not isinstance(node.parent, relation)


def _has_one_row(query: exp.Expr) -> bool:
    return (
        isinstance(query, exp.Select)
        and not query.args.get("group")
        and not any(isinstance(found, _GENERATORS) and found.parent_select is query for found in query.walk())
        and all(
            any(found.parent_select is query and not _is_windowed(found) for found in column.find_all(exp.AggFunc))
            for column in query.selects
        )
    )


# --- parts that cannot fail


EXECUTION_TIME = "_execution_us"  # the parameter of the prepared text: microseconds since 1970, UTC

_LARGEST = "9.2e18D"  # FLOOR and CEIL give 64 bits
_MOST_DAYS = 4_000_000  # about 10,000 years, the range of SQL's calendar
_MOST_MONTHS = 120_000
_REPEATED_MOST = 500  # parts of an operand
_SPECIAL_TIMES = {"now", "today", "tomorrow", "yesterday", "epoch"}
_NOW = f"TIMESTAMP_MICROS(:{EXECUTION_TIME})"
_BETWEEN = "CASE WHEN :value BETWEEN -{limit} AND {limit} THEN :result END"

_TRIED_OPERATORS: dict[type[exp.Expr], str] = {
    exp.Add: "TRY_ADD",
    exp.Sub: "TRY_SUBTRACT",
    exp.Mul: "TRY_MULTIPLY",
    exp.Div: "TRY_DIVIDE",
    exp.Mod: "TRY_MOD",
}


def without_failures(channel: Channel, typed: exp.Select) -> exp.Select:
    """The bound query with every part that can fail on data replaced; raises `InvalidChannel` where it cannot be."""
    for node in reversed(list(typed.walk())):  # the innermost first
        rule = _RULES.get(type(node))
        if rule is None:
            continue
        safe = rule(channel, node)
        if safe is not node:
            safe.type = node.type
            safe.meta.update(node.meta)
            node.replace(safe)
    return typed


def _call(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])


def _arithmetic(channel: Channel, node: exp.Expr) -> exp.Expr:
    one, other = node.this, node.expression
    times, numbers = (_any_of(exp.DataType.TEMPORAL_TYPES, one, other), _any_of(exp.DataType.NUMERIC_TYPES, one, other))
    if times and numbers:
        raise channel.refuse(node, "a number is added to a time", "use date_add, add_months or an INTERVAL")
    return _call(_TRIED_OPERATORS[type(node)], one.unnest(), other.unnest())


def _any_of(kinds: set[exp.DType], *nodes: exp.Expr) -> bool:
    return any(isinstance(node.type, exp.DataType) and node.type.this in kinds for node in nodes)


def _cast(channel: Channel, node: exp.Expr) -> exp.Expr:
    value = node.this
    if node.args.get("format") or node.args.get("default"):
        raise channel.refuse(node, "a CAST cannot have a format", "use try_to_timestamp(text, format)")
    if isinstance(value, exp.Literal) and value.is_string and value.name.strip().lower() in _SPECIAL_TIMES:
        raise channel.refuse(node, f"{value.name!r} cannot be used as a time", "use now() or current_date()")
    return _in_calendar(channel, exp.TryCast(this=value.copy(), to=node.args["to"].copy(), safe=True))


def _in_calendar(channel: Channel, day: exp.Expr) -> exp.Expr:
    """Spark reads a date in the year 1,000,000 from text, but fails to convert it to a timestamp."""
    if isinstance(day, exp.TryCast) and (
        not day.args["to"].is_type("date") or _any_of(exp.DataType.TEMPORAL_TYPES, day.this)
    ):
        return day
    return filled(
        "CASE WHEN :day BETWEEN DATE '0001-01-01' AND DATE '9999-12-31' THEN :day END", day=_repeated(channel, day)
    )


def _negative(channel: Channel, node: exp.Expr) -> exp.Expr:
    return node if isinstance(node.this, exp.Literal) else _call("TRY_SUBTRACT", exp.Literal.number(0), node.this)


def _repeated(channel: Channel, operand: exp.Expr) -> exp.Expr:
    """An operand that the rewritten query repeats: nested repetitions multiply."""
    if sum(1 for _ in zip(operand.walk(), range(_REPEATED_MOST + 1), strict=False)) > _REPEATED_MOST:
        raise channel.refuse(operand, "nested too deeply", "move the inner parts to a subquery or to WITH ... AS")
    return operand


def _absolute(channel: Channel, node: exp.Expr) -> exp.Expr:
    value = _repeated(channel, node.this)
    return filled("CASE WHEN :value < 0 THEN TRY_SUBTRACT(0, :value) ELSE :value END", value=value)


def _whole_number(channel: Channel, node: exp.Expr) -> exp.Expr:
    if node.args.get("decimals") or node.args.get("to"):
        raise channel.refuse(node, f"{node.key} cannot have a scale", "use round(value, scale)")
    return filled(_BETWEEN.format(limit=_LARGEST), value=_repeated(channel, node.this), result=node)


def _rounded(channel: Channel, node: exp.Expr) -> exp.Expr:
    scale = node.args.get("decimals")
    if scale is not None and not (isinstance(scale, exp.Literal) and scale.is_int):
        raise channel.refuse(node, "the scale is not a constant, or is below 0", "write it as in round(x, 2)")
    return node


def _logarithm(channel: Channel, node: exp.Expr) -> exp.Expr:
    """sqlglot turns log10(x) into log(10, x), which is 2.9999999999999996 for 1000."""
    ten = node.expression is not None and node.this == exp.Literal.number(10)
    return _call("LOG10", node.expression) if ten else node


def _later(channel: Channel, node: exp.Expr) -> exp.Expr:
    """DATE_ADD counts days in 32 bits and wraps around; ADD_MONTHS fails."""
    limit = _MOST_MONTHS if isinstance(node, exp.AddMonths) else _MOST_DAYS
    return filled(_BETWEEN.format(limit=limit), value=_repeated(channel, node.expression), result=node)


def _total(channel: Channel, node: exp.Expr) -> exp.Expr:
    return _call("TRY_SUM" if isinstance(node, exp.Sum) else "TRY_AVG", node.this)


def _list(channel: Channel, node: exp.Expr) -> exp.Expr:
    """Sorted, because a second run may read the records in another order."""
    above = node.parent
    if isinstance(above, exp.Window | exp.Filter):
        raise channel.refuse(node, "a list cannot have a window or a FILTER", "use GROUP BY and CASE WHEN")
    return _call("SORT_ARRAY", node)


def _element(channel: Channel, node: exp.Expr) -> exp.Expr:
    kind = node.this.type.this if isinstance(node.this.type, exp.DataType) else None
    if len(node.expressions) == 1 and kind is exp.DType.MAP:
        return _call("TRY_ELEMENT_AT", node.this, node.expressions[0])
    if len(node.expressions) == 1 and kind is exp.DType.ARRAY:
        if not node.args.get("offset"):
            return _call("GET", node.this, node.expressions[0])
        return filled("TRY_ELEMENT_AT(:array, NULLIF(:index, 0))", array=node.this, index=node.expressions[0])
    raise channel.refuse(node, "[ ] or element_at of something other than an array or a map", "use get(array, index)")


def _like(channel: Channel, node: exp.Expr) -> exp.Expr:
    pattern = node.expression
    if not isinstance(pattern, exp.Literal):
        _repeated(channel, pattern)
        return with_pattern(node)
    if wrong_escape(pattern.name):
        raise channel.refuse(node, f"invalid pattern {pattern.name!r}", r"put only %, _ or \ after a \ in a pattern")
    return with_constant(node, pattern.name)


def _constant_pattern(channel: Channel, node: exp.Expr) -> exp.Expr:
    if not isinstance(node.expression, exp.Literal):
        raise channel.refuse(node, "the regular expression is not a constant", _CONSTANT)
    replacement = node.args.get("replacement")
    if replacement is not None and (not isinstance(replacement, exp.Literal) or set(replacement.name) & set("$\\")):
        raise channel.refuse(node, "the replacement is not a plain constant", "write it as text, without $ and \\")
    group = node.args.get("group")
    if group is not None and not (isinstance(group, exp.Literal) and group.is_int):
        raise channel.refuse(node, "the group is not a constant, or is below 0", "write its number, as in ('(a)', 1)")
    return node


def _constant_format(channel: Channel, node: exp.Expr) -> exp.Expr:
    if not isinstance(node.args.get("format"), exp.Literal):
        raise channel.refuse(node, "the format is not a constant", _CONSTANT)
    return node


def _date(channel: Channel, node: exp.Expr) -> exp.Expr:
    if node.args.get("format"):
        raise channel.refuse(node, "to_date cannot have a format", "use try_to_date(text, format)")
    return _in_calendar(channel, exp.TryCast(this=node.this.copy(), to=exp.DataType.build("date"), safe=True))


def _named(channel: Channel, node: exp.Expr) -> exp.Expr:
    name, arguments = node.name.lower(), node.expressions
    if name == "now":
        return _now(channel, node)
    if name in ("try_to_timestamp", "try_to_date") and not all(isinstance(f, exp.Literal) for f in arguments[1:]):
        raise channel.refuse(node, "the format is not a constant", _CONSTANT)
    return _in_calendar(channel, node) if name == "try_to_date" else node


def _now(channel: Channel, node: exp.Expr) -> exp.Expr:
    return filled(f"CAST({_NOW} AS DATE)" if isinstance(node, exp.CurrentDate) else _NOW)


_RULES: dict[type[exp.Expr], Callable[[Channel, exp.Expr], exp.Expr]] = {
    **dict.fromkeys(_TRIED_OPERATORS, _arithmetic),
    **dict.fromkeys((exp.Cast, exp.TryCast), _cast),
    **dict.fromkeys((exp.Floor, exp.Ceil), _whole_number),
    **dict.fromkeys((exp.TsOrDsAdd, exp.AddMonths), _later),
    **dict.fromkeys((exp.Sum, exp.Avg), _total),
    **dict.fromkeys((exp.ArrayAgg, exp.ArrayUniqueAgg), _list),
    **dict.fromkeys((exp.Like, exp.ILike), _like),
    **dict.fromkeys((exp.RegexpLike, exp.RegexpExtract, exp.RegexpReplace, exp.RegexpSplit), _constant_pattern),
    **dict.fromkeys((exp.CurrentTimestamp, exp.CurrentDate), _now),
    exp.Neg: _negative,
    exp.Abs: _absolute,
    exp.Round: _rounded,
    exp.Log: _logarithm,
    exp.Bracket: _element,
    exp.TimeToStr: _constant_format,
    exp.TsOrDsToDate: _date,
    exp.Anonymous: _named,
}
