"""How far parts of logs were read, what to read next, and how that is divided among tasks: arithmetic on positions.

Spark keeps positions in its checkpoint, and everything about a batch follows from those at its start and at its end. So
a batch that runs again reads the same messages, from whichever server has the part by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nearcast.pipeline.sources.offsets import shares
from nearcast.pipeline.sources.parts import Extent

# Stream -> how many of its messages were read, or were gone before they could be. LOST: its life has ended, nobody has
# the part, and how many messages it had is not known.
Positions = Mapping[str, int]
LOST = -1

TASK_MESSAGES_MIN = 5000  # a smaller task costs more than its work


class PartRange(msgspec.Struct, frozen=True, order=True):
    """Messages of one part: those after a position, up to and including another."""

    stream: str
    after: int
    upto: int

    @property
    def messages(self) -> int:
        return max(0, self.upto - self.after)


def advanced(start: Positions, kept: Mapping[str, Extent | None], limit: int | None) -> dict[str, int]:
    """Where to read up to next: at most `limit` messages of all parts together. What is gone counts as nothing.

    A part that is not in `kept` stays where it was; None stands for one that is lost.
    """
    there = {stream: extent for stream, extent in kept.items() if extent is not None and start.get(stream) != LOST}
    begins = {stream: max(start.get(stream, 0), extent.first) for stream, extent in there.items()}
    granted = shares({stream: max(0, extent.last - begins[stream]) for stream, extent in there.items()}, limit)
    ends = {stream: begins[stream] + granted[stream] for stream in there}
    ends |= {stream: LOST for stream, extent in kept.items() if extent is None}
    return {stream: position for stream, position in sorted({**start, **ends}.items()) if position}


def ranges(start: Positions, end: Positions) -> list[PartRange]:
    """What lies between two sets of positions. The range of a part that was lost ends at LOST."""
    found = (PartRange(stream, start.get(stream, 0), upto) for stream, upto in sorted(end.items()))
    return [each for each in found if each.messages > 0 or (each.upto == LOST != each.after)]


def tasks(wanted: Sequence[PartRange], most: int) -> list[list[PartRange]]:
    """The ranges in groups of about the same size, at most `most`: short ones together, long ones divided."""
    left = sorted(each for each in wanted if each.messages)
    total = sum(each.messages for each in left)
    count = max(1, min(most, total // TASK_MESSAGES_MIN))
    groups = [[each for each in sorted(wanted) if not each.messages]]  # those have only to be told
    for number in range(count):
        room = total * (number + 1) // count - total * number // count
        if number:
            groups.append([])
        while room:
            each = left.pop(0)
            taken = PartRange(each.stream, each.after, min(each.upto, each.after + room))
            groups[-1].append(taken)
            room -= taken.messages
            if taken.upto < each.upto:
                left.insert(0, PartRange(each.stream, taken.upto, each.upto))
    return [group for group in groups if group]
