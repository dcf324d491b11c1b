"""One query for all subscriptions of a channel.

    sets      the distinct parameter sets, each with the list of its subscriptions, and named after the smallest of them
    matches   the channel's query with `sets` as one more relation; each row has its set's list or name
    result    subscription_id and the selected columns, one row for each subscription of the list

A match carries the list where that costs nothing. Where rows are grouped, or a set has many rows because it reaches
many cells, it carries only the name, and a join at the end adds the list.

The rows are exactly those of the channel's query run once for each subscription with its parameters filled in: joins
find a superset of the pairs (`joins.py`), every condition is still checked, and grouping and windows are per set.

Equalities with parameters become one number, because Spark looks up a 64-bit key several times as fast as a row of
strings:

    r.kind = p.kind AND r.district = p.district
    xxhash64(TRY_CAST(r.kind AS STRING), ...) = xxhash64(TRY_CAST(p.kind AS STRING), ...)
      AND r.kind BETWEEN p.kind AND p.kind AND r.district BETWEEN p.district AND p.district

The hash finds the pairs, the rest checks them. The check is written with BETWEEN because Spark would use an equality as
another key of the join, and the key would be a row again.

The parameters are joined right after the dataset that their best condition is about, so that later joins see only
records that a subscription asks for. Inner joins may then be reordered. If there is any other kind of join, the written
order stays, and the parameters come before the first such join whose ON uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from nearcast.pipeline.channels.geography import expand_distance, is_distance
from nearcast.pipeline.channels.joins import Cells, as_near, as_within, conjuncts, is_equality, relations_of
from nearcast.pipeline.channels.language import DIALECT, NEW_SUFFIX, Channel
from nearcast.pipeline.channels.validation import PARAMETERS, SUBSCRIPTION_ID, Schemas, as_written, bind

# --- equalities as one key


# Types whose equal values have equal hashes; floats are not among them, because 0.0 and -0.0 are equal but hash
# differently. sqlglot's type is not always Spark's, and a number hashes differently as INT and as BIGINT, so both sides
# are cast to one type.
_EXACT = {
    **dict.fromkeys(exp.DataType.TEXT_TYPES, "STRING"),
    **dict.fromkeys(exp.DataType.INTEGER_TYPES, "BIGINT"),
    exp.DType.DATE: "DATE",
    exp.DType.BOOLEAN: "BOOLEAN",
}


def with_one_key(conditions: Sequence[exp.Expr], name: str) -> list[exp.Expr]:
    """The conditions of a join with the relation `name`, with its equalities combined into one key where possible."""
    equal = [condition for condition in conditions if _is_exact(condition)]
    if len(equal) < 2 and not any(_is_text(condition.this) for condition in equal):
        return list(conditions)  # a single number needs no hash
    pairs = [_ordered(condition, name) for condition in equal]
    left, right = (exp.func("XXHASH64", *(_one_type(pair[side]) for pair in pairs)) for side in (0, 1))
    checks = [exp.Between(this=one.copy(), low=other.copy(), high=other.copy()) for one, other in pairs]
    rest = [condition for condition in conditions if not any(condition is one for one in equal)]
    return [exp.EQ(this=left, expression=right), *checks, *rest]


def _is_exact(condition: exp.Expr) -> bool:
    """Whether it compares two columns whose equal values have equal hashes."""
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
    """The two sides, the other relation's first."""
    one, other = condition.this, condition.expression
    return (other, one) if relations_of(one) == {name} else (one, other)


# --- the order of joins


@dataclass
class ChainLink:
    """One relation of the chain. `fixed` is its join as written if that is not an inner join; all its conditions are
    then those of its ON."""

    name: str
    source: exp.Expr
    fixed: exp.Join | None = None
    conditions: list[exp.Expr] = field(default_factory=list)


@dataclass
class Chain:
    """The relations in the order they are joined, and the conditions that belong to no inner join."""

    links: list[ChainLink]
    rest: list[exp.Expr]


def chain_of(bound: exp.Select, parameters: exp.Expr) -> Chain:
    """The chain of a bound query with the parameters in it. Each condition is at the first join with its columns."""
    links = [ChainLink(bound.args["from_"].this.alias_or_name, bound.args["from_"].this)]
    where = bound.args.get("where")
    pool = conjuncts(where.this if where else None)
    for join in bound.args.get("joins", ()):
        name, conditions = join.this.alias_or_name, conjuncts(join.args.get("on"))
        if is_inner(join):
            links.append(ChainLink(name, join.this))
            pool += conditions
        else:
            links.append(ChainLink(name, join.this, join, conditions))
    names = {link.name for link in links} | {PARAMETERS}
    movable = [condition for condition in pool if _joins_two(condition, names)]
    rest = [condition for condition in pool if condition not in movable]
    ordered = _with_parameters(links, movable, ChainLink(PARAMETERS, parameters))
    available: set[str] = set()
    for index, link in enumerate(ordered):
        available.add(link.name)
        if link.fixed is None and index > 0:
            link.conditions = [condition for condition in movable if relations_of(condition) <= available]
            movable = [condition for condition in movable if condition not in link.conditions]
    return Chain(ordered, rest + movable)


def is_inner(join: exp.Join) -> bool:
    return not join.side and join.kind in ("", "INNER", "CROSS") and not isinstance(join.this, exp.Lateral)


def _joins_two(condition: exp.Expr, names: set[str]) -> bool:
    relations = relations_of(condition)
    return len(relations) > 1 and relations <= names and condition.find(exp.Query) is None


def _with_parameters(links: list[ChainLink], conditions: Sequence[exp.Expr], parameters: ChainLink) -> list[ChainLink]:
    about = [condition for condition in conditions if PARAMETERS in relations_of(condition)]
    best = min(about, key=_rank, default=None)
    wanted = relations_of(best) - {PARAMETERS} if best else frozenset({links[0].name})
    if all(link.fixed is None for link in links) and len(wanted) == 1:
        first = next(link for link in links if link.name in wanted)
        return _connected([first, parameters], [link for link in links if link is not first], conditions)
    after = 1 + max(index for index, link in enumerate(links) if link.name in wanted)
    needs = [
        index for index, link in enumerate(links) if link.fixed is not None and PARAMETERS in relations_of(link.fixed)
    ]
    place = min([after, *needs])
    return [*links[:place], parameters, *links[place:]]


def _rank(condition: exp.Expr) -> int:
    """Lower is better: a distance finds the fewest pairs, then an equality, then a range."""
    if any(is_distance(node) for node in condition.iter_expressions()):
        return 0
    if is_equality(condition):
        return 1
    return 2 if isinstance(condition, exp.Between | exp.LT | exp.LTE | exp.GT | exp.GTE) else 3


def _connected(chain: list[ChainLink], left: list[ChainLink], conditions: Sequence[exp.Expr]) -> list[ChainLink]:
    """Append the rest in the written order, but those first that a condition connects with the chain so far."""
    while left:
        there = {link.name for link in chain}
        linked = (
            link
            for link in left
            if any(link.name in relations_of(c) and relations_of(c) <= there | {link.name} for c in conditions)
        )
        chosen = next(linked, left[0])
        chain = [*chain, chosen]
        left = [link for link in left if link is not chosen]
    return chain


# --- the query


SUBSCRIPTIONS = "_subscriptions"  # the relation that the rewritten query reads the subscriptions from
MAX_NESTED_LOOP_PAIRS = 100_000_000  # in one execution: a mistake in one channel must not stop the others

_SET = "_parameter_set"
_MEMBERS = "_members"


@dataclass(frozen=True)
class JoinChoice:
    """How one relation is joined with those before it."""

    relation: str
    kind: str  # grid, hash, range or nested loop; `one set` if the channel has no parameters
    conditions: tuple[str, ...]

    @property
    def warning(self) -> str:
        if self.kind != "nested loop":
            return ""
        on = " AND ".join(self.conditions) or "no condition"
        return (
            f"{self.relation} is joined by a nested loop ({on}): an execution fails if it would have to check more "
            "pairs than the limit; compare with =, BETWEEN or distance(...) <"
        )


@dataclass(frozen=True)
class Rewritten:
    """The query that answers all subscriptions, and how its relations are joined."""

    query: exp.Select
    columns: tuple[str, ...]
    joins: tuple[JoinChoice, ...]
    needed: tuple[str, ...]  # datasets without whose new records there are no results

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(join.warning for join in self.joins if join.warning)

    def sql(self, pretty: bool = False) -> str:
        return self.query.sql(DIALECT, pretty=pretty)


def rewrite(channel: Channel, schemas: Schemas, max_nested_loop_pairs: int = MAX_NESTED_LOOP_PAIRS) -> Rewritten:
    """The query that answers all subscriptions; raises `InvalidChannel`."""
    bound = bind(channel, schemas)
    columns = tuple(_spelled(channel, schemas, column.alias_or_name) for column in bound.selects)
    matches, joins = _matches(channel, bound, max_nested_loop_pairs)
    return Rewritten(_result(channel, matches, columns), columns, joins, _needed(channel, bound))


def _spelled(channel: Channel, schemas: Schemas, name: str) -> str:
    """A result column in its original spelling, from the SELECT or from a dataset: binding made it lower case."""
    selects = [channel.select, *channel.select.find_all(exp.Select)]
    written = [column.alias_or_name for select in selects for column in select.selects]
    read = (*channel.new_datasets, *channel.whole_datasets)
    stored = [column for dataset, columns in schemas.items() if dataset.lower() in read for column in columns]
    return next((spelled for spelled in (*written, *stored) if spelled.lower() == name), name)


def query_for_one(channel: Channel, schemas: Schemas, values: Mapping[str, exp.Expr]) -> exp.Select:
    """The channel's own query with parameters filled in. Tests and a benchmark compare with it."""
    bound = bind(channel, schemas)

    def put_in(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.table == PARAMETERS:
            return exp.cast(values[node.name].copy(), channel.parameters[node.name], dialect=DIALECT)
        return node

    return _without_macros(bound, put_in)


def _needed(channel: Channel, bound: exp.Select) -> tuple[str, ...]:
    """Datasets read as NEW by FROM or an inner join: if one has no new records, there are no results."""
    inner = [bound.args["from_"].this, *(join.this for join in bound.args.get("joins", ()) if is_inner(join))]
    tables = {source.name for source in inner if isinstance(source, exp.Table)}
    return tuple(name for name in channel.new_datasets if name + NEW_SUFFIX in tables)


def _matches(channel: Channel, bound: exp.Select, max_pairs: int) -> tuple[exp.Select, tuple[JoinChoice, ...]]:
    parameters = exp.alias_(exp.to_table("_sets"), PARAMETERS, table=True, quoted=True)
    chain = chain_of(bound, parameters)
    cells = Cells({link.name: link.source for link in chain.links})
    choices, conditions = [], list(chain.rest)
    for index, link in enumerate(chain.links):
        if index == 0 or isinstance(link.source, exp.Lateral):
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
    return _without_macros(_per_set(query, PARAMETERS in cells.exploded)), tuple(choices)


def _choose(link: ChainLink, links: list[ChainLink], cells: Cells) -> JoinChoice:
    """Pick the kind of join, and add the condition on cells that it needs."""
    shown = tuple(as_written(condition) for condition in link.conditions)
    about = [c for c in link.conditions if link.name in relations_of(c) and c.find(exp.Query) is None]
    prefer = [other.name for other in _may_explode(link, links) if other.name not in cells.exploded]
    near = next((found for condition in about if (found := as_near(condition, prefer))), None)
    if near:
        link.conditions.append(cells.meet_near(near))
        return JoinChoice(link.name, "grid", shown)
    if any(is_equality(condition) and _has_own_side(condition, link.name) for condition in about):
        if link.name == PARAMETERS:  # there are few, so Spark keeps them in memory
            link.conditions = with_one_key(link.conditions, link.name)
        return JoinChoice(link.name, "hash", shown)
    within = as_within(about, prefer)
    if within:
        link.conditions.append(cells.meet_within(within))
        return JoinChoice(link.name, "range", shown)
    return JoinChoice(link.name, "nested loop", shown)


def _may_explode(link: ChainLink, links: list[ChainLink]) -> list[ChainLink]:
    """The relations that may be exploded, the best first.

    A LEFT, SEMI or ANTI join decides which earlier rows stay, so only its own relation may be exploded.
    """
    if link.fixed is not None:
        return [link]
    return sorted((other for other in links if other.fixed is None), key=_explode_rank)


def _explode_rank(link: ChainLink) -> int:
    """Explode the smallest: parameter sets, then new records, then whole datasets."""
    if link.name == PARAMETERS:
        return 0
    return 1 if isinstance(link.source, exp.Table) and link.source.name.endswith(NEW_SUFFIX) else 2


def _has_own_side(condition: exp.Expr, name: str) -> bool:
    return any(relations_of(side) == {name} for side in (condition.this, condition.expression))


def _pairs_at_most(max_pairs: int, cells: Cells, one: str, other: str) -> exp.Expr:
    """A condition that is true or fails the execution: silently leaving rows out would give wrong results."""
    pairs = exp.Mul(this=cells.count(one), expression=cells.count(other))
    message = f"nested loop of {one} and {other}: more than {max_pairs} pairs; see nearcast channel check"
    few = exp.LTE(this=pairs, expression=exp.Literal.number(max_pairs))
    return exp.Is(this=exp.func("ASSERT_TRUE", few, exp.Literal.string(message)), expression=exp.Null())


def _join(link: ChainLink, cells: Cells) -> exp.Join:
    if link.fixed is not None:
        join = link.fixed.copy()
        join.set("this", cells.sources[link.name].copy())
        if link.conditions:
            join.set("on", exp.and_(*(condition.copy() for condition in link.conditions)))
        return join
    if not link.conditions:
        return exp.Join(this=cells.sources[link.name].copy(), kind="CROSS")
    on = exp.and_(*(condition.copy() for condition in link.conditions))
    return exp.Join(this=cells.sources[link.name].copy(), kind="INNER", on=on)


def _per_set(query: exp.Select, many_rows: bool) -> exp.Select:
    """Select the set's list or its name, and add the name to groupings and windows."""
    windows = [window for window in query.find_all(exp.Window) if window.parent_select is query]
    group = query.args.get("group")
    if group:
        used = {column.name for column in query.find_all(exp.Column) if column.table == PARAMETERS}
        for name in sorted(used | {_SET}):
            group.append("expressions", exp.column(name, PARAMETERS, quoted=True))
    for window in windows:
        window.append("partition_by", exp.column(_SET, PARAMETERS, quoted=True))
    by_name = many_rows or group or windows or query.args.get("distinct")
    return query.select(exp.column(_SET if by_name else _MEMBERS, PARAMETERS, quoted=True))


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
    # There are few compared with the records: grouping them in one task avoids a shuffle, which would cost more.
    subscriptions = exp.select(SUBSCRIPTION_ID, *typed).from_(SUBSCRIPTIONS).hint("COALESCE(1)", dialect=DIALECT)
    # Spark aggregates a list by hashing, but the minimum of strings by sorting, so the name is taken from the list.
    members = f"COLLECT_LIST({SUBSCRIPTION_ID})"
    named = (f"{members} AS {_MEMBERS}", f"ARRAY_MIN({members}) AS {_SET}")
    sets = exp.select(*parameters, *named).from_(subscriptions.subquery("_typed")).group_by(*parameters)
    by_name = matches.selects[-1].alias_or_name == _SET
    source = "_sets" if by_name else "_matches"
    each = exp.alias_(exp.Explode(this=exp.column(_MEMBERS, source)), SUBSCRIPTION_ID)
    selected = (exp.alias_(exp.column(name.lower(), "_matches", quoted=True), name, quoted=True) for name in columns)
    result = exp.select(each, *selected).from_("_matches")
    if by_name:
        result = result.join("_sets", on=f"_matches.{_SET} = _sets.{_SET}", join_type="inner")
    return result.with_("_sets", as_=sets).with_("_matches", as_=matches)
