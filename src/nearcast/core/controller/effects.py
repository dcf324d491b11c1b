"""What the controller asks of its driver: effects for the store, questions to policies, and where answers go.

Each effect is answered by the matching input. A decision of a policy may take seconds, and the machine waits for
nothing: `Ask` is an effect like the others. Its number begins with the term, so that no answer to an earlier leader's
question is taken for ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

# --- the store


class Campaign(msgspec.Struct, frozen=True):
    """Become or stay the leader. Also take over from this holder: it has not renewed for long enough.

    Answered by `campaigned`, or by `not_campaigned`.
    """

    candidate: str
    stale: str = ""
    above: int = 0  # a new term must be higher than this one, which someone has heard of


class Leadership(msgspec.Struct, frozen=True):
    """How the store answers a campaign."""

    term: int | None  # of the candidate, if it leads; None: another one does
    held: str  # the holder, and how often it has renewed
    version: int  # the number of commits at that moment


class Resign(msgspec.Struct, frozen=True):
    """Give up the leadership, if this candidate still has it. Not answered."""

    candidate: str


class LoadJournal(msgspec.Struct, frozen=True):
    """Read everything, in this term: answered by `read` for each part, then by `loaded`, or by `not_loaded`."""

    term: int


class Commit(msgspec.Struct, frozen=True):
    """Write all of this or nothing, if the store is still at this version and term: answered by `committed`."""

    version: int
    term: int
    changes: dict[str, bytes]


StoreEffect = Campaign | Resign | LoadJournal | Commit


# --- policies


View = TypeVar("View")
Answer = TypeVar("Answer")
Seen = TypeVar("Seen", contravariant=True)
Decided = TypeVar("Decided", covariant=True)


class Decider(Protocol[Seen, Decided]):
    """A pure function with a name: the same view gives the same answer."""

    name: str

    def decide(self, view: Seen) -> Decided: ...


class Ask(msgspec.Struct, Generic[View], frozen=True):
    """Have `decide` called where it may take its time: answered by `answered` with the same number."""

    number: int
    decider: Decider[View, object]
    view: View

    def decide(self) -> object:
        return self.decider.decide(self.view)


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
