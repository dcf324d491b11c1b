"""Running a command: the event loop, the exit code, and when to stop.

Exit codes: 0 done, 1 the cluster could not, 2 the call was wrong, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import typer

from nearcast.errors import NearcastError, UsageError

T = TypeVar("T")

PROBLEM_LOOK_S = 1.0

EXTRAS = {  # package -> the extra that brings it
    "duckdb": "dev",
    "fastapi": "gateway",
    "httpx": "gateway",
    "numpy": "policies",
    "matplotlib": "plots",
    "pyarrow": "data",
    "pyspark": "data",
    "sqlglot": "data",
    "uvicorn": "gateway",
    "websockets": "gateway",
}


@contextlib.contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """A NearcastError, or an extra that is not installed, becomes one line and an exit code, never a traceback."""
    try:
        yield
    except ModuleNotFoundError as missing:
        extra = EXTRAS.get(missing.name or "")
        if extra is None:
            raise
        say(f"error: this needs {missing.name}, which is not installed: pip install 'nearcast[{extra}]'")
        raise typer.Exit(2) from None
    except NearcastError as error:
        say(f"error: {error}")
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@errors_as_exit_codes()
def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine on the fastest event loop there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    return uvloop.run(main())


def say(message: str) -> None:
    """A message for people: to stderr, because stdout is for results."""
    print(message, file=sys.stderr, flush=True)


def name_server() -> None:
    """Say which server will be started, if it is one of this machine's and not our own."""
    from nearcast.runtime.servers import server_on_path

    found = server_on_path()
    if found is not None:
        say(f"using {found}, found on PATH")


async def until_told_to_stop() -> None:
    """Return at the first SIGINT or SIGTERM. A second one ends the program at once."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    try:
        await told.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def until_one_ends(*jobs: Coroutine[Any, Any, None]) -> None:
    """Run them together until one is done, or fails: then the process ends, and says why."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def log_problems(log: logging.Logger, problem: Callable[[], str]) -> None:
    """Say what keeps a process from working when that changes. Runs until it is cancelled."""
    known = ""
    while True:
        await asyncio.sleep(PROBLEM_LOOK_S)
        found = problem()
        if found != known:
            known = found
            log.warning("%s", found) if found else log.info("the problem is over")


def log_to_stderr() -> None:
    """For commands that run until they are stopped."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger().handlers[0].addFilter(_NotTwice())


class _NotTwice(logging.Filter):
    """Drops a line that says what the line before said: what fails is tried again several times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        repeated, self._last = message == self._last, message
        return not repeated
