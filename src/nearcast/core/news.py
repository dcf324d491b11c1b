"""News of a client: how it stands with its brokers, and what the log of its program may say.

The machine tells them to whoever made it, as they happen; none is told per message.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum

import msgspec

from nearcast.core.placement import Placement


class State(StrEnum):
    """How a client stands with the brokers it uses."""

    CONNECTED = "connected"  # all of them answer and have their leases
    DEGRADED = "degraded"  # some do not: their topics wait, all others go on
    DISCONNECTED = "disconnected"  # no server answers: everything waits
    CLOSED = "closed"


class StateChange(msgspec.Struct, frozen=True):
    """What a client has become, and why."""

    state: State
    reason: str = ""


class Kind(Enum):
    """What a note is about; what is said of one kind has a common pace."""

    OPENED = "opened"
    LOST = "lost"
    RETRIED = "retried"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    MOVED = "moved"


class Note(msgspec.Struct, frozen=True):
    """A line for the log."""

    kind: Kind
    text: str


def moved(what: str, placement: Placement, interrupted: str | None = None) -> Note:
    """Something of ours has a new place; messages may have been missed on the way, and why."""
    text = f"{what} moved to {', '.join(placement.brokers)} ({placement.mode}, epoch {placement.epoch})"
    return Note(Kind.INTERRUPTED, f"{text}: {interrupted}") if interrupted else Note(Kind.MOVED, text)


Tell = Callable[[Note | StateChange], None]


def silent(news: Note | StateChange) -> None:
    """For a machine whose news nobody wants."""
