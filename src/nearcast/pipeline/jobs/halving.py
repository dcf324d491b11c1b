"""Which of many fail together: found by halves, each of which is tried.

A part that passes is done with, one that fails is halved, one of a single member that fails is a suspect. Nobody is a
suspect while nothing passes at all: then the cause is elsewhere, as a disk that is full, and trying ends soon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

TRIES_AT_MOST = 200  # of one search: some minutes


@dataclass(frozen=True)
class Halved(Generic[T]):
    passed: list[Sequence[T]]
    suspects: list[T]  # each failed alone
    left: list[Sequence[T]]  # failed together, and there was no try left for their halves


def halved(whole: Sequence[T], passes: Callable[[Sequence[T]], bool], most: int = TRIES_AT_MOST) -> Halved[T]:
    """The parts of a whole that has failed. Those who fail must not stand together: shuffle it."""
    passed: list[Sequence[T]] = []
    suspects: list[T] = []
    left = _halves(whole)
    without_success = 4 * len(whole).bit_length()  # enough to come down to one, and to many beside it
    tries = 0
    while left and tries < (most if passed else min(most, without_success)):
        part = left.pop()
        tries += 1
        if passes(part):
            passed.append(part)
        elif len(part) == 1:
            suspects.append(part[0])
        else:
            left += _halves(part)
    return Halved(passed, suspects if passed else [], left)


def _halves(part: Sequence[T]) -> list[Sequence[T]]:
    middle = len(part) // 2
    return [half for half in (part[:middle], part[middle:]) if len(half) < len(part)] if middle else []
