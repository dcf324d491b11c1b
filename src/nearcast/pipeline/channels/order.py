"""In which order a channel's relations are joined, and where the parameters come in.

The parameters join right after the dataset that their best condition is about, so that only what somebody asked for
goes on. Inner joins may then change places; where there is any other join the written order stays, and the parameters
come in before the first of them whose ON needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from nearcast.pipeline.channels.geography import is_distance
from nearcast.pipeline.channels.joins import conjuncts, is_equality, relations_of
from nearcast.pipeline.channels.validation import PARAMETERS


@dataclass
class Link:
    """One relation of the chain. `fixed` is its join as written, unless that is an inner one; then all its conditions
    are those of its ON."""

    name: str
    source: exp.Expr
    fixed: exp.Join | None = None
    conditions: list[exp.Expr] = field(default_factory=list)


@dataclass
class Chain:
    """The relations in the order of their joins, and the conditions that belong to no inner join."""

    links: list[Link]
    rest: list[exp.Expr]


def chain_of(bound: exp.Select, parameters: exp.Expr) -> Chain:
    """The chain of a bound query with the parameters in it, each condition at the first join that has its columns."""
    links = [Link(bound.args["from_"].this.alias_or_name, bound.args["from_"].this)]
    where = bound.args.get("where")
    pool = conjuncts(where.this if where else None)
    for join in bound.args.get("joins", ()):
        name, conditions = join.this.alias_or_name, conjuncts(join.args.get("on"))
        if is_inner(join):
            links.append(Link(name, join.this))
            pool += conditions
        else:
            links.append(Link(name, join.this, join, conditions))
    names = {link.name for link in links} | {PARAMETERS}
    movable = [condition for condition in pool if _joins_two(condition, names)]
    rest = [condition for condition in pool if condition not in movable]
    ordered = _with_parameters(links, movable, Link(PARAMETERS, parameters))
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


def _with_parameters(links: list[Link], conditions: Sequence[exp.Expr], parameters: Link) -> list[Link]:
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
    """A distance finds the fewest pairs, then equality, then a range."""
    if any(is_distance(node) for node in condition.iter_expressions()):
        return 0
    if is_equality(condition):
        return 1
    return 2 if isinstance(condition, exp.Between | exp.LT | exp.LTE | exp.GT | exp.GTE) else 3


def _connected(chain: list[Link], left: list[Link], conditions: Sequence[exp.Expr]) -> list[Link]:
    """The rest in the written order, but those first that a condition connects with what is there."""
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
