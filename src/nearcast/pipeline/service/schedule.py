"""When channels run: pure bookkeeping, without a clock or threads.

A repetitive channel is due at its creation plus whole periods. Creation is known by the wall clock, which is looked at
once, when the channel comes here; from then on all times are of a clock that does not jump. A tick that passes while
an execution runs, or waits for its turn, is skipped: the next execution sees all records since the last. A continuous
channel is due at each commit of one of its NEW datasets, at least its period after it started last. Neither is due
without new records. An execution that failed is tried again after a pause, which doubles up to a limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nearcast.pipeline.catalog.channels import StoredChannel

FIRST_PAUSE_S = 1.0  # after a failure
LONGEST_PAUSE_S = 300.0


class _Entry:
    def __init__(self, channel: StoredChannel, now_s: float, age_s: float) -> None:
        self.channel = channel
        self._tick_s = now_s - age_s % channel.period_s  # one of its ticks
        self.due_s = self.tick_after(now_s)
        self.fresh = True  # there may be new records
        self.running = False
        self.failures = 0

    def tick_after(self, now_s: float) -> float:
        """The next tick of a repetitive channel; for a continuous one, a period from now."""
        period_s = self.channel.period_s
        if self.channel.continuous:
            return now_s + period_s
        return self._tick_s + (math.floor((now_s - self._tick_s) / period_s) + 1) * period_s


class Schedule:
    """The channels that there are, when each is due, and which of them run."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def update(self, channels: Iterable[StoredChannel], unfinished: Iterable[str], now_s: float, wall_s: float) -> None:
        """These are the channels now. Those with an unfinished execution are due at once when they are new here."""
        there = {channel.name: channel for channel in channels}
        at_once = set(unfinished)
        for name in [name for name, entry in self._entries.items() if there.get(name) != entry.channel]:
            if not self._entries[name].running:  # else its end is awaited first
                del self._entries[name]
        for name, channel in there.items():
            if name not in self._entries:
                entry = self._entries[name] = _Entry(channel, now_s, wall_s - channel.created_at)
                if name in at_once:
                    entry.due_s = now_s

    def committed(self, dataset: str, now_s: float) -> None:
        """A batch of a dataset was committed."""
        for entry in self._entries.values():
            if dataset in entry.channel.new_datasets and not entry.fresh:
                entry.fresh = True
                if entry.due_s < now_s and not entry.channel.continuous:
                    entry.due_s = entry.tick_after(now_s)  # ticks without new records went by

    def due(self, now_s: float) -> list[StoredChannel]:
        """The channels to run now, the one that waits longest first."""
        ready = [entry for entry in self._waiting() if entry.due_s <= now_s]
        return [entry.channel for entry in sorted(ready, key=lambda entry: entry.due_s)]

    def next_s(self) -> float:
        """When the next channel is due, as far as is known."""
        return min((entry.due_s for entry in self._waiting()), default=math.inf)

    def started(self, name: str, now_s: float) -> None:
        entry = self._entries[name]
        entry.running = True
        entry.fresh = False  # what is committed from now on is for the next execution
        entry.due_s = entry.tick_after(now_s)

    def ended(self, name: str, now_s: float, *, failed: bool = False) -> None:
        entry = self._entries[name]
        entry.running = False
        if not failed:
            entry.failures = 0
            if not entry.channel.continuous:
                entry.due_s = max(entry.due_s, entry.tick_after(now_s))
            return
        entry.fresh = True
        entry.failures += 1
        entry.due_s = now_s + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (entry.failures - 1))

    def _waiting(self) -> list[_Entry]:
        return [entry for entry in self._entries.values() if entry.fresh and not entry.running]
