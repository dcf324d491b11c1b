"""Refusals: what a server will not do, as an error, and the messages nobody waits for that it concerns.

`publish` raises by itself. `publish_nowait` has returned long before the server says no: such a message is noted here,
one note per topic, until somebody asks. `flush` asks.
"""

from __future__ import annotations

import msgspec

from nearcast.core.backend import Denied
from nearcast.core.names import decode_topic
from nearcast.core.record import Unreadable
from nearcast.errors import AccessDenied, ClusterError, Unavailable, Unsupported


class Refusal(msgspec.Struct):
    """Messages of one topic that were refused and whose callers had not waited."""

    count: int
    first: ClusterError


class Refusals:
    def __init__(self) -> None:
        self.count = 0  # since the client was made
        self._noted: dict[bytes, Refusal] = {}

    def note(self, topic: bytes, error: ClusterError, count: int = 1) -> None:
        self.count += count
        noted = self._noted.get(topic)
        if noted is None:
            self._noted[topic] = Refusal(count, error)
        else:
            noted.count += count

    def take(self) -> dict[bytes, Refusal]:
        """All that was refused since the last call, by topic."""
        noted, self._noted = self._noted, {}
        return noted


def summed_up(refused: dict[bytes, Refusal]) -> ClusterError:
    """One error for all: of the kind of the first, with its words."""
    (topic, refusal), *others = refused.items()
    text = f"{_messages(refusal.count)} on {decode_topic(topic)!r} refused: {refusal.first}"
    if others:
        rest = sum(other.count for _, other in others)
        text += f" (and {_messages(rest)} on {len(others)} more topics)"
    return type(refusal.first)(text)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


# --- errors, with what to do


def refused(broker: str, what: str, text: str) -> ClusterError:
    """The error for what a server will not do."""
    problem = f"{broker} refused {what}: {text}"
    if text.startswith("NOPERM"):
        return AccessDenied(f"{problem}: the user needs the commands, keys and channels listed in docs/security.md")
    return Unavailable(problem)


def not_found(broker: str, topic: bytes, answer: Denied | Unreadable) -> ClusterError:
    """The error for a record that was not to be had, or that only a newer version can read."""
    name = decode_topic(topic)
    if isinstance(answer, Unreadable):
        return Unsupported(f"{broker} has a record of {name!r} that says {answer.text}: upgrade nearcast here")
    return refused(broker, f"to say where {name!r} is", answer.text)


def unheard_of(broker: str) -> ClusterError:
    """The error for messages of a placement that no record has told us of."""
    return Unavailable(f"{broker} brings messages of a placement that this client has no record of: it looks again")
