"""Runs channels when they are due: a few at the same time, each channel one execution after another.

`Schedule` decides when channels run, `Scheduler` is the thread that runs them.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.channels import StoredChannel
from nearcast.pipeline.catalog.executions import Execution
from nearcast.runtime.workers import Troubles

FIRST_PAUSE_S = 1.0  # after a failure
LONGEST_PAUSE_S = 300.0
PHASES = 1024  # into which a period is divided


def phase_s(channel: StoredChannel) -> float:
    """When in its period, counted from its creation, a channel runs.

    Channels are often created together, by one file. Drawn from their names, their ticks spread over the period.
    """
    return zlib.crc32(channel.name.encode()) % PHASES / PHASES * channel.period_s


class _Entry:
    """One channel in the schedule."""

    def __init__(self, channel: StoredChannel, now_s: float, age_s: float) -> None:
        self.channel = channel
        self._tick_s = now_s - (age_s - phase_s(channel)) % channel.period_s  # one of its ticks
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


# --- when channels are due


class Schedule:
    """The channels, when each is due, and which of them run: pure bookkeeping, without a clock or threads.

    A repetitive channel is due at whole periods after its creation and its phase. The creation time is by the wall
    clock, which is read once, when the channel is added; all other times are by a clock that does not jump. If ticks
    pass while an execution runs, and there were new records by then, the channel is due at its end, once: the next
    execution sees all records since the last. A continuous channel is due at each commit of one of its NEW datasets,
    but at least a period after it last started. Neither is due without new records. An execution that failed is tried
    again after a pause, which doubles up to a limit.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def update(self, channels: Iterable[StoredChannel], unfinished: Iterable[str], now_s: float, wall_s: float) -> None:
        """Set the channels. New ones with an unfinished execution are due at once."""
        there = {channel.name: channel for channel in channels}
        at_once = set(unfinished)
        for name in [name for name, entry in self._entries.items() if there.get(name) != entry.channel]:
            if not self._entries[name].running:  # otherwise wait until it has ended
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
        """The channels to run now, the one that has waited longest first."""
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
            return
        entry.fresh = True
        entry.failures += 1
        entry.due_s = now_s + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (entry.failures - 1))

    def _waiting(self) -> list[_Entry]:
        return [entry for entry in self._entries.values() if entry.fresh and not entry.running]


# --- running them


_LOOK_S = 5.0  # the longest time between two looks
_TROUBLE_S = 1.0  # until the next look after one that failed
_STOP_WAIT_S = 10.0

log = logging.getLogger("nearcast.data")

Run = Callable[[StoredChannel, Execution], object]


class Scheduler:
    """A thread that follows the schedule: it starts executions in other threads, and sleeps while none is due."""

    def __init__(self, catalog: Catalog, run: Run, at_once: int, troubles: Troubles | None = None) -> None:
        self._troubles = troubles or Troubles(log)
        self._catalog = catalog
        self._run = run
        self._at_once = at_once
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="execution")
        self._schedule = Schedule()
        self._woken = threading.Condition()
        self._changed = True
        self._stopping = False
        self._running = 0
        self._thread = threading.Thread(target=self._live, name="scheduler", daemon=True)
        self._problems: dict[str, tuple[StoredChannel, str]] = {}  # name -> whose last execution failed, and why

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Start no more executions, and wait a while for those that run."""
        with self._woken:
            self._stopping = True
            self._woken.notify_all()
            self._woken.wait_for(lambda: not self._running, _STOP_WAIT_S)
        self._thread.join(_STOP_WAIT_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def problem(self, channel: StoredChannel) -> str:
        """Why the last execution of this exact channel failed; empty if it did not."""
        failed, problem = self._problems.get(channel.name, (None, ""))
        return problem if failed == channel else ""

    def changed(self) -> None:
        """Channels were created, replaced or dropped."""
        with self._woken:
            self._changed = True
            self._woken.notify_all()

    def committed(self, dataset: str) -> None:
        """A dataset has new records."""
        with self._woken:
            self._schedule.committed(dataset, time.monotonic())
            self._woken.notify_all()

    def _live(self) -> None:
        while True:
            with self._woken:
                if self._stopping:
                    return
                self._woken.wait(max(0.0, self._look()))

    def _look(self) -> float:
        """Start what is due; returns for how long there is nothing to do."""
        try:
            self._start_due(time.monotonic())
        except Exception as error:  # the catalogue is a file, and may be damaged or on a full disk
            self._changed = True  # read the channels again: this time they may not have been read completely
            self._troubles.note("starting executions that are due", error)
            return _TROUBLE_S
        full = self._running >= self._at_once  # then the end of one wakes us
        return _LOOK_S if full else min(_LOOK_S, self._schedule.next_s() - time.monotonic())

    def _start_due(self, now_s: float) -> None:
        if self._changed:
            self._changed = False
            unfinished = [execution.channel for execution in self._catalog.executions.open()]
            channels = self._catalog.channels.all()
            self._schedule.update(channels, unfinished, now_s, time.time())
            for name in self._problems.keys() - {channel.name for channel in channels}:
                del self._problems[name]
        for channel in self._schedule.due(now_s)[: self._at_once - self._running]:
            self._schedule.started(channel.name, now_s)
            self._running += 1
            self._pool.submit(self._execute, channel)

    def _execute(self, channel: StoredChannel) -> None:
        failed = False
        try:
            execution = self._catalog.next_execution(channel)
            if execution is not None:
                self._run(channel, execution)
            self._problems.pop(channel.name, None)
        except Exception as error:  # Spark and py4j have many ways to fail; the execution is tried again
            failed = True
            self._note(channel, error)
        with self._woken:
            self._running -= 1
            self._changed = True  # it may have been dropped or replaced while it ran
            self._schedule.ended(channel.name, time.monotonic(), failed=failed)
            self._woken.notify_all()

    def _note(self, channel: StoredChannel, error: Exception) -> None:
        if self._stopping:
            return
        first = str(error).partition("\n")[0] or type(error).__name__
        if self.problem(channel) != first:
            log.warning("an execution of %s failed and is tried again: %s", channel.name, first)
        self._problems[channel.name] = (channel, first)
