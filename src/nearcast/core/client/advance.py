"""How far the cursor of a group may advance in one part (PROTOCOL "Logs", rule 16).

The member that reads a part delivers its lines in order. The group's cursor may pass a line if

    1. it may pass all lines before it
    2. the program has taken all its events, and has committed; a line without events asks nobody
    3. the line is no mark, or the group has committed what the mark needs in other parts. A member that continues
       behind the mark would not wait for that, and deliver it too late

Events are counted in the order in which they are delivered, so "before" compares two counts. Of lines with events only
the count is kept; lines without events are kept until the cursor has passed them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from nearcast.core.model.cursors import Position
from nearcast.core.model.logs import EntryId

if TYPE_CHECKING:
    from nearcast.core.client.lines import Line

SILENT_MAX = 10_000  # lines without events that the cursor has not passed: every move of a topic may add one

Needs = dict[str, EntryId]  # part -> the entry up to which the group must have committed it
IsCommitted = Callable[[str, EntryId], bool]


class _Point(NamedTuple):
    """A place, and the number of events delivered before it."""

    events: int
    position: Position


class _Silent(msgspec.Struct, eq=False):
    """A line without events, or several that follow each other."""

    events: int  # that were delivered before it
    before: Position
    behind: Position
    needs: Needs  # of the first one; empty once they are met


class Advance:
    """From when a member begins to read a part until it loses it. A member that begins again gets a new one."""

    __slots__ = ("_began", "_committed", "_delivered", "_silent", "_taken", "_wanted", "last_event")

    def __init__(self, position: Position) -> None:
        self.last_event = position.entry  # the last delivered entry with something for the program
        self._began = position.count  # messages of the part before where it began; below 0: not known yet
        self._delivered = 0  # events
        self._taken: tuple[Line, int] | None = None  # the last line of which the program has taken events; how many
        self._wanted: _Point | None = None  # up to where the program has committed, until the server has it
        self._committed = _Point(0, position)
        self._silent: deque[_Silent] = deque()

    # --- what happens

    def began_behind(self, count: int) -> None:
        """So many messages of the part come before where it began. The cursor says so from now on: what retention
        removes behind it is missed then, even if nothing was ever committed."""
        self._began = count
        self.committed(self._committed.position)

    def deliver(self, line: Line, needs: Needs) -> None:
        """A line is delivered; `needs`: what must be committed elsewhere before the cursor passes it."""
        line.delivered = self._delivered
        if line.events:
            self._delivered += len(line.events)
            self.last_event = line.entry
        elif self._silent and self._silent[-1].events == self._delivered and not needs:
            self._silent[-1].behind = line.behind(0)
        else:
            self._silent.append(_Silent(self._delivered, line.before, line.behind(0), needs))

    def take(self, line: Line, number: int) -> None:
        """The program takes an event: so many of the line by now. Runs for every message."""
        self._taken = (line, number)

    def want(self) -> Position:
        """The program commits what it has taken. Returns the place that the cursor must reach for that."""
        self._wanted = self._taken_upto
        return self._wanted.position

    def committed(self, position: Position) -> None:
        """The server has the cursor here."""
        wanted, events = self._wanted, self._committed.events
        if wanted is not None and position.reaches(wanted.position):
            self._wanted, events = None, wanted.events
        if position.count < 0:
            position = msgspec.structs.replace(position, count=self._began)
        self._committed = _Point(events, position)
        while self._silent and self._silent[0].behind.entry <= position.entry:
            self._silent.popleft()

    # --- where that leads

    def upto(self, is_committed: IsCommitted) -> Position:
        """The place to which the cursor may advance now."""
        events, position = self._wanted or self._committed
        for silent in self._silent:
            if not all(is_committed(part, entry) for part, entry in silent.needs.items()):
                return silent.before if silent.events <= events else position
            silent.needs = {}  # what was committed once stays committed, though later it may be harder to tell
            if silent.events == events:
                position = silent.behind
        return position

    @property
    def _taken_upto(self) -> _Point:
        """Behind the last event that the program has taken."""
        if self._taken is None:
            return self._committed
        line, number = self._taken
        return _Point(line.delivered + number, line.behind(number))

    @property
    def is_wanted(self) -> bool:
        """Whether the program has committed something that the server may not have yet."""
        return self._wanted is not None

    @property
    def has_taken(self) -> bool:
        """Whether the program has taken anything."""
        return self._taken is not None

    @property
    def is_ahead(self) -> bool:
        """Whether the program has taken something that the group has not committed."""
        return self._taken_upto.events > self._committed.events

    @property
    def is_done(self) -> bool:
        """Whether the program has taken everything that was delivered, and the group has committed it."""
        return self._delivered == self._taken_upto.events == self._committed.events

    @property
    def is_settled(self) -> bool:
        """Whether the cursor has passed everything that was delivered."""
        return self.is_done and not self._silent

    @property
    def has_ready(self) -> bool:
        """Whether something that was delivered waits for the program."""
        return self._delivered > self._taken_upto.events

    @property
    def has_marks(self) -> bool:
        """Whether the cursor may have to wait at a mark."""
        return any(silent.needs for silent in self._silent)

    @property
    def has_room(self) -> bool:
        """Whether it can note another line without events."""
        return len(self._silent) < SILENT_MAX
