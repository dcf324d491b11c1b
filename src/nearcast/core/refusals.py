"""Refusals: what a server will not do, as an error, and the messages nobody waits for that it concerns.

`publish` raises by itself. `publish_nowait` has returned long before the server says no: such a message is noted here,
one note per topic, until somebody asks. `flush` asks.
"""

from __future__ import annotations

import msgspec

from nearcast.core.names import decode_topic
from nearcast.errors import ClusterError, Unavailable


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


def refused(broker: str, what: str, text: str) -> ClusterError:
    """The error for what a server will not do."""
    return Unavailable(f"{broker} refused {what}: {text}")
