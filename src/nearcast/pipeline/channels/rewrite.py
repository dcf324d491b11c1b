"""One query for all subscriptions of a channel.

    members   subscription_id, parameters, and the smallest subscription_id with the same parameters: its set
    sets      the distinct parameter sets
    matches   the channel's query with `sets` as one more relation, and the set beside each row
    result    matches JOIN members: subscription_id and the selected columns

Rows are exactly those of the channel's query run once for each subscription with its parameters put in: joins find a
superset of the pairs (`joins.py`), every condition is still checked, grouping and windows are per set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from nearcast.pipeline.channels.cells import Cells
from nearcast.pipeline.channels.geography import expand_distance, is_distance
from nearcast.pipeline.channels.joins import as_near, as_within, is_equality, relations_of
from nearcast.pipeline.channels.language import DIALECT, NEW_SUFFIX, Channel
from nearcast.pipeline.channels.order import Link, chain_of
from nearcast.pipeline.channels.validation import PARAMETERS, SUBSCRIPTION_ID, Schemas, as_written, bind

SUBSCRIPTIONS = "_subscriptions"  # the relation that the rewritten query reads the subscriptions from
MAX_NESTED_LOOP_PAIRS = 100_000_000  # of one execution: a mistake in a channel must not stop the others

_SET = "_parameter_set"


@dataclass(frozen=True)
class JoinChoice:
    """How one relation is joined with those before it."""

    relation: str
    kind: str  # grid, hash, range, nested loop; one set where the channel has no parameters
    conditions: tuple[str, ...]

    @property
    def warning(self) -> str:
        if self.kind != "nested loop":
            return ""
        on = " AND ".join(self.conditions) or "no condition"
        return (
            f"{self.relation} is joined by a nested loop ({on}): an execution that would look at more than the "
            "limit of pairs fails; compare with =, BETWEEN or distance(...) <"
        )


@dataclass(frozen=True)
class Rewritten:
    query: exp.Select
    columns: tuple[str, ...]
    joins: tuple[JoinChoice, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(join.warning for join in self.joins if join.warning)

    def sql(self, pretty: bool = False) -> str:
        return self.query.sql(DIALECT, pretty=pretty)


def rewrite(channel: Channel, schemas: Schemas, max_nested_loop_pairs: int = MAX_NESTED_LOOP_PAIRS) -> Rewritten:
    """The query that answers all subscriptions; raises `InvalidChannel`."""
    bound = bind(channel, schemas)
    columns = tuple(column.alias_or_name for column in bound.selects)
    matches, joins = _matches(channel, bound, max_nested_loop_pairs)
    return Rewritten(_result(channel, matches, columns), columns, joins)


def query_for_one(channel: Channel, schemas: Schemas, values: Mapping[str, exp.Expr]) -> exp.Select:
    """The channel's own query with parameters put in: what the rewritten one is compared with."""
    bound = bind(channel, schemas)

    def put_in(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.table == PARAMETERS:
            return exp.cast(values[node.name].copy(), channel.parameters[node.name], dialect=DIALECT)
        return node

    return _without_macros(bound, put_in)


def _matches(channel: Channel, bound: exp.Select, max_pairs: int) -> tuple[exp.Select, tuple[JoinChoice, ...]]:
    parameters = exp.alias_(exp.to_table("_sets"), PARAMETERS, table=True, quoted=True)
    chain = chain_of(bound, parameters)
    cells = Cells({link.name: link.source for link in chain.links})
    choices, conditions = [], list(chain.rest)
    for index, link in enumerate(chain.links):
        if index == 0 or link.fixed is not None:
            continue
        one_set = link.name == PARAMETERS and not channel.parameters
        choice = JoinChoice(link.name, "one set", ()) if one_set else _choose(link, chain.links, cells)
        choices.append(choice)
        if choice.kind == "nested loop":
            conditions.append(_pairs_at_most(max_pairs, cells, chain.links[0].name, link.name))
    query = bound.copy()
    query.args["from_"].set("this", cells.sources[chain.links[0].name])
    query.set("joins", [_join(link, cells) for link in chain.links[1:]])
    query.set("where", exp.Where(this=exp.and_(*conditions)) if conditions else None)
    return _without_macros(_per_set(query)), tuple(choices)


def _choose(link: Link, links: list[Link], cells: Cells) -> JoinChoice:
    """Picks the kind of join, and adds the condition on cells that it needs."""
    shown = tuple(as_written(condition) for condition in link.conditions)
    about = [condition for condition in link.conditions if link.name in relations_of(condition)]
    inner = [other for other in links if other.fixed is None and other.name not in cells.exploded]
    prefer = [other.name for other in sorted(inner, key=_explode_rank)]
    near = next((found for condition in about if (found := as_near(condition, prefer))), None)
    if near:
        link.conditions.append(cells.meet_near(near))
        return JoinChoice(link.name, "grid", shown)
    if any(is_equality(condition) and _has_own_side(condition, link.name) for condition in about):
        return JoinChoice(link.name, "hash", shown)
    within = as_within(about, prefer)
    if within:
        link.conditions.append(cells.meet_within(within))
        return JoinChoice(link.name, "range", shown)
    return JoinChoice(link.name, "nested loop", shown)


def _explode_rank(link: Link) -> int:
    """Explode what is few: parameter sets, then new records, then whole datasets."""
    if link.name == PARAMETERS:
        return 0
    return 1 if isinstance(link.source, exp.Table) and link.source.name.endswith(NEW_SUFFIX) else 2


def _has_own_side(condition: exp.Expr, name: str) -> bool:
    return any(relations_of(side) == {name} for side in (condition.this, condition.expression))


def _pairs_at_most(max_pairs: int, cells: Cells, one: str, other: str) -> exp.Expr:
    """A condition that is true, or fails the execution: rows left out in silence would be wrong results."""
    pairs = exp.Mul(this=cells.count(one), expression=cells.count(other))
    message = f"nested loop of {one} and {other}: more than {max_pairs} pairs; see nearcast channel check"
    few = exp.LTE(this=pairs, expression=exp.Literal.number(max_pairs))
    return exp.Is(this=exp.func("ASSERT_TRUE", few, exp.Literal.string(message)), expression=exp.Null())


def _join(link: Link, cells: Cells) -> exp.Join:
    if link.fixed is not None:
        join = link.fixed.copy()
        join.set("this", cells.sources[link.name].copy())
        return join
    if not link.conditions:
        return exp.Join(this=cells.sources[link.name].copy(), kind="CROSS")
    on = exp.and_(*(condition.copy() for condition in link.conditions))
    return exp.Join(this=cells.sources[link.name].copy(), kind="INNER", on=on)


def _per_set(query: exp.Select) -> exp.Select:
    """Selects the set, and groups and windows by it."""
    group = query.args.get("group")
    if group:
        used = {column.name for column in query.find_all(exp.Column) if column.table == PARAMETERS}
        for name in sorted(used | {_SET}):
            group.append("expressions", exp.column(name, PARAMETERS, quoted=True))
    for window in query.find_all(exp.Window):
        if window.parent_select is query:
            window.append("partition_by", exp.column(_SET, PARAMETERS, quoted=True))
    return query.select(exp.column(_SET, PARAMETERS, quoted=True))


def _without_macros(query: exp.Select, change: Callable[[exp.Expr], exp.Expr] = lambda node: node) -> exp.Select:
    expanded = query.transform(change).transform(lambda node: expand_distance(node) if is_distance(node) else node)
    assert isinstance(expanded, exp.Select)
    return expanded


def _result(channel: Channel, matches: exp.Select, columns: tuple[str, ...]) -> exp.Select:
    parameters = [exp.column(name, quoted=True) for name in channel.parameters]
    typed = [
        exp.alias_(exp.cast(exp.column(name, quoted=True), kind, dialect=DIALECT), name, quoted=True)
        for name, kind in channel.parameters.items()
    ]
    subscriptions = exp.select(SUBSCRIPTION_ID, *typed).from_(SUBSCRIPTIONS)
    least = exp.Window(this=exp.Min(this=exp.column(SUBSCRIPTION_ID)), partition_by=[p.copy() for p in parameters])
    members = exp.select(SUBSCRIPTION_ID, *parameters, exp.alias_(least, _SET)).from_(subscriptions.subquery("_typed"))
    sets = exp.select(exp.column(_SET), *parameters).distinct().from_("_members")
    selected = [exp.column(name, "_matches", quoted=True) for name in columns]
    return (
        exp.select(exp.column(SUBSCRIPTION_ID, "_members"), *selected)
        .from_("_matches")
        .join("_members", on=f"_matches.{_SET} = _members.{_SET}", join_type="inner")
        .with_("_members", as_=members)
        .with_("_sets", as_=sets)
        .with_("_matches", as_=matches)
    )
