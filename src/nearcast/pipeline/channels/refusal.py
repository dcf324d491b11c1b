"""Why a channel is refused: where in its text, what is wrong, and what to write instead."""

from __future__ import annotations

from nearcast.errors import UsageError


class InvalidChannel(UsageError):
    """The channel's text cannot run: correct the place that the message names."""

    def __init__(self, line: int, column: int, problem: str, hint: str) -> None:
        self.line = line
        self.column = column
        self.problem = problem
        self.hint = hint
        super().__init__(f"line {line}, column {column}: {problem}; {hint}")


def invalid_at(text: str, offset: int, problem: str, hint: str) -> InvalidChannel:
    """The refusal for the place `offset` characters into the channel's text; lines and columns count from 1."""
    before = text[:offset]
    return InvalidChannel(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1, problem, hint)
