"""Workers: long-lived tasks that survive unexpected errors, and report how they are doing.

A task handles the errors it expects. Any other would end it silently, and with it what it does for the rest of the
process. So `Workers` notes the error in `Troubles` and starts the task again after a pause from `Pauses`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from nearcast.core.model.settings import NEVER_S

# --- pauses between attempts


FIRST_S = 0.1
LONGEST_S = 3.0


class Pauses:
    """The pauses between attempts: longer each time, and never the same for two tasks that failed together.

    Call `next_s()` after a failure, `reset()` after a success.
    """

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0

    def next_s(self) -> float:
        limit_s = min(self._longest_s, self._first_s * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        return random.uniform(limit_s / 2, limit_s)

    def reset(self) -> None:
        self._failures = 0


# --- unexpected errors


SHOWN_S = 60.0  # how long an error is shown after its last occurrence, and the time between two log lines
KINDS_MAX = 100  # kinds of errors that are distinguished

_Kind = tuple[str, type[BaseException], int]  # what failed, how, and in which line
_OTHERS: _Kind = ("", BaseException, 0)


class Troubles:
    """Collects unexpected errors in parts of a process that must keep running, from its tasks and threads.

    Such an error is a bug of ours or of a plug-in. The part carries on, and the operator sees the error in the log, and
    for a while in the process's `problem` or `/health`. An error that occurs ten times a second must not fill the disk.
    So the first of each kind is logged with its traceback, and after that one line a minute says how often it recurred.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: Counter[str] = Counter()
        self._last: dict[str, str] = {}
        self._shown: tuple[float, str] = (NEVER_S, "")
        self._logged_s: dict[_Kind, float] = {}
        self._unlogged: Counter[_Kind] = Counter()

    def note(self, part: str, error: BaseException) -> None:
        """`part` failed unexpectedly and carries on."""
        text = repr(error)[:200]
        now_s = time.monotonic()
        self._counts[part] += 1
        self._last[part] = text
        self._shown = (now_s, f"{part} failed: {text}")
        self._write(part, error, text, now_s)

    @property
    def problem(self) -> str:
        """What failed last; empty if that was a while ago."""
        at_s, text = self._shown
        return text if time.monotonic() - at_s < SHOWN_S else ""

    def of(self, part: str) -> str:
        """What failed last in one part, and how often; empty if nothing did."""
        count = self._counts[part]
        return f"failed {count} times, last: {self._last[part]}" if count else ""

    def _write(self, part: str, error: BaseException, text: str, now_s: float) -> None:
        kind: _Kind = (part, type(error), _line_of(error))
        if kind not in self._logged_s and len(self._logged_s) >= KINDS_MAX:
            kind = _OTHERS
        if kind not in self._logged_s:
            self._logged_s[kind] = now_s
            self._log.error("%s failed, and continues", part, exc_info=error)
        elif now_s - self._logged_s[kind] >= SHOWN_S:
            self._logged_s[kind] = now_s
            self._log.error("%s failed %d more times: %s", part, self._unlogged.pop(kind, 0) + 1, text)
        else:
            self._unlogged[kind] += 1


def _line_of(error: BaseException) -> int:
    """Where it was raised."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        line, trace = trace.tb_lineno, trace.tb_next
    return line


# --- the workers


STEADY_S = 60.0  # a worker that ran this long has recovered: its next pause is short again

Job = Callable[[], Coroutine[Any, Any, None]]


class Workers:
    """The workers of a process: started by name, all stopped together."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, job: Job) -> None:
        """`job` runs until it is done or cancelled; it must be able to start again wherever it was."""
        self._tasks[name] = asyncio.create_task(self._run(name, job), name=name)

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    @property
    def health(self) -> dict[str, str]:
        """The state of each: running or done, what failed last, and how often."""
        return {name: self._state(name) for name in self._tasks}

    def _state(self, name: str) -> str:
        state, failures = "done" if self._tasks[name].done() else "running", self._troubles.of(name)
        return f"{state}; {failures}" if failures else state

    async def _run(self, name: str, job: Job) -> None:
        pauses = Pauses()
        while True:
            began_s = time.monotonic()
            try:
                await job()
                return
            except Exception as error:
                self._troubles.note(name, error)
                if time.monotonic() - began_s > STEADY_S:
                    pauses.reset()
                await asyncio.sleep(pauses.next_s())


# --- tasks of one process


async def until_one_ends(*jobs: Coroutine[Any, Any, None]) -> None:
    """Run them together until one is done or fails, then cancel the others. Raises its error if it failed."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
