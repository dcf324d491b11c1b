"""Runs channels when they are due: a few at once, each channel one execution after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.channels import StoredChannel
from nearcast.pipeline.catalog.executions import Execution
from nearcast.pipeline.service.schedule import Schedule
from nearcast.runtime.troubles import Troubles

_LOOK_S = 5.0  # at the latest
_TROUBLE_S = 1.0  # between two looks that fail
_STOP_WAIT_S = 10.0

log = logging.getLogger("nearcast.data")

Run = Callable[[StoredChannel, Execution], object]


class Scheduler:
    """A thread that starts executions in other threads. Without due channels it sleeps."""

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
        self._problems: dict[str, tuple[StoredChannel, str]] = {}  # name -> why the last execution of which failed

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Start no more, and wait a while for those that run."""
        with self._woken:
            self._stopping = True
            self._woken.notify_all()
            self._woken.wait_for(lambda: not self._running, _STOP_WAIT_S)
        self._thread.join(_STOP_WAIT_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def problem(self, channel: StoredChannel) -> str:
        """Why the last execution of this very channel failed; empty if it did not."""
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
        """Start what is due. Returns how long there is nothing to do."""
        try:
            self._start_due(time.monotonic())
        except Exception as error:  # the catalogue is a file, and may be damaged or on a full disk
            self._changed = True  # look again: what there is was not read to its end
            self._troubles.note("starting executions that are due", error)
            return _TROUBLE_S
        full = self._running >= self._at_once  # then the end of one is what wakes us
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
