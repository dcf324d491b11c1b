"""Groups: several programs share the parts of a log, and continue where the group was (PROTOCOL "Logs").

On the server of each part stands one cursor per group. A member owns it while it reads the part. All members see the
same parts and the same members, so they agree without talking: in the order of their names, each gets every n-th part.
A member that owns a part of another one delivers nothing more from it, waits until its program has committed what it
has taken, and releases it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.cursors import Cursor, Position
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire.effects import Done, Failed
from nearcast.errors import LimitReached, Unavailable

if TYPE_CHECKING:
    from nearcast.core.client.log_reader import LogReader
    from nearcast.core.client.part_reader import PartReader
    from nearcast.core.wire.backend import Taken

COMMITS_MAX = 1000  # without an answer: while a broker is away, a program may try again and again
LOOK_AGAIN_S = 0.05  # between two looks at a part while something waits for it


class Commit(msgspec.Struct, eq=False):
    """A commit that is not everywhere yet."""

    token: object
    waiting: dict[str, Position]  # part -> up to where
    lost: list[str]  # parts that another member reads by now


class _Seen(msgspec.Struct):
    """A beat, and since when it has been the same."""

    beat: int
    since_s: float


class Group:
    """This member of a group."""

    def __init__(self, reader: LogReader, name: str, *, holds: bool) -> None:
        self.name = name
        self.member = f"{reader.client.client_id:016x}"
        self._reader = reader
        self._holds = holds
        self.begun = False  # it is known whether the group has read the log before
        self._asked: set[str] = set()  # parts that have said whether they have a cursor
        self._beats: dict[str, dict[str, _Seen]] = {}  # part -> the other members that are connected there
        self._members: set[str] = set()  # those whose beats go on
        self._owners: dict[str, tuple[str, _Seen]] = {}  # part -> its owner, if that is another member
        self._commits: list[Commit] = []
        self._uncommitted: set[str] = set()  # parts that we lost with something taken and not committed
        self._leaving_s: dict[str, float] = {}  # parts that we give away, and since when
        self._beat_s = NEVER_S
        self._looked_s: dict[str, float] = {}

    # --- cursors

    def ask(self, part: PartReader, now_s: float) -> None:
        """Look at a part: say that we are there, and take it if it is ours and free."""
        self._take(part, None, now_s)

    def placed(self, part: PartReader, position: Position, now_s: float) -> None:
        """A part has no cursor yet: it begins here."""
        new = Cursor(position=position, since=self._reader.since, floor=part.began, holds=self._holds)
        self._take(part, new, now_s)

    def _take(self, part: PartReader, new: Cursor | None, now_s: float) -> None:
        link = part.link
        if link is None:
            return

        def taken(found: Taken | None, at_s: float) -> None:
            if part.link is not link or self._reader.closed:
                return
            if found is None:
                self._reader.refused(part)
            elif found.unreadable:
                self._reader.fail(_unreadable(part, self.name, found.unreadable))
            else:
                self._taken(part, found, at_s)

        keys, member, stale = part.keys, self.member, self._stale(part, now_s)
        wanted = self.begun and self._is_mine(part)
        part.ask(
            lambda asked, then: asked.take_cursor(keys, self.name, member, stale, new, wanted=wanted, then=then),
            taken,
            alone=True,
            repeated=True,
        )

    def _taken(self, part: PartReader, found: Taken, now_s: float) -> None:
        self._see(part.life, found.members, now_s)
        self._asked.add(part.life)
        self._hear(part, found.cursor, now_s)
        self._begin_if_known(now_s)
        if self.begun and found.cursor is None:
            self._reader.place(part, now_s)
        self._reader.go_on(now_s)

    def _hear(self, part: PartReader, cursor: Cursor | None, now_s: float) -> None:
        """A server has said what its cursor is."""
        before, part.cursor = part.cursor, cursor
        if cursor is None or cursor.owner != self.member:
            if part.owned:
                self._lose(part)
            if cursor is not None:
                self._watch(part, cursor, now_s)
            return
        self._owners.pop(part.life, None)
        if part.owned and before is not None and before.term != cursor.term:
            self._lose(part)  # another member had it meanwhile
        if not part.owned:
            part.begin(cursor.position)
        self._committed(part, cursor.position)

    def _watch(self, part: PartReader, cursor: Cursor, now_s: float) -> None:
        known = self._owners.get(part.life)
        if known is None or known[0] != cursor.owner or known[1].beat != cursor.beat:
            self._owners[part.life] = (cursor.owner, _Seen(cursor.beat, now_s))

    def _stale(self, part: PartReader, now_s: float) -> int:
        """The beat of an owner that seems to be stuck; -1 if it does not."""
        known = self._owners.get(part.life)
        if known is None or now_s - known[1].since_s <= self._reader.client.timing.dead_s:
            return -1
        return known[1].beat

    def _begin_if_known(self, now_s: float) -> None:
        """Once every part has said whether it has a cursor, it is known where the group is."""
        parts = [part for part in self._reader.parts.values() if not part.ended]
        if self.begun or not all(part.life in self._asked for part in parts):
            return
        self.begun = True
        cursors = [part.cursor for part in parts if part.cursor is not None]
        if cursors:
            self._reader.resume(min(cursor.since for cursor in cursors), max(cursor.floor for cursor in cursors))
        self._reader.begun(again=bool(cursors))
        for part in parts:
            self.ask(part, now_s)

    def _lose(self, part: PartReader) -> None:
        """Another member reads the part: what was not committed is read again."""
        ahead = part.advance.is_ahead or (part.cursor is None and part.advance.has_taken)
        if ahead and not any(part.life in commit.waiting for commit in self._commits):
            self._uncommitted.add(part.life)
        part.stop()
        self._leaving_s.pop(part.life, None)
        ready = self._reader.ready
        kept = [delivery for delivery in ready if delivery.part is not part]
        ready.clear()
        ready.extend(kept)
        for commit in self._commits:
            if commit.waiting.pop(part.life, None) is not None:
                commit.lost.append(part.life)
        self._answer_commits()

    # --- members

    def _see(self, life: str, members: dict[str, int], now_s: float) -> None:
        """A server has said which members are connected to it, and how often each has beaten there."""
        known = self._beats.get(life, {})
        self._beats[life] = {
            member: seen if (seen := known.get(member)) is not None and seen.beat == beat else _Seen(beat, now_s)
            for member, beat in members.items()
        }
        self._look_at_members(now_s)

    def _look_at_members(self, now_s: float) -> None:
        """A member that is connected but does not beat is stuck: its parts go to the others."""
        silent_s = self._reader.client.timing.dead_s
        self._beats = {life: beats for life, beats in self._beats.items() if life in self._reader.parts}
        self._members = {
            member
            for beats in self._beats.values()
            for member, seen in beats.items()
            if now_s - seen.since_s <= silent_s
        }

    def _is_mine(self, part: PartReader) -> bool:
        """Whether this member should read the part: everyone who sees the same members agrees."""
        parts = sorted(life for life, other in self._reader.parts.items() if not other.ended)
        members = sorted({self.member, *self._members})
        return part.life in parts and members[parts.index(part.life) % len(members)] == self.member

    def gives_away(self, part: PartReader) -> bool:
        """Whether the part goes to another member; one whose life has ended stays where it is."""
        return part.life in self._leaving_s and not part.ended

    # --- commits

    def commit(self, token: object, now_s: float) -> None:
        """Waits for what the program has taken alone: it may take nothing more before it has its answer."""
        if len(self._commits) >= COMMITS_MAX:
            raise LimitReached(f"{COMMITS_MAX} commits of the group {self.name!r} wait for answers: await earlier ones")
        waiting: dict[str, Position] = {}
        for part in list(self._reader.parts.values()):
            if part.owned and not part.ended and part.cursor is not None and part.advance.is_ahead:
                waiting[part.life] = part.advance.want()
                self._write(part, now_s)
        self._commits.append(Commit(token, waiting, sorted(self._uncommitted)))
        self._uncommitted.clear()
        self._answer_commits()

    def _write(self, part: PartReader, now_s: float, *, release: bool = False) -> None:
        link, cursor = part.link, part.cursor
        if link is None or cursor is None or not part.owned:
            return

        def written(found: Cursor | None, at_s: float) -> None:
            if part.link is link and found is not None and not self._reader.closed:
                self._hear(part, found, at_s)
                self._write_behind_marks(at_s)
                self._reader.go_on(at_s)

        position = part.advance.upto(self._reader.has_committed)
        floor = cursor.floor if self._reader.owes_reports else max(cursor.floor, self._reader.passed)
        changed = msgspec.structs.replace(cursor, position=position, floor=floor)
        part.ask(
            lambda asked, then: asked.commit_cursor(part.keys, self.name, changed, release=release, then=then),
            written,
            alone=not part.advance.is_wanted,
            repeated=True,
        )

    def _write_behind_marks(self, now_s: float) -> None:
        """Something was committed: what waits behind a mark for that can follow."""
        for part in self._reader.parts.values():
            cursor, advance = part.cursor, part.advance
            if cursor is None or not advance.is_wanted or not advance.has_marks:
                continue
            if advance.upto(self._reader.has_committed) != cursor.position:
                self._write(part, now_s)

    def _committed(self, part: PartReader, position: Position) -> None:
        part.advance.committed(position)
        for commit in self._commits:
            wanted = commit.waiting.get(part.life)
            if wanted is not None and position.reaches(wanted):
                del commit.waiting[part.life]
        self._answer_commits()

    def _answer_commits(self) -> None:
        gone = self._reader.parts
        for commit in self._commits:
            for life in [life for life in commit.waiting if life not in gone or gone[life].ended]:
                del commit.waiting[life]
                commit.lost.append(life)
        done = [commit for commit in self._commits if not commit.waiting]
        self._commits = [commit for commit in self._commits if commit.waiting]
        for commit in done:
            self._reader.client.effects.append(
                Failed(commit.token, _not_committed(commit.lost)) if commit.lost else Done(commit.token)
            )

    # --- time

    def tick(self, now_s: float) -> None:
        if now_s - self._beat_s < self._reader.client.timing.heartbeat_s:
            return
        self._beat_s = now_s
        self._look_at_members(now_s)
        self._answer_commits()
        for part in list(self._reader.parts.values()):
            if part.ended:
                continue
            if part.owned and self.begun:
                self._keep_or_release(part, now_s)
            self.ask(part, now_s)

    def _keep_or_release(self, part: PartReader, now_s: float) -> None:
        if self._is_mine(part):
            self._leaving_s.pop(part.life, None)
            self._write(part, now_s)
            return
        since_s = self._leaving_s.setdefault(part.life, now_s)
        late = now_s - since_s > self._reader.client.timing.ready_s
        self._write(part, now_s, release=part.advance.is_settled or late)

    def look(self, part: PartReader, now_s: float) -> None:
        """Something waits until another member has read a part up to some place."""
        if now_s - self._looked_s.get(part.life, NEVER_S) >= LOOK_AGAIN_S:
            self._looked_s[part.life] = now_s
            self.ask(part, now_s)
            part.look(now_s)


def _unreadable(part: PartReader, group: str, found: bytes) -> Unavailable:
    where = f"HDEL {part.keys.cursors.decode()} g:{group}"
    return Unavailable(
        f"{part.broker or part.life}: the cursor of the group {group!r} cannot be read, something else has written"
        f" {found[:40]!r} there: to begin that part anew, run {where} on its server"
    )


def _not_committed(lives: list[str]) -> Unavailable:
    return Unavailable(
        f"not committed for {', '.join(sorted(lives))}: another member of the group reads there now, or the broker is"
        " gone; what was taken from there may be read again"
    )
