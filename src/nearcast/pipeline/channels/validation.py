"""Checks a channel against the schemas of its datasets and binds its names. Rewriting starts from the result.

Afterwards each column has its relation and its type, stars are expanded, each `:name` is the column `name` of the
relation of parameters, and nothing can fail on data (`functions.py`). Some things are refused because one query for all
subscriptions could not give each the rows that a query of its own would: LIMIT and ordering, aggregates without GROUP
BY, RIGHT and FULL joins, parameters inside subqueries.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqlglot import exp
from sqlglot.errors import OptimizeError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from nearcast.pipeline.channels.functions import check_allowed, without_failures
from nearcast.pipeline.channels.geography import is_distance
from nearcast.pipeline.channels.language import DIALECT, NEW_SUFFIX, Channel
from nearcast.pipeline.channels.likes import WRITTEN

Schemas = Mapping[str, Mapping[str, str]]  # dataset -> column -> Spark type

PARAMETERS = "_parameters"  # what the rewritten query calls the relation of distinct parameter sets
SUBSCRIPTION_ID = "subscription_id"

_ONE_FOR_ALL = "each subscription has its own rows: sort or limit them where they are read"
_REFUSED_CLAUSES = {
    "limit": ("LIMIT", _ONE_FOR_ALL),
    "offset": ("OFFSET", _ONE_FOR_ALL),
    "order": ("ORDER BY", _ONE_FOR_ALL),
    "sort": ("SORT BY", _ONE_FOR_ALL),
    "cluster": ("CLUSTER BY", _ONE_FOR_ALL),
    "distribute": ("DISTRIBUTE BY", _ONE_FOR_ALL),
    "windows": ("WINDOW", "write the window after OVER"),
    "qualify": ("QUALIFY", "Spark SQL does not have it"),
}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_FAMILIES = {
    "number": exp.DataType.NUMERIC_TYPES,
    "text": exp.DataType.TEXT_TYPES,
    "time": exp.DataType.TEMPORAL_TYPES,
    "boolean": {exp.DType.BOOLEAN},
}


def bind(channel: Channel, schemas: Schemas) -> exp.Select:
    """The channel's SELECT with all names bound and all types known; raises `InvalidChannel`."""
    known = {name.lower(): {c.lower(): t for c, t in columns.items()} for name, columns in schemas.items()}
    check_allowed(channel)
    _check_datasets(channel, known)
    _check_form(channel)
    relations = dict(known) | {name + NEW_SUFFIX: known[name] for name in channel.new_datasets}
    bound = _qualified(channel, relations)
    _check_output(channel, bound)
    for place in list(bound.find_all(exp.Placeholder)):
        column = exp.column(place.name, PARAMETERS, quoted=True)
        column.meta["start"] = place.meta["start"]
        place.replace(column)
    typed = _typed(channel, bound, relations)
    _check_types(channel, typed)
    return without_failures(channel, typed)


def family(node: exp.Expr) -> str:
    """Number, text, time or boolean; empty if the type is not known."""
    kind = node.type.this if isinstance(node.type, exp.DataType) else None
    return next((name for name, types in _FAMILIES.items() if kind in types), "")


def as_written(node: exp.Expr) -> str:
    """The SQL of a bound part as its author wrote it: `:name`, and no quotes."""
    shown = node.transform(lambda part: exp.Var(this=part.meta[WRITTEN]) if WRITTEN in part.meta else part)
    return shown.sql(DIALECT).replace(f"`{PARAMETERS}`.", ":").replace("`", "")


def _check_datasets(channel: Channel, known: Schemas) -> None:
    defined = {cte.alias.lower() for cte in channel.select.find_all(exp.CTE)}
    for table in channel.select.find_all(exp.Table):
        name = table.name.lower()
        dataset = name.removesuffix(NEW_SUFFIX) if name not in known else name
        if dataset not in known and name not in defined:
            there = ", ".join(sorted(known)) or "none"
            raise channel.refuse(table, f"unknown dataset {dataset}", f"the datasets are: {there}")


def _check_form(channel: Channel) -> None:
    select = channel.select
    for clause, (words, hint) in _REFUSED_CLAUSES.items():
        found = select.args.get(clause)
        if found:
            where = found[0] if isinstance(found, list) else found
            raise channel.refuse(where, f"{words} is not allowed in a channel", hint)
    if not select.args.get("from_"):
        raise channel.refuse(select, "no FROM", "read at least one dataset")
    for join in select.args.get("joins", ()):
        if join.side in ("RIGHT", "FULL") or join.method == "NATURAL":
            kind = join.side or join.method
            problem = f"a {kind} join is not allowed in a channel"
            raise channel.refuse(join, problem, "use an inner or a LEFT join with ON")
    for place in select.find_all(exp.Placeholder):
        if place.parent_select is not select:
            problem = f":{place.name} is not allowed in a subquery"
            raise channel.refuse(place, problem, "move the condition to the outer WHERE")
    _check_grouping(channel)


def _check_grouping(channel: Channel) -> None:
    group = channel.select.args.get("group")
    if group and (group.find(exp.Rollup, exp.Cube, exp.GroupingSets) or group.args.get("all")):
        raise channel.refuse(group, "ROLLUP, CUBE, GROUPING SETS and ALL are not allowed", "name the columns")
    if group:
        return
    for aggregate in channel.select.find_all(exp.AggFunc):
        windowed = aggregate.find_ancestor(exp.Window, exp.Select)
        if aggregate.parent_select is channel.select and not isinstance(windowed, exp.Window):
            raise channel.refuse(
                aggregate, "an aggregate without GROUP BY", "group by a column: without records there is no result"
            )
    having = channel.select.args.get("having")
    if having:
        raise channel.refuse(having, "HAVING without GROUP BY", "use WHERE")


def _qualified(channel: Channel, relations: Schemas) -> exp.Select:
    try:
        bound = qualify(channel.select.copy(), schema=_columns(relations), dialect=DIALECT, identify=True)
    except OptimizeError as error:
        message, _, place = str(error).partition(". Line:")
        problem = message.lower().replace("could not be resolved", "is unknown or ambiguous")
        hint = "name a column of one of the datasets, with its dataset if two have it"
        raise channel.refuse(_identifier_at(channel, message, place), problem, hint) from None
    assert isinstance(bound, exp.Select)
    return bound


def _typed(channel: Channel, bound: exp.Select, relations: Schemas) -> exp.Select:
    """Infer types, with the parameters joined meanwhile: a column of no relation would have no type."""
    if channel.parameters:
        bound = bound.join(exp.to_table(f"`{PARAMETERS}`", dialect=DIALECT), join_type="cross")
        relations = {**relations, PARAMETERS: channel.parameters}
    typed = annotate_types(bound, schema=_columns(relations), dialect=DIALECT)
    if channel.parameters:
        typed.args["joins"].pop()
    return typed


def _columns(relations: Schemas) -> dict[str, object]:
    return {name: dict(columns) for name, columns in relations.items()}


def _identifier_at(channel: Channel, message: str, place: str) -> exp.Expr | None:
    """The identifier that sqlglot complains about, found by line and last column, or by the message's last word."""
    numbers, name = re.findall(r"\d+", place), message.split()[-1].lower()
    for identifier in channel.select.find_all(exp.Identifier):
        at = [str(identifier.meta.get("line")), str(identifier.meta.get("col"))]
        if at == numbers if numbers else identifier.name.lower() == name:
            return identifier
    return None


def _check_output(channel: Channel, bound: exp.Select) -> None:
    seen = {SUBSCRIPTION_ID}
    for column in bound.selects:
        name = column.alias_or_name.lower()
        if name in seen:
            raise channel.refuse(column, f"two columns of the result are named {name}", "rename one with AS")
        seen.add(name)


def _check_types(channel: Channel, typed: exp.Select) -> None:
    for node in typed.walk():
        if isinstance(node, _COMPARISONS):
            _check_comparable(channel, node.this, node.expression)
        elif isinstance(node, exp.Between):
            _check_comparable(channel, node.this, node.args["low"])
            _check_comparable(channel, node.this, node.args["high"])
        elif is_distance(node):
            _check_distance(channel, node)


def _check_comparable(channel: Channel, left: exp.Expr, right: exp.Expr) -> None:
    """Spark would cast text to the other type, and fail at the first record where that is not possible."""
    if is_distance(left) or is_distance(right):
        left, right = (right, left) if is_distance(left) else (left, right)
        one, other = family(left), "number"
    else:
        one, other = family(left), family(right)
    if one and other and one != other and any(_has_parameter(side) for side in (left, right)):
        problem = f"{as_written(left)} is of type {one}, {as_written(right)} of type {other}"
        place = next(side for side in (left, right) if _has_parameter(side))
        raise channel.refuse(place, problem, "change the parameter's type or write a CAST")


def _check_distance(channel: Channel, call: exp.Expr) -> None:
    arguments = call.expressions
    if len(arguments) != 4:
        raise channel.refuse(call, f"distance has {len(arguments)} arguments", "write distance(lat1, lon1, lat2, lon2)")
    for argument in arguments:
        if any(is_distance(node) for node in argument.walk()):
            raise channel.refuse(argument, "a distance inside a distance", "use positions, in degrees")
        if family(argument) not in ("", "number"):
            problem = f"{as_written(argument)} in distance is of type {family(argument)}"
            raise channel.refuse(argument, problem, "use numbers, in degrees")


def _has_parameter(node: exp.Expr) -> bool:
    return any(column.table == PARAMETERS for column in node.find_all(exp.Column))
