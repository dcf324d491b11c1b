"""A log reader: what one program reads from a log, alone or as a member of a group (PROTOCOL "Logs").

Every part of the log stands in the order in which it was written. Two things tie the parts together:

    marks       a topic that moves leaves its messages where they were kept. Where it continues there is a mark, and
                nothing behind the mark is delivered before the old parts were delivered up to the ends that it names
    versions    every entry has the version of the logs it was written with. If a broker dies or directories change, the
                version is a new one: nothing of it is delivered before everything older was delivered, in all parts

Both name only what was written earlier, so two parts never wait for each other.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from nearcast.core.client.advance import Advance, Needs
from nearcast.core.client.group import LOOK_AGAIN_S, Group
from nearcast.core.client.lines import Line
from nearcast.core.client.news import refused
from nearcast.core.client.part_reader import PartReader
from nearcast.core.model.cursors import BEGINNING, EARLIEST, Position
from nearcast.core.model.logs import EntryId, FormerLife, Log, PartState, parse_id, parse_number
from nearcast.core.model.message import Kept
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire.effects import Done, Failed
from nearcast.errors import NearcastError, Unavailable, UsageError

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client
    from nearcast.core.wire.backend import ClientLink, Page

READY_MAX = 4096  # messages that wait for the program; the entry that reaches it is delivered whole
READY_BYTES = 4 << 20  # of them; the entry that reaches it is delivered whole, too
LOOK_S = 1.0  # between two looks at a part of which nothing was heard
NUMBER_MAX = (1 << 64) - 1


class Start(StrEnum):
    """Where a reader begins that has never read the log, or whose group has not."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Delivery(NamedTuple):
    """One event for the program, and where it was."""

    event: Kept
    part: PartReader
    advance: Advance  # of the part: if it has another one by now, another member reads this
    line: Line
    number: int  # of the event in the line, counted from 1


class LogReader:
    """Inputs: linked, unlinked, membership_changed, tick, taken, commit, close. Outputs: `ready`, and effects."""

    def __init__(
        self, client: Client, log: Log, start: Start | float, *, group: str = "", holds: bool = False, token: object
    ) -> None:
        """`start` may also be a time, in seconds since the Unix epoch, by the clocks of the servers."""
        self.client = client
        self.log = log
        self.start = start
        self.group = Group(self, group, holds=holds) if group else None
        self.ready: deque[Delivery] = deque()
        self._ready_bytes = 0
        self.closed = False
        self.parts: dict[str, PartReader] = {}
        self._token: object | None = token  # of the caller that waits until it has begun
        self._passed = 0  # everything older than this version of the logs was delivered
        self._reported = 0  # the group knows of the lives that were lost up to this version
        self._since = client.membership.logs_version  # parts that began later are read from their first message
        self._seen = client.membership.version  # of the last membership that was looked at
        self._ended: list[PartReader] = []  # of lives that are lost; the program may not have taken the report yet
        self._cluster, self._era = client.membership.cluster, client.membership.era
        self._looked_s = NEVER_S
        self._going_on = False

    # --- parts

    def membership_changed(self, now_s: float) -> None:
        membership = self.client.membership
        if self.closed or self.client.leaving is not None:
            return
        if self.log not in membership.logs or membership.cluster != self._cluster:
            self.fail(self._gone())
            return
        if not self.parts and self.group is None:
            self.begun(again=False)
        living = {membership.life(broker): broker for broker in membership.brokers}
        new = [PartReader(self, life, broker, self.log) for life, broker in living.items() if life not in self.parts]
        new += [
            PartReader(self, former.life, "", self.log)
            for former in membership.former
            if former.life not in self.parts and self._may_be_read(former)
        ]
        self.parts |= {part.life: part for part in new}
        for life, part in list(self.parts.items()):
            if life not in living and not part.ended:
                fate = membership.fate(life, self.log.quorum)
                if fate is PartState.LOST:
                    self._end(part)
                else:
                    part.move(held=fate is PartState.HELD)
        if self.group is None or self.group.begun:
            self._report(self._seen)
        self._seen = membership.version
        for part in new:
            self._want(part, now_s)
        self.go_on(now_s)

    def _gone(self) -> NearcastError:
        """Why there is nothing to read any more. A log that nobody knows after a loss was not dropped by anybody."""
        membership = self.client.membership
        if (membership.cluster, membership.era) == (self._cluster, self._era):
            return UsageError(f"the log {self.log.name!r} was dropped: there is nothing to read any more")
        return Unavailable(
            f"the log {self.log.name!r} is gone, and what it kept: the store and all servers have lost their data, or"
            " another cluster is there now: create it again, and read again"
        )

    def _may_be_read(self, former: FormerLife) -> bool:
        """Whether a life that has ended may have something for us that is still there, or will be found."""
        fate = self.client.membership.fate(former.life, self.log.quorum)
        return fate is not PartState.LOST and former.ended > max(self.log.created, self._passed)

    def _end(self, part: PartReader) -> None:
        """A life is lost. Every member of a group reports it: its owner may have died with it."""
        part.end(next((each for each in self.client.membership.former if each.life == part.life), None))
        part.owned = True

    def linked(self, part: PartReader, now_s: float) -> None:
        if self.group is not None:
            self.group.ask(part, now_s)
        elif part.position is None:
            self.place(part, now_s)
        self.go_on(now_s)

    def unlinked(self, part: PartReader, now_s: float) -> None:
        self._want(part, now_s)

    def _want(self, part: PartReader, now_s: float) -> None:
        """Ask for a link to whoever has the part."""
        holder = self.client.side_links.holder(part.life) if part.held else None
        if holder is not None:
            holder.want(part, now_s)
        elif part.broker:
            self.client.links.want(part.broker, part, now_s)

    def place(self, part: PartReader, now_s: float) -> None:
        """Find out where to begin in a part that was never read."""
        link = part.link
        if part.began > self._since:
            self._placed(part, BEGINNING, now_s)
        elif isinstance(self.start, float | int):
            self._placed(part, Position((max(0, int(self.start * 1000) - 1), NUMBER_MAX)), now_s)
        elif self.start is Start.EARLIEST:
            self._placed(part, EARLIEST, now_s)
        elif link is not None:
            link.read_last(part.keys, lambda page, at_s: self._last_read(part, link, page, at_s))

    def _last_read(self, part: PartReader, link: ClientLink, page: Page | None, now_s: float) -> None:
        if part.link is not link or part.position is not None:
            return
        if page is None:
            self.refused(part)
        elif page.entries:
            entry_id, fields = page.entries[0]
            count = parse_number(fields[5]) if len(fields) > 5 else None
            self._placed(part, Position(entry_id, 0, page.total if count is None else count), now_s)
        else:
            self._placed(part, Position(count=page.total), now_s)

    def _placed(self, part: PartReader, position: Position, now_s: float) -> None:
        if part.ended:
            return
        if self.group is not None:
            self.group.placed(part, position, now_s)
        else:
            part.begin(position)
        self.go_on(now_s)

    def resume(self, since: int, reported: int) -> None:
        """The group has read the log before: it began with one version of the logs, and had reports up to another.

        What its members had delivered may not have been committed, so this says nothing about the order.
        """
        self._since, self._reported = since, reported

    def begun(self, *, again: bool) -> None:
        """All parts are known: report the lives that are lost, if that was not done before.

        Nobody knows when a life ended, so one who begins at some time in the past hears of all of them.
        """
        if again or self.start is not Start.LATEST:
            self._report(max(self._reported, self.log.created))

    def _report(self, since: int) -> None:
        """Report the lives that were lost after a version of the membership; we may never have seen them alive."""
        for former in self.client.membership.former:
            lost = self.client.membership.fate(former.life, self.log.quorum) is PartState.LOST
            if lost and former.ended > since and former.life not in self.parts:
                self.parts[former.life] = part = PartReader(self, former.life, "", self.log)
                self._end(part)

    def is_in(self, group: str) -> bool:
        return self.group is not None and self.group.name == group

    @property
    def since(self) -> int:
        return self._since

    @property
    def passed(self) -> int:
        """Everything older than this version of the logs was delivered."""
        return self._passed

    @property
    def owes_reports(self) -> bool:
        """Whether the program has not taken a report about a life that was lost."""
        self._ended = [part for part in self._ended if part.advance.has_ready]
        return bool(self._ended) or any(part.ended for part in self.parts.values())

    def refused(self, part: PartReader) -> None:
        self.fail(refused(part.broker, f"to read the log {self.log.name!r}", "NOPERM, or an error of the server"))

    def fail(self, error: NearcastError) -> None:
        if self._token is not None:
            self.client.effects.append(Failed(self._token, error))
            self._token = None
        self.failure = error
        self.close()
        self.client.readers.woken.add(self)

    failure: NearcastError | None = None

    # --- delivery

    def go_on(self, now_s: float) -> None:
        """Deliver what may be delivered, and ask for more."""
        if self.closed or self._going_on:
            return
        self._going_on = True
        before = len(self.ready)
        while self._deliver_once(now_s):
            pass
        self._going_on = False
        if len(self.ready) > before:
            self.client.readers.woken.add(self)
        if self._has_room:
            for part in list(self.parts.values()):
                part.fetch(now_s)
        if self._token is not None and all(self._has_begun(part) for part in self.parts.values()):
            self.client.effects.append(Done(self._token))
            self._token = None

    @property
    def _has_room(self) -> bool:
        return len(self.ready) < READY_MAX and self._ready_bytes < READY_BYTES

    def _has_begun(self, part: PartReader) -> bool:
        return part.position is not None or part.ended or part.cursor is not None

    def _deliver_once(self, now_s: float) -> bool:
        """Deliver what is possible in each part. Returns whether that may have made more possible."""
        moved = False
        for life, part in list(self.parts.items()):
            while part.owned and part.lines and self._has_room and self._may_deliver(part, now_s):
                self._deliver(part, part.next_line())
                moved = True
            if part.ended and not part.lines:
                del self.parts[life]
                if self.group is not None:
                    self._ended.append(part)
                moved = True
        return moved

    def _deliver(self, part: PartReader, line: Line) -> None:
        advance = part.advance
        self.ready.extend(Delivery(event, part, advance, line, number) for number, event in enumerate(line.events, 1))
        self._ready_bytes += line.size_bytes if line.events else 0
        if self.group is not None:
            advance.deliver(line, self._needs(line))

    def _needs(self, line: Line) -> Needs:
        """What a mark names was delivered: to other members, who have committed it, or here."""
        others = ((self.parts.get(life), parse_id(entry)) for life, entry in line.mark.items())
        return {other.life: min(entry, other.advance.last_event) for other, entry in others if other and other.owned}

    def has_committed(self, life: str, entry: EntryId) -> bool:
        """Whether the group has committed a part up to an entry, or never will."""
        part = self.parts.get(life)
        return part is None or part.ended or part.has_committed(entry)

    def _may_deliver(self, part: PartReader, now_s: float) -> bool:
        line = part.lines[0]
        if self.group is not None and (self.group.gives_away(part) or not (line.events or part.advance.has_room)):
            return False
        if line.version > self._passed and not self._pass(line.version, now_s):
            return False
        return not line.mark or self._has_read(line, now_s)

    def _pass(self, version: int, now_s: float) -> bool:
        """Whether everything older than this version of the logs was delivered."""
        if version > self.client.membership.logs_version:
            return False  # its lives are not known yet
        behind = [part for part in self.parts.values() if part.floor < version]
        for part in behind:
            self._look(part, now_s)
        if not behind:
            self._passed = version
        return not behind

    def _has_read(self, line: Line, now_s: float) -> bool:
        """Whether everything was delivered that a mark names."""
        waiting = False
        for life, entry in line.mark.items():
            part = self.parts.get(life)
            if part is None:
                waiting |= began(life) > self.client.membership.version
                continue
            if life not in line.fetches:
                line.fetches = {**line.fetches, life: part.fetches}
            if not part.has_read(parse_id(entry), line.fetches[life]):
                self._look(part, now_s)
                waiting = True
        return not waiting

    def _look(self, part: PartReader, now_s: float) -> None:
        if not part.owned:
            if self.group is not None:
                self.group.look(part, now_s)
        elif now_s - part.looked_s >= LOOK_AGAIN_S:  # or each answer would bring the next question
            part.looked_s = now_s
            part.fetch(now_s, again=True)

    # --- what the program does

    def taken(self, delivery: Delivery) -> bool:
        """The program takes an event. Returns False if another member of the group reads that part by now."""
        if delivery.number == len(delivery.line.events):
            self._ready_bytes -= delivery.line.size_bytes
        if self.group is None:
            return True
        advance = delivery.part.advance
        if delivery.advance is not advance:
            return False
        advance.take(delivery.line, delivery.number)
        return True

    def commit(self, token: object, now_s: float) -> None:
        """Note on the servers what the program has taken; `Done(token)` when they have."""
        if self.group is None:
            raise UsageError("a reader without a group has no cursor: give client.read(..., group=NAME)")
        self.group.commit(token, now_s)

    def close(self) -> None:
        self.closed = True
        self.client.readers.closed(self)
        for part in self.parts.values():
            self.client.links.unwant(part)
            part.leave()

    def tick(self, now_s: float) -> bool:
        """Returns whether it needs attention again: as long as it is open."""
        if self.closed:
            return False
        for part in list(self.parts.values()):
            if part.ended:
                continue
            if part.link is None:
                self._want(part, now_s)
            elif part.position is None and self.group is None:
                self.place(part, now_s)
        if self.group is not None:
            self.group.tick(now_s)
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            for part in list(self.parts.values()):
                part.fetch(now_s, again=True)
        self.go_on(now_s)
        return True


def began(life: str) -> int:
    """The version of the membership with which a life began; 0 if this is none."""
    return parse_number(life.rpartition("@")[2]) or 0
