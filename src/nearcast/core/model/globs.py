"""Patterns of names, as Valkey and Redis match them, quirks included: clients and servers must agree.

`*` stands for any characters, `?` for one, `[ab]`, `[a-c]` and `[^a]` for one of a class, and `\\` takes the next
character literally. An unclosed class ends with the pattern, a range may be written backwards, `]` ends a range like
any other character (`[a-]` goes from `]` to `a`), and an empty name is matched only by the empty pattern, not by `*`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

Matcher = Callable[[bytes], object]

_ANYTHING = b".*"
_ANY = b"."
_NONE = b"(?!)"
_SIGNS = re.compile(rb"[*?\[\\]")


@lru_cache(maxsize=4096)
def matcher(pattern: bytes) -> Matcher:
    """A function that returns something true if the whole name matches, else something false."""
    if not pattern:
        return lambda name: not name
    runs = [b"(?=.)"]  # what stands between two `*`
    at = 0
    while at < len(pattern):
        part, at = _part(pattern, at)
        if part is _ANYTHING:
            runs.append(b"")
        else:
            runs[-1] += part
    first, *others = runs
    if not others:
        return re.compile(first, re.DOTALL).fullmatch
    # What stands between two `*` is matched at the first place where it occurs, without backtracking: that could take
    # hours for a name that is made to match nearly, and would find nothing more.
    between = b"".join(b"(?>.*?%b)" % run for run in others[:-1])
    return re.compile(b"%b%b.*%b" % (first, between, others[-1]), re.DOTALL).fullmatch


class Globs:
    """Many patterns, to be compared with many names. Most differ before their first sign, and need no comparison."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._by_prefix: dict[bytes, list[tuple[str, Matcher]]] = {}
        for pattern in patterns:
            encoded = pattern.encode("utf-8", "surrogatepass")
            self._by_prefix.setdefault(_SIGNS.split(encoded, 1)[0], []).append((pattern, matcher(encoded)))
        self._lengths = sorted({len(prefix) for prefix in self._by_prefix})

    def matching(self, name: str) -> Iterator[str]:
        encoded = name.encode("utf-8", "surrogatepass")
        for length in self._lengths:
            for pattern, matches in self._by_prefix.get(encoded[:length], ()):
                if matches(encoded):
                    yield pattern


def includes(pattern: bytes, other: bytes) -> bool:
    """Whether all names that the other pattern matches match this one too. False may also mean that it is not clear."""
    prefix = _SIGNS.split(other, 1)[0]
    if pattern == other:
        return True
    if prefix == other:
        return bool(matcher(pattern)(other))
    return pattern.endswith(b"*") and not _SIGNS.search(pattern[:-1]) and prefix.startswith(pattern[:-1])


def _part(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The expression for what starts here, and where the next part starts."""
    char = pattern[at : at + 1]
    if char == b"*":
        return _ANYTHING, at + 1
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
