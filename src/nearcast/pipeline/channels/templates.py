"""Pieces of SQL with places to fill in: written as text, because a formula reads better so than as a tree."""

from __future__ import annotations

from functools import lru_cache

from sqlglot import exp, parse_one

from nearcast.pipeline.channels.language import DIALECT


def filled(template: str, **parts: exp.Expr) -> exp.Expr:
    """The SQL of `template` with a part in place of each `:name`; names without a part stay."""

    def put_in(node: exp.Expr) -> exp.Expr:
        part = parts.get(node.name) if isinstance(node, exp.Placeholder) else None
        return node if part is None else part.copy()

    return _parsed(template).transform(put_in)


@lru_cache(maxsize=256)
def _parsed(template: str) -> exp.Expr:
    return parse_one(template, dialect=DIALECT)
