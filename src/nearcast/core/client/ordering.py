"""Publisher order: the messages of one topic put in order, publisher by publisher (PROTOCOL, subscriber rules 5 and 6).

A line is what has been delivered from one publisher: everything up to `last`. A frame is then one of four things:

- next in line: it is delivered
- old: it is a duplicate
- ahead: it is held until an older placement is fenced or a repair fills the hole
- from a new publisher: its first frame is the baseline, once no older place can still send an earlier one

Lines know nothing about brokers. What they need to know about the place a frame came through is behind `Gate`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heappush
from struct import error as StructError
from typing import Protocol

import msgspec

from nearcast.core.model.message import Event, Gap, Message
from nearcast.core.model.settings import Limits, Timing
from nearcast.core.wire.batches import decode_batch
from nearcast.core.wire.frames import (
    BATCH,
    DATA,
    FIRSTS,
    HEADER,
    HEADER_BYTES,
    MARK,
    NUMBERED,
    OF_USERS,
    OWN_KINDS,
    SKIPS,
    split_user,
)

_unpack = HEADER.unpack_from
_NS = 1e-9
_NONE: Mapping[int, int] = {}


class Gate(Protocol):
    """The place a run of frames came through."""

    floor: int  # frames of older epochs cannot be a baseline: what came before them was not seen

    @property
    def newest(self) -> int:
        """The newest epoch that any record mentions."""
        ...

    def admits(self, epoch: int) -> bool:
        """Whether frames of this epoch belong here."""
        ...


class Fences(Protocol):
    """The subscriber's view of all its places together."""

    def older_open(self, publisher: int, epoch: int) -> bool:
        """Whether some place may still deliver frames this publisher sent in an epoch before this one."""
        ...


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame, parsed. Only created off the hot path."""

    word: int
    epoch: int
    publisher: int
    sequence: int
    time_ns: int
    payload: bytes


class OrderCounters(msgspec.Struct):
    """What happened to frames that were not simply next in line."""

    duplicates: int = 0
    held: int = 0
    crowded: int = 0  # held, then dropped for lack of room
    late: int = 0
    foreign: int = 0
    gaps: int = 0
    missing: int = 0


class _Held:
    """Frames of one publisher that are ahead of its line."""

    __slots__ = ("frames", "order", "top")

    def __init__(self) -> None:
        self.frames: dict[int, Frame] = {}
        self.order: list[int] = []
        self.top = 0  # no number above this one is held

    def add(self, frame: Frame) -> bool:
        if frame.sequence in self.frames:
            return False
        self.frames[frame.sequence] = frame
        heappush(self.order, frame.sequence)
        self.top = max(self.top, frame.sequence)
        return True

    def lowest(self) -> Frame:
        return self.frames[self.order[0]]

    def pop(self) -> Frame:
        return self.frames.pop(heappop(self.order))

    def drop_highest(self) -> int:
        """Drop the frame farthest ahead, and return its number."""
        highest = self.top if self.top in self.frames else max(self.frames)
        del self.frames[highest]
        if self.order[-1] == highest:  # the usual case: frames arrive in order
            self.order.pop()
        else:
            self.order.remove(highest)
            heapify(self.order)
        self.top = highest - 1
        return highest


class PublisherOrder:
    """All lines of one topic. Delivered events collect in `out`; the owner takes them from there."""

    def __init__(self, topic: str, fences: Fences, timing: Timing, limits: Limits) -> None:
        self.topic = topic
        self.out: list[Event] = []
        self.foreign = False  # whether it includes messages without our envelope
        self.last: dict[int, int] = {}
        self.counters = OrderCounters()
        self.unheard = False  # a frame was dropped because no record has announced its epoch
        self.wanted: dict[int, None] = {}  # publishers with a hole in their line; the owner asks them
        self._fences = fences
        self._timing = timing
        self._limits = limits
        self._held: dict[int, _Held] = {}
        self._held_count = 0
        self._deadlines: dict[int, float] = {}  # publisher -> when its hole is reported
        self._marks: dict[int, int] = {}  # publisher -> its highest known number, by a MARK or a frame we dropped
        self._crowded: set[int] = set()  # publishers whose frames were dropped for lack of room
        self._before: Mapping[int, int] = _NONE  # `last` as it was at the previous look for silent publishers

    def run(self, payloads: list[bytes], gate: Gate, now_s: float, wall_s: float) -> None:
        """Take a run of frames that came through one gate."""
        append = self.out.append
        last, topic, held = self.last, self.topic, self._held
        speaker, expected = -1, 0  # the current line and its next number: a run is usually from one publisher
        for payload in payloads:
            try:
                word, epoch, publisher, sequence, time_ns = _unpack(payload)
            except StructError:
                self._foreign(payload, wall_s)
                continue
            if publisher != speaker:
                speaker, expected = publisher, last.get(publisher, -1) + 1
            if word == DATA and sequence == expected and not held:
                last[publisher] = sequence
                expected += 1
                append(Message(topic, payload[HEADER_BYTES:], publisher, sequence, time_ns * _NS, wall_s))
            elif word in NUMBERED:  # a MARK belongs on an inbox
                frame = Frame(word, epoch, publisher, sequence, time_ns, payload[HEADER_BYTES:])
                self._place(frame, gate, now_s, wall_s)
                speaker = -1
            elif word == BATCH:
                self._batch(payload, epoch, publisher, sequence, gate, now_s, wall_s)
                speaker = -1
            else:
                self._foreign(payload, wall_s)

    def _batch(
        self, batch: bytes, epoch: int, publisher: int, first: int, gate: Gate, now_s: float, wall_s: float
    ) -> None:
        items = decode_batch(batch)
        if items is None:
            self._foreign(batch, wall_s)
            return
        for sequence, (word, time_ns, payload) in enumerate(items, first):
            if word == DATA and not self._held and self.last.get(publisher) == sequence - 1:
                self.last[publisher] = sequence
                self.out.append(Message(self.topic, payload, publisher, sequence, time_ns * _NS, wall_s))
            else:
                self._place(Frame(word, epoch, publisher, sequence, time_ns, payload), gate, now_s, wall_s)

    def repair(self, payload: bytes, now_s: float, wall_s: float) -> int | None:
        """Take a frame from the inbox. It fills holes in known lines and says how far they reach.

        Returns the publisher if this was the end of its answer.
        """
        word, epoch, publisher, sequence, time_ns = _unpack(payload)
        frame = Frame(word, epoch, publisher, sequence, time_ns, payload[HEADER_BYTES:])
        last = self.last.get(frame.publisher)
        if last is None or frame.word not in OWN_KINDS:
            return None
        if frame.word == MARK:
            if frame.sequence > last:
                self._marks[frame.publisher] = max(frame.sequence, self._marks.get(frame.publisher, 0))
                self._deadlines.setdefault(frame.publisher, now_s + self._timing.gap_s)
            return frame.publisher
        self._advance(frame, last, now_s, wall_s)
        if publisher in self._deadlines and self.last[publisher] > last:
            self._deadlines[publisher] = now_s + self._timing.gap_s  # an answer is arriving
        return None

    def release(self, now_s: float, wall_s: float) -> None:
        """Look at all held frames again: a fence was seen, or a place was lost."""
        for publisher in list(self._held):
            self._settle(publisher, now_s, wall_s)

    def tick(self, now_s: float, wall_s: float) -> None:
        """Report the holes that were not repaired in time."""
        for publisher, deadline_s in list(self._deadlines.items()):
            if now_s < deadline_s:
                continue
            held = self._held.get(publisher)
            if held is not None and self._fences.older_open(publisher, held.lowest().epoch):
                self._deadlines[publisher] = now_s + self._timing.gap_s  # an older place may still fill the hole
            else:
                self._give_up(publisher, now_s, wall_s)

    @property
    def unsettled(self) -> bool:
        """Whether frames are held or holes are open."""
        return bool(self._held_count or self._deadlines)

    def forget_silent(self, asked: Collection[int]) -> list[int]:
        """Forget publishers that have sent nothing since the last call, except those being asked for repairs."""
        before, last = self._before, self.last
        open_lines = (self._held, self._deadlines, self._marks, self.wanted, asked)
        silent = [
            publisher
            for publisher, number in last.items()
            if before.get(publisher) == number and not any(publisher in lines for lines in open_lines)
        ]
        for publisher in silent:
            del last[publisher]
        self._before = dict(last) if last else _NONE
        return silent

    # --- one frame off the hot path

    def _place(self, frame: Frame, gate: Gate, now_s: float, wall_s: float) -> None:
        last = self.last.get(frame.publisher)
        if not gate.admits(frame.epoch):
            if last is not None and frame.sequence == last + 1:
                self._advance(frame, last, now_s, wall_s)
            else:
                self.counters.late += 1
                self.unheard = self.unheard or frame.epoch > gate.newest
            return
        if last is None:
            if frame.epoch < gate.floor:
                self.counters.late += 1
                return
            if self._fences.older_open(frame.publisher, frame.epoch):
                self._hold(frame, now_s, wall_s)
                return
            last = self.last[frame.publisher] = frame.sequence - 1
        self._advance(frame, last, now_s, wall_s)

    def _advance(self, frame: Frame, last: int, now_s: float, wall_s: float) -> None:
        if frame.sequence <= last:
            self.counters.duplicates += 1
        elif frame.sequence == last + 1:
            self._deliver(frame, wall_s)
            self._settle(frame.publisher, now_s, wall_s)
        else:
            self._hold(frame, now_s, wall_s)
            self._settle(frame.publisher, now_s, wall_s)

    def _deliver(self, frame: Frame, wall_s: float) -> None:
        self.last[frame.publisher] = frame.sequence
        if frame.word in SKIPS:
            return
        user, payload = split_user(frame.payload) if frame.word in OF_USERS else ("", frame.payload)
        published_at = frame.time_ns * _NS
        self.out.append(Message(self.topic, payload, frame.publisher, frame.sequence, published_at, wall_s, None, user))

    def _foreign(self, payload: bytes, wall_s: float) -> None:
        self.counters.foreign += 1
        self.foreign = True
        self.out.append(Message(self.topic, payload, None, None, wall_s, wall_s))

    # --- holding

    def _hold(self, frame: Frame, now_s: float, wall_s: float) -> None:
        held = self._held.setdefault(frame.publisher, _Held())
        if held.add(frame):
            self.counters.held += 1
            self._held_count += 1
            if self._held_count > self._limits.held:
                self._make_room(frame.publisher)

    def _make_room(self, publisher: int) -> None:
        """Too many frames are held: drop one that is far ahead. It is requested again when its line gets there."""
        if len(self._held[publisher].order) == 1:  # where its line begins must not be forgotten: another one has more
            publisher = max(self._held, key=lambda crowd: len(self._held[crowd].order))
        held = self._held[publisher]
        if len(held.order) == 1:
            return  # one frame of each publisher is always kept
        self._marks[publisher] = max(held.drop_highest(), self._marks.get(publisher, 0))
        self._crowded.add(publisher)
        self._held_count -= 1
        self.counters.crowded += 1

    def _pop(self, publisher: int, held: _Held) -> Frame:
        frame = held.pop()
        self._held_count -= 1
        if not held.order:
            del self._held[publisher]
        return frame

    def _settle(self, publisher: int, now_s: float, wall_s: float) -> None:
        """Deliver the held frames that are next in line; start the clock of a hole that no older place can fill."""
        held = self._held.get(publisher)
        while held is not None and held.order:
            lowest = held.lowest()
            last = self.last.get(publisher)
            if last is not None and lowest.sequence <= last:
                self._pop(publisher, held)
                self.counters.duplicates += 1
            elif last is not None and lowest.sequence == last + 1:
                self._deliver(self._pop(publisher, held), wall_s)
            elif self._fences.older_open(publisher, lowest.epoch):
                return
            elif last is None or self._begins(lowest, last):
                self.last[publisher] = lowest.sequence - 1
            else:
                self._miss(publisher, now_s)
                return
        if self._marks.get(publisher, 0) <= self.last.get(publisher, 0):
            self._marks.pop(publisher, None)
            self._deadlines.pop(publisher, None)
            self._crowded.discard(publisher)
        elif publisher in self.last:
            self._miss(publisher, now_s)  # what the mark announced is still missing
            if publisher in self._crowded:  # it can be requested now: there is room
                self._crowded.discard(publisher)
                self.wanted[publisher] = None

    def _begins(self, frame: Frame, last: int) -> bool:
        """Whether nothing is missing before the frame despite skipped numbers: its topic was forgotten before."""
        return frame.word in FIRSTS and not last < self._marks.get(frame.publisher, 0) < frame.sequence

    def _miss(self, publisher: int, now_s: float) -> None:
        """A hole that no older place can fill: ask its publisher, and start its clock."""
        if publisher not in self._deadlines:
            self._deadlines[publisher] = now_s + self._timing.gap_s
            self.wanted[publisher] = None

    def _give_up(self, publisher: int, now_s: float, wall_s: float) -> None:
        """Report the lowest hole of a line as a Gap and continue after it."""
        del self._deadlines[publisher]
        last, held = self.last[publisher], self._held.get(publisher)
        end = held.lowest().sequence - 1 if held is not None else self._marks.pop(publisher, last)
        if end > last:
            self.counters.gaps += 1
            self.counters.missing += end - last
            self.out.append(Gap(self.topic, publisher, last + 1, end, "not repaired in time"))
            self.last[publisher] = end
        self._settle(publisher, now_s, wall_s)
