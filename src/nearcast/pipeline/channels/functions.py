"""What a channel's SELECT may be made of: a list, because what is not on it might run anything.

Spark has functions that call Java methods, start scripts, read the process's environment, or take all memory for one
number from a subscriber. So everything in the tree of the SELECT, and with that everything in the text that Spark gets,
has to be listed here. Listed is what depends on its arguments alone, needs memory in proportion to them, and either
never fails or is made safe by `tries.py`.
"""

from __future__ import annotations

from sqlglot import exp

from nearcast.pipeline.channels.language import Channel

_HINT = "use the functions listed in docs/data.md"

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
# Over a window only: the value of the first of several records differs from run to run.
_RANKS = (
    *(exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist, exp.Ntile, exp.Lag, exp.Lead),
    *(exp.FirstValue, exp.LastValue, exp.NthValue),
)
_ALLOWED = frozenset((*_CLAUSES, *_VALUES, *_OPERATORS, *_FUNCTIONS, *_AGGREGATES, *_RANKS))
_GENERATORS = (exp.Explode, exp.ExplodeOuter, exp.Posexplode, exp.PosexplodeOuter)  # and sqlglot's own kinds of them
# What sqlglot has no class for.
_NAMED = frozenset(
    [
        *("distance", "now", "get", "isnull", "isnotnull", "crc32", "octet_length", "btrim", "e", "weekday"),
        *("arrays_overlap", "cardinality", "map_values", "try_mod", "try_to_timestamp", "try_to_date"),
    ]
)
_DIFFERS = "it gives something else each time: an execution that is run again must give the same rows"
_FIRST_OF_SEVERAL = "it depends on the order of records: use min, max, min_by or max_by"
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
            problem = "a subquery that may have several rows is used as a value"
            raise channel.refuse(scalar, problem, "select one aggregate without GROUP BY, or join it")


def _is_allowed(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return isinstance(node.this, str) and node.name.lower() in _NAMED and not isinstance(node.parent, exp.Dot)
    if isinstance(node, exp.With) and node.args.get("recursive"):
        return False
    if isinstance(node, exp.TimeStrToTime):
        return isinstance(node.parent, exp.TimeToStr)  # as sqlglot reads the first value of date_format
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
    """What people call it."""
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
