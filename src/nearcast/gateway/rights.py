"""Rights: which topics the users of a gateway may publish to and subscribe to, by the rules of `--allow`."""

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
    """What a user does with a topic."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


class Rule(msgspec.Struct, frozen=True):
    """One pattern, split at each `{user}`. `apart`: characters that a name may not have."""

    parts: tuple[str, ...]
    apart: str

    @classmethod
    def read(cls, pattern: str) -> Rule:
        """Raises UsageError, which says what is wrong with the pattern."""
        if not pattern:
            raise UsageError("the pattern is empty: use * for all topics")
        parts = tuple(pattern.split(_USER))
        neighbours: list[str] = []
        for before, after in pairwise(parts):
            neighbours += [before[-1:]] if _WILD.search(before) else []
            neighbours += [after[:1]] if _WILD.search(after) else []
        if any(sign in ("", "*", "?") for sign in neighbours):
            raise UsageError(f"pattern {pattern!r}: put a character, such as a dot, between {_USER} and * or ?")
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
    # The text between two * is matched at the first place where it occurs, without backtracking: backtracking could
    # take hours for a topic that is made to be nearly allowed, and would allow nothing more.
    between = "".join(f"(?>.*?{part})" for part in others[:-1])
    return re.compile(f"{first}{between}.*{others[-1]}", re.DOTALL)


def _expression(part: str) -> str:
    return re.escape(part).replace(r"\*", _ANY).replace(r"\?", ".")


class Rights:
    """Which topics the users of one gateway may publish to and subscribe to. What no rule allows is refused.

    A rule is `publish:PATTERN` or `subscribe:PATTERN`. In a pattern, `*` stands for any characters, `?` for one, and
    `{user}` for the name of the logged-in user. Special characters in that name stand for themselves.

    No user may reach the topics of another: with `{user}.*`, the user `ann` may use `ann.x`, and would therefore also
    get all topics of a user `ann.b`. The character between `{user}` and a `*` or `?` separates the names. So there must
    be one, and the rule grants nothing to a user whose name contains it.
    """

    def __init__(self, rules: Iterable[str] = ()) -> None:
        self._rules: dict[Act, list[Rule]] = {act: [] for act in Act}
        for text in rules:
            act, colon, pattern = text.partition(":")
            if not colon or act not in set(Act):
                raise UsageError(f"bad right {text!r}: use publish:PATTERN or subscribe:PATTERN")
            self._rules[Act(act)].append(Rule.read(pattern))

    def check(self, act: Act, user: str, topic: str) -> None:
        """Raises AccessDenied if no rule allows it."""
        if not any(rule.matches(user, topic) for rule in self._rules[act]):
            how = f"--allow {act}:PATTERN of the gateway's agent"
            raise AccessDenied(f"no right to {act} to topic {topic[:100]!r}: the operator allows topics with {how}")
