"""What the controller asks of its driver: of the store, and of policies. Each is answered by the matching input."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

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


class Load(msgspec.Struct, frozen=True):
    """Read everything, in this term: answered by `read` for each part, then by `loaded`, or by `not_loaded`."""

    term: int


class Commit(msgspec.Struct, frozen=True):
    """Write all of this or nothing, if the store is still at this version and term: answered by `committed`."""

    version: int
    term: int
    changes: dict[str, bytes]


StoreEffect = Campaign | Resign | Load | Commit


# --- policies


View = TypeVar("View")
Seen = TypeVar("Seen", contravariant=True)
Answer = TypeVar("Answer", covariant=True)


class Decider(Protocol[Seen, Answer]):
    """A pure function with a name: the same view gives the same answer."""

    name: str

    def decide(self, view: Seen) -> Answer: ...


class Ask(msgspec.Struct, Generic[View], frozen=True):
    """Have `decide` called where it may take its time: answered by `answered` with the same number."""

    number: int
    decider: Decider[View, object]
    view: View

    def decide(self) -> object:
        return self.decider.decide(self.view)
