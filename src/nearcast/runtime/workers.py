"""Workers: long-lived tasks. None ends by an error that nobody thought of, and each says how it fares.

What a task expects to go wrong it handles itself. Anything else would end it silently, and with it what it does for
everybody; so it is noted (`troubles.py`), and the task begins again after a pause.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from nearcast.runtime.retrying import Pauses
from nearcast.runtime.troubles import Troubles

STEADY_S = 60.0  # a worker that ran for so long has recovered: its next pause is short again

Job = Callable[[], Coroutine[Any, Any, None]]


class Workers:
    """Started by name, all stopped together."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, job: Job) -> None:
        """`job` runs until it is done or cancelled; it must be able to begin again wherever it was."""
        self._tasks[name] = asyncio.create_task(self._run(name, job), name=name)

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    @property
    def health(self) -> dict[str, str]:
        """How each fares: running or done, and what failed last and how often."""
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
