"""Why the catalogue refuses a call: what is wrong, and what to do. Who answers over HTTP picks the status by class."""

from __future__ import annotations

from nearcast.errors import UsageError


class CatalogRefusal(UsageError):
    """The call cannot be done: the problem, and a hint how to do it."""

    def __init__(self, problem: str, hint: str) -> None:
        self.problem = problem
        self.hint = hint
        super().__init__(f"{problem}: {hint}")


class Unknown(CatalogRefusal):
    """No such broker, channel, subscription or result."""


class Conflict(CatalogRefusal):
    """The name is taken by something else, or something in use would go."""


class NoLongerKept(CatalogRefusal):
    """It was there, and retention has dropped it."""


class Damaged(CatalogRefusal):
    """It is in the catalogue and cannot be read."""


class WrongParameters(CatalogRefusal):
    """A subscription's parameters are not those that the channel declares."""


class CatalogFull(CatalogRefusal):
    """There are as many as the limit allows."""
