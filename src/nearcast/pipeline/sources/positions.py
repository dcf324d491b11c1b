"""How far parts of logs were read, what to read next, and how that is divided among tasks: arithmetic on positions.

Spark keeps positions in its checkpoint, and everything about a batch follows from those at its start and at its end. So
a batch that runs again reads the same messages, from whichever server has the part by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nearcast.pipeline.sources.offsets import shares
from nearcast.pipeline.sources.parts import Extent

Positions = Mapping[str, int]  # stream -> how many of its messages were read, or were gone before they could be

TASK_MESSAGES_MIN = 5000  # a smaller task costs more than its work


class PartRange(msgspec.Struct, frozen=True, order=True):
    """Messages of one part: those after a position, up to and including another."""

    stream: str
    after: int
    upto: int

    @property
    def messages(self) -> int:
        return self.upto - self.after


def advanced(start: Positions, kept: Mapping[str, Extent], limit: int | None) -> dict[str, int]:
    """Where to read up to next: at most `limit` messages of all parts together. What is gone counts as nothing.

    A part of which nothing is known stays where it was.
    """
    begins = {stream: max(start.get(stream, 0), extent.first) for stream, extent in kept.items()}
    backlogs = {stream: max(0, extent.last - begins[stream]) for stream, extent in kept.items()}
    granted = shares(backlogs, limit)
    ends = {stream: begins[stream] + granted[stream] for stream in kept}
    return {stream: position for stream, position in sorted({**start, **ends}.items()) if position}


def ranges(start: Positions, end: Positions) -> list[PartRange]:
    found = (PartRange(stream, start.get(stream, 0), upto) for stream, upto in sorted(end.items()))
    return [each for each in found if each.messages > 0]


def tasks(wanted: Iterable[PartRange], most: int) -> list[list[PartRange]]:
    """The ranges in groups of about the same size, at most `most`: short ones together, long ones divided."""
    left = sorted(wanted)
    total = sum(each.messages for each in left)
    count = max(1, min(most, total // TASK_MESSAGES_MIN))
    groups: list[list[PartRange]] = []
    for number in range(count):
        room = total * (number + 1) // count - total * number // count
        groups.append([])
        while room:
            each = left.pop(0)
            taken = PartRange(each.stream, each.after, min(each.upto, each.after + room))
            groups[-1].append(taken)
            room -= taken.messages
            if taken.upto < each.upto:
                left.insert(0, PartRange(each.stream, taken.upto, each.upto))
    return [group for group in groups if group]
