"""The servers' glob patterns (PSUBSCRIBE, HSCAN MATCH, PUBSUB CHANNELS) as regular expressions.

A port of `stringmatchlen` with its habits, because clients match by the real one: a class that is not closed ends with
the pattern, a range may be written backwards, `]` ends a range like any other character (`[a-]` goes from `]` to `a`),
and an empty name is matched by the empty pattern alone, not by `*`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

Matcher = Callable[[bytes], object]

_ANY = b"."
_NONE = b"(?!)"


@lru_cache(maxsize=4096)
def matcher(pattern: bytes) -> Matcher:
    """A function that says whether a whole name matches, as something true or false."""
    if not pattern:
        return lambda name: not name
    parts = [b"(?=.)"]
    at = 0
    while at < len(pattern):
        part, at = _part(pattern, at)
        parts.append(part)
    return re.compile(b"".join(parts), re.DOTALL).fullmatch


def _part(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The expression for what starts here, and where the next part starts."""
    char = pattern[at : at + 1]
    if char == b"*":
        return b".*", at + 1
    if char == b"?":
        return _ANY, at + 1
    if char == b"[":
        return _class(pattern, at + 1)
    if char == b"\\" and at + 1 < len(pattern):
        at += 1
    return re.escape(pattern[at : at + 1]), at + 1


def _class(pattern: bytes, at: int) -> tuple[bytes, int]:
    negated = pattern[at : at + 1] == b"^"
    at += negated
    members: set[int] = set()
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        left = len(pattern) - at
        if left >= 2 and pattern[at : at + 1] == b"\\":
            members.add(pattern[at + 1])
            at += 2
        elif left >= 3 and pattern[at + 1 : at + 2] == b"-":
            low, high = sorted((pattern[at], pattern[at + 2]))
            members.update(range(low, high + 1))
            at += 3
        else:
            members.add(pattern[at])
            at += 1
    if not members:
        return (_ANY if negated else _NONE), at + 1
    listed = b"".join(re.escape(bytes((member,))) for member in sorted(members))
    return b"[%b%b]" % (b"^" if negated else b"", listed), at + 1
