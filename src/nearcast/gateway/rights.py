"""Rights: which topics users of a gateway may publish to, and subscribe. What no rule names is refused.

A rule is `publish:PATTERN` or `subscribe:PATTERN`. In a pattern `*` stands for any characters, `?` for one, and
`{user}` for the name that somebody is logged in with. Signs in that name stand for themselves.

A name must not reach into what belongs to another one: with `{user}.*` the user `ann` may use `ann.x`, and so all
topics of a user `ann.b` too. The sign between `{user}` and a `*` or `?` keeps the names apart, so there must be one,
and a user whose name has this sign gets nothing by the rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise

import msgspec

from nearcast.errors import AccessDenied, UsageError

_USER = "{user}"
_WILD = re.compile(r"[*?]")
_ANY = "\0*"  # for a * in a pattern, between the parts of an expression: escaped text has no bare *


class Act(StrEnum):
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


class Rule(msgspec.Struct, frozen=True):
    """One pattern, cut at each `{user}`. `apart`: signs that a name may not have."""

    parts: tuple[str, ...]
    apart: str

    @classmethod
    def read(cls, pattern: str) -> Rule:
        """UsageError says what is wrong with it."""
        if not pattern:
            raise UsageError("an empty pattern: use * for all topics")
        parts = tuple(pattern.split(_USER))
        neighbours: list[str] = []
        for before, after in pairwise(parts):
            neighbours += [before[-1:]] if _WILD.search(before) else []
            neighbours += [after[:1]] if _WILD.search(after) else []
        if any(sign in ("", "*", "?") for sign in neighbours):
            raise UsageError(f"pattern {pattern!r}: put a sign, such as a dot, between {_USER} and * or ?")
        return cls(parts, "".join(neighbours))

    def matches(self, user: str, topic: str) -> bool:
        if any(sign in user for sign in self.apart):
            return False
        return _compiled(self, user if len(self.parts) > 1 else "").fullmatch(topic) is not None


@lru_cache(maxsize=10_000)
def _compiled(rule: Rule, user: str) -> re.Pattern[str]:
    first, *others = re.escape(user).join(map(_expression, rule.parts)).split(_ANY)
    if not others:
        return re.compile(first, re.DOTALL)
    # What stands between two * is taken where it is found first, and never looked for again: going back would take
    # hours for a topic made to be nearly allowed, and no later place lets through what the first does not.
    between = "".join(f"(?>.*?{part})" for part in others[:-1])
    return re.compile(f"{first}{between}.*{others[-1]}", re.DOTALL)


def _expression(part: str) -> str:
    return re.escape(part).replace(r"\*", _ANY).replace(r"\?", ".")


class Rights:
    """Of all users of one gateway."""

    def __init__(self, rules: Iterable[str] = ()) -> None:
        self._rules: dict[Act, list[Rule]] = {act: [] for act in Act}
        for text in rules:
            act, colon, pattern = text.partition(":")
            if not colon or act not in set(Act):
                raise UsageError(f"bad right {text!r}: use publish:PATTERN or subscribe:PATTERN")
            self._rules[Act(act)].append(Rule.read(pattern))

    def check(self, act: Act, user: str, topic: str) -> None:
        """AccessDenied if no rule allows it."""
        if not any(rule.matches(user, topic) for rule in self._rules[act]):
            how = f"--allow {act}:PATTERN of the agent with the gateway"
            raise AccessDenied(f"you may not {act} topic {topic[:100]!r}: the operator allows topics with {how}")
