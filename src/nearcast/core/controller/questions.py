"""Questions: what a leader asks policies to decide, and what follows from their answers.

A decision may take seconds, and the machine waits for nothing: `Ask` is an effect, its answer an input. Numbers begin
with the term, so that no answer to an earlier leader's question is taken for ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from nearcast.core.controller.effects import Ask, Decider

View = TypeVar("View")
Answer = TypeVar("Answer")


class Questions:
    """The questions that are not answered yet, and what to call with each answer."""

    def __init__(self, term: int) -> None:
        self.outgoing: list[Ask[Any]] = []  # for the driver
        self._number = term << 32
        self._open: dict[int, Callable[[Any, float], None]] = {}

    def ask(self, decider: Decider[View, Answer], view: View, answered: Callable[[Answer | None, float], None]) -> None:
        """Have a view decided upon; `answered` is called with the decision, or with None if that failed."""
        self._number += 1
        self._open[self._number] = answered
        self.outgoing.append(Ask(self._number, decider, view))

    def answered(self, number: int, answer: Any, now_s: float) -> None:
        """An answer has come; one that is not awaited is ignored."""
        then = self._open.pop(number, None)
        if then is not None:
            then(answer, now_s)

    def take(self) -> list[Ask[Any]]:
        outgoing, self.outgoing = self.outgoing, []
        return outgoing
