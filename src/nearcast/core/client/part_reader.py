"""One part of a log as a reader has it: what was read there, up to where, and what is missing (PROTOCOL "Logs")."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.client.advance import Advance
from nearcast.core.client.lines import Line, count_in, has_messages, read_line, version_in
from nearcast.core.model.cursors import Cursor, Position
from nearcast.core.model.logs import BEFORE_ALL, PAGE_BYTES, EntryId, FormerLife, Log, cursors_of, stream_of, totals_of
from nearcast.core.model.message import Lost
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire.backend import Page, PartKeys

if TYPE_CHECKING:
    from nearcast.core.client.log_reader import LogReader
    from nearcast.core.client.quorum import Question, Then
    from nearcast.core.wire.backend import ClientLink

PAGE_ENTRIES = 1000  # asked for at once
BUFFER_BYTES = 1 << 20  # of a part that wait for their turn
REPEATED_MAX = 64  # answers that wait for replicas: beats and looks at a part go on for as long as replicas are missing
ALL_READ = 1 << 62  # later than any version of the logs

_RETENTION = "retention removed them before they were read"
_UNREADABLE = "they cannot be read: something else has written to the log"


class PartReader:
    """Reads one part: asks for pages, and keeps what comes until it is its turn.

    A page counts only if the broker had its lease when it was read: what a broker keeps after it was given up is sent
    to another one as well.
    """

    def __init__(self, reader: LogReader, life: str, broker: str, log: Log) -> None:
        self.life = life
        self.broker = broker  # that has it; empty if its life has ended
        self.held = False  # its life has ended, and a replica has it: nothing is appended there any more
        self.began = int(life.rpartition("@")[2])
        self.keys = PartKeys(stream_of(log, life), totals_of(life), cursors_of(log, life))
        self.link: ClientLink | None = None
        self.position: Position | None = None  # where reading begins; None: not known yet
        self.owned = False
        self.lines: deque[Line] = deque()
        self.delivered: EntryId = BEFORE_ALL
        self.fetches = 0  # pages that were asked for,
        self.fetched = 0  # and the last one that came
        self.drained = False  # the last page was the end
        self.ended = False  # the life has: nothing more will come
        self.looked_s = NEVER_S  # when something last waited for it, and asked
        # For groups.
        self.cursor: Cursor | None = None  # as last seen on the server
        self.advance = Advance(Position())  # how far the cursor may advance
        self.first_unread: tuple[EntryId, int] | None = None  # of a part that another member reads: entry and version
        self._reader = reader
        self._log = log
        self._floor = self.began
        self._upto = Position()
        self._skip = 0  # events of the next line that were read before
        self._bytes = 0
        self._awaiting: ClientLink | None = None  # the link on which a page was asked for
        self._news = True  # something may have been appended since the last page

    # --- where it is

    @property
    def floor(self) -> int:
        """Whatever is not delivered yet is of this version of the logs, or of a later one."""
        if self.lines:
            return self.lines[0].version
        return ALL_READ if self.ended else self._floor

    @property
    def passed(self) -> int:
        """How many messages of the part were read or reported as lost; below 0 if that is not known."""
        return self._upto.count

    def has_read(self, entry: EntryId, since: int) -> bool:
        """Whether everything up to an entry was delivered. Retention may have removed it: then a look after `since`
        finds nothing that is left before it."""
        if self.delivered >= entry or (self.ended and not self.lines):
            return True
        if not self.owned:
            looked = self.fetched > since
            return looked and (self.first_unread is None or self.first_unread[0] > entry)
        return self.fetched > since and (self.lines[0].entry > entry if self.lines else self.drained)

    def has_committed(self, entry: EntryId) -> bool:
        """Whether the group has committed everything up to an entry, as far as retention has left it."""
        if self.cursor is None or self.cursor.position.entry >= entry:
            return self.cursor is not None
        if not self.owned:
            return self.fetched > 0 and (self.first_unread is None or self.first_unread[0] > entry)
        return self.advance.is_done

    def begin(self, position: Position) -> None:
        """Read on from here."""
        self.position = position
        self.owned = True
        self.advance = Advance(position)
        self.delivered = position.entry
        self._upto = Position(position.entry, 0, position.count)
        self._skip = position.index
        self.lines.clear()
        self._bytes = 0
        self._awaiting = None
        self.drained, self._news = False, True
        self._floor = self.began

    def stop(self) -> None:
        """Another member reads it now. It begins where we had committed, so what we had seen there says nothing."""
        self.owned = False
        self.advance = Advance(Position())
        self.lines.clear()
        self._bytes = 0
        self._awaiting = None
        self.fetched, self._floor = 0, self.began

    # --- links

    def linked(self, link: ClientLink, now_s: float) -> None:
        if self._reader.closed or self.ended or self.link is not None:
            return
        self.link = link
        link.users[self] = None
        self._reader.client.readers.announcements.follow(link, self)
        self._reader.linked(self, now_s)

    def move(self, *, held: bool) -> None:
        """The life has ended, and a replica has the part, or will have it. What was read before is there too."""
        if self.broker or self.held is not held:
            self.leave()
            self._reader.client.links.unwant(self)  # the broker may come back with another life
            self.broker, self.held = "", held
            self.drained, self._news = False, True

    def quorum_lost(self, first: ClientLink, now_s: float) -> None:
        if self.link is first:
            self._awaiting, self._news = None, True
            self._reader.go_on(now_s)

    def ask(self, question: Question, then: Then, *, alone: bool = False, repeated: bool = False) -> None:
        """Ask something that ends in a write; if the log has a quorum, wait until it has what the answer says.

        `alone`: a broker without replicas may answer alone. Nothing can have been kept there. `repeated`: it is asked
        again with every beat, so it need not be asked while too many answers wait for replicas.
        """
        link, quorum = self.link, self._log.quorum
        assert link is not None
        info = self._reader.client.membership.brokers.get(self.broker)
        alone = alone and info is not None and not info.replicas
        if quorum > 1 and not self.held and not alone:
            quorum_link = self._reader.client.side_links.quorum(link)
            if not repeated or quorum_link.asked_by(self) < REPEATED_MAX:
                quorum_link.ask(self, quorum - 1, question, then)
        else:
            question(link, then)

    def unlinked(self, link: ClientLink, now_s: float) -> None:
        if self.link is link:
            self.link = self._awaiting = None
            self._news = True
            self._reader.unlinked(self, now_s)

    def leave(self) -> None:
        """Whatever is on its way here is too late."""
        link, self.link, self._awaiting = self.link, None, None
        if link is not None:
            link.users.pop(self, None)
            self._reader.client.readers.announcements.unfollow(link, self)

    def leased(self, link: ClientLink, now_s: float) -> None:
        self._reader.go_on(now_s)

    # --- pages

    def appended(self, now_s: float) -> None:
        """Something was added to the part."""
        self._news = True
        self._reader.go_on(now_s)

    def fetch(self, now_s: float, *, again: bool = False) -> None:
        """Ask for the next page, if there may be one and there is room. `again`: even if there was no news."""
        link = self.link
        if link is None or self._awaiting is not None or not self.owned or self.ended:
            return
        if (self.drained and not self._news and not again) or self._bytes >= BUFFER_BYTES:
            return
        if now_s > link.lease_until_s:
            link.lease_waiters[self] = None
            return
        self.fetches += 1
        self._awaiting, self._news = link, False
        number = self.fetches

        def read(page: Page | None, at_s: float) -> None:
            if self._awaiting is link and number == self.fetches:
                self._awaiting = None
                self._fetched(link, page, number, at_s)

        def read_alone(page: Page | None, at_s: float) -> None:
            """Messages must be at the quorum. Marks, and that there is nothing, the broker can say alone."""
            current = self._awaiting is link and number == self.fetches
            messages = page is not None and has_messages(page.entries)
            if current and messages and self._log.quorum > 1 and not self.held:
                self.ask(lambda asked, then: asked.touch_part(self.keys, partial(then, page)), read)
            else:
                read(page, at_s)

        link.read_part(self.keys, self._upto.entry, PAGE_ENTRIES, read_alone)

    def _fetched(self, link: ClientLink, page: Page | None, number: int, now_s: float) -> None:
        if page is None:
            self._reader.refused(self)
            return
        if now_s > link.lease_until_s or link.asking_members:
            self._news = True
            link.lease_waiters[self] = None
            return
        received_at = now_s + self._reader.client.wall_offset_s
        for entry_id, fields in page.entries:
            self._add(entry_id, fields, received_at)
        self.drained, self.fetched = not _is_full(page), number
        if not page.entries and self._upto.count < page.total:
            if self._upto.count < 0:  # it begins with what is still there, and that is nothing
                self.advance.began_behind(page.total)
            else:
                self._miss(page.total - self._upto.count, _RETENTION)
            self._upto = msgspec.structs.replace(self._upto, count=page.total)
        if self.drained:
            self._floor = ALL_READ if self.held else max(self._floor, page.logs)
        self._reader.go_on(now_s)

    def look(self, now_s: float) -> None:
        """Find out what another member has not read yet."""
        link, cursor = self.link, self.cursor
        if link is None or cursor is None or self._awaiting is not None:
            return
        self.fetches += 1
        self._awaiting, number = link, self.fetches

        def read(page: Page | None, at_s: float) -> None:
            if self._awaiting is not link or number != self.fetches:
                return
            self._awaiting = None
            if page is None or self.owned or at_s > link.lease_until_s:
                return
            self.fetched, self.delivered = number, cursor.position.entry
            self.first_unread = next(((entry, version_in(fields)) for entry, fields in page.entries), None)
            at_end = ALL_READ if self.held else page.logs
            self._floor = max(self._floor, self.first_unread[1] if self.first_unread is not None else at_end)
            self._reader.go_on(at_s)

        link.read_part(self.keys, cursor.position.entry, 1, read)

    # --- entries

    def _add(self, entry_id: EntryId, fields: list[bytes], received_at: float) -> None:
        line = read_line(self._upto, entry_id, fields, received_at)
        if line is None:
            self._miss(None, _UNREADABLE)
            self._upto = msgspec.structs.replace(self._upto, entry=entry_id)
            return
        began = line.count - count_in(fields)
        if self._upto.count < 0:
            self.advance.began_behind(began)
        elif self._upto.count < began:
            self._miss(began - self._upto.count, _RETENTION)
            self._skip = 0
        line.before = Position(self._upto.entry, self._skip, began)
        del line.events[: self._skip]
        self._skip = 0
        self.lines.append(line)
        self._bytes += line.size_bytes
        self._upto = Position(entry_id, 0, line.count)

    def _miss(self, count: int | None, reason: str) -> None:
        """A report waits for no version: marks in other parts may wait for it."""
        lost = Lost(self._log.name, self.life, count, reason)
        self.lines.append(Line(self._upto.entry, self._upto, max(self._upto.count, 0) + (count or 0), 0, [lost]))

    def next_line(self) -> Line:
        line = self.lines.popleft()
        self._bytes -= line.size_bytes
        self.delivered = max(self.delivered, line.entry)
        self._floor = max(self._floor, line.version)
        return line

    def end(self, former: FormerLife | None) -> None:
        """The life has ended, and nobody has what it kept. What was read while it lasted is still delivered."""
        self.ended = True
        self.leave()
        if self._floor >= ALL_READ:
            return  # it was read to its end where it was held
        count = self._unread(former) if former is not None else None
        if count != 0:
            self._miss(count, "the server that kept them is gone")

    def _unread(self, former: FormerLife) -> int | None:
        """How much was not read of a life that has ended; None if nobody has counted it.

        A member that does not read the part knows it from the group's cursor, as it was in the end.
        """
        total, group = (former.counts or {}).get(self._log.key), self._reader.group
        if not total:
            return total
        known = [max(0, total - self._upto.count)] if self.owned and self._upto.count >= 0 else []
        unread = former.unread.get(self._log.key, {}).get(group.name) if group is not None else None
        return min([*known, *([unread] if unread is not None else [])], default=None)


# --- pages


def _is_full(page: Page) -> bool:
    """Whether there may be more behind it."""
    size = sum(len(field) for _, fields in page.entries for field in fields)
    return len(page.entries) >= PAGE_ENTRIES or size >= PAGE_BYTES
