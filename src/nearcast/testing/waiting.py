"""Waiting in tests until something is true, with a time limit."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

LOOK_S = 0.01
WITHIN_S = 60.0  # generous: a test that passes waits only as long as it must

Condition = Callable[[], object] | Callable[[], Awaitable[object]]


async def until(condition: Condition, what: str = "", within_s: float = WITHIN_S) -> None:
    """Return when the condition, a function or coroutine function, returns something true. `what` describes it."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        _check_time(deadline_s, what, within_s)
        await asyncio.sleep(LOOK_S)


def wait_until(condition: Callable[[], object], what: str = "", within_s: float = WITHIN_S) -> None:
    """The same for code without an event loop: it blocks this thread."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        _check_time(deadline_s, what, within_s)
        time.sleep(LOOK_S)


def _check_time(deadline_s: float, what: str, within_s: float) -> None:
    if time.monotonic() >= deadline_s:
        raise AssertionError(f"{what or 'the condition'} did not come true within {within_s:g} s")
