"""What commands share: options, output, exit codes, requests to the controller, rates and topic rows.

Commands print a table for people, or JSON for programs, and nothing else on stdout.

Exit codes: 0 success, 1 the cluster failed, 2 wrong usage, 130 interrupted.

Rates are written as people write them: `125MB`, `1Gbit`, `80MiB/s`, `1.5e8`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import msgspec
import typer

from nearcast.errors import NearcastError, UsageError

if TYPE_CHECKING:
    from nearcast.core.model.placement import Placement
    from nearcast.core.wire.bus import State
    from nearcast.core.wire.views import BrokerView, TopicState


# --- options


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


Url = Annotated[
    str,
    typer.Option("--url", envvar="NEARCAST_URL", metavar="URL", help="Any server of the cluster, or its store."),
]
DEFAULT_URL = "redis://127.0.0.1:6379"

OutputOption = Annotated[Output, typer.Option("--output", "-o", help="A table for people, JSON for programs.")]

StoreUrl = Annotated[
    str,
    typer.Option(
        "--store", envvar="NEARCAST_STORE", metavar="URL", help="The store's server, which consoles must reach too."
    ),
]

# Names appear in channel names, in comma-separated lists and in tables.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def checked_name(kind: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"bad {kind} name {name!r}: use 1 to 64 letters, digits, dots, dashes and underscores")
    return name


def name_list(kind: str, text: str) -> tuple[str, ...]:
    """The names in `a,b,c`."""
    return tuple(checked_name(kind, name.strip()) for name in text.split(","))


def refuse_options_before(context: typer.Context) -> None:
    """For a command with subcommands: an option before the subcommand would be read by the wrong one."""
    for parameter in context.params:
        name, source = parameter.replace("_", "-"), context.get_parameter_source(parameter)
        if source is not None and source.name == "COMMANDLINE":
            command = f"nearcast {context.info_name} {context.invoked_subcommand}"
            raise UsageError(f"give --{name} after the subcommand: {command} ... --{name} ...")


# --- output


_WIDE = 1000  # a pipe has no width: do not wrap lines that a program will split into words


def show(output: Output, data: object, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print `data` as JSON, or the rows as a table with a title line above."""
    if output is Output.JSON:
        print_json(data)
    else:
        print_table(columns, rows, title)


def print_json(data: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(data), indent=2).decode(), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    if title:
        console.print(Text(printable(title)))
    console.print(table)


def printable(text: str) -> str:
    """The text, escaped if needed: names come from anywhere and must not control the terminal."""
    return text if text.isprintable() else ascii(text)


# --- counting


PATIENCE_S = 1.0  # a faster command needs no progress line
_CLEAR = "\r\x1b[K"  # the progress line is overwritten, and removed at the end


class Counting:
    """A progress line: how many have come so far. Not shown if it is fast, or if stderr is not a terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since_s = time.monotonic()
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._shown:
            print(_CLEAR, end="", file=sys.stderr, flush=True)

    def tell(self, count: int) -> None:
        if sys.stderr.isatty() and time.monotonic() - self._since_s > PATIENCE_S:
            self._shown = True
            print(f"{_CLEAR}{count:,} {self._what} ...", end="", file=sys.stderr, flush=True)


# --- running a command


T = TypeVar("T")

PROBLEM_LOOK_S = 1.0

EXTRAS = {  # package -> the extra that installs it
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
    """Run the coroutine, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    return uvloop.run(main())


def say(message: str) -> None:
    """Print a message for people, on stderr because stdout is for results."""
    print(message, file=sys.stderr, flush=True)


def name_server() -> None:
    """Say which server binary will be used, if it is one found on PATH."""
    from nearcast.runtime.servers import server_on_path

    found = server_on_path()
    if found is not None:
        say(f"using {found}, found on PATH")


async def until_told_to_stop() -> None:
    """Return at the first SIGINT or SIGTERM. A second one ends the program at once."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        await stop.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def log_problems(log: logging.Logger, problem: Callable[[], str]) -> None:
    """Log a process's problem whenever it changes. Runs until cancelled."""
    known = ""
    while True:
        await asyncio.sleep(PROBLEM_LOOK_S)
        found = problem()
        if found != known:
            known = found
            log.warning("%s", found) if found else log.info("the problem is resolved")


def log_to_stderr() -> None:
    """For commands that run until they are stopped."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger().handlers[0].addFilter(_NotTwice())


class _NotTwice(logging.Filter):
    """Drops a line that repeats the one before, because failed work is retried several times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        repeated, self._last = message == self._last, message
        return not repeated


# --- asking the controller


ASK_S = 5.0  # for one answer; a new leader takes over within about two seconds


async def ask_state(url: str, *topics: str) -> State:
    """The state of these topics, or of all placed ones if none is named, and of all brokers."""
    from nearcast.core.model.names import encode_topic
    from nearcast.runtime.console import Console

    for topic in topics:
        encode_topic(topic)
    async with Console(url) as console:
        with Counting("topics") as counting:
            return warned(await console.state(*topics, timeout_s=ASK_S, on_part=counting.tell))


async def ask_overview(url: str) -> State:
    """The state of all brokers, without topics."""
    from nearcast.runtime.console import Console

    async with Console(url) as console:
        return warned(await console.overview(timeout_s=ASK_S))


def warned(state: State) -> State:
    """The same state, after a warning if the store has lost data and the loss is not acknowledged."""
    if state.loss is not None and not state.loss.acknowledged:
        say("warning: the store has lost data, see `nearcast store`")
    return state


def known(state: State, broker: str) -> BrokerView:
    """The broker of this name. Raises UsageError for an unknown one."""
    view = state.brokers.get(broker)
    if view is None:
        raise UsageError(f"unknown broker {broker!r}; the cluster has: {', '.join(sorted(state.brokers))}")
    return view


# --- rates


_RATE = re.compile(r"(?P<number>\d+(?:\.\d*)?(?:e\+?\d+)?)\s*(?P<unit>[a-z]*)(?:/s|ps)?", re.IGNORECASE)
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
_SIZES = {"": 1.0, "b": 1.0, "byte": 1.0, "bytes": 1.0, "bit": 1 / 8, "bits": 1 / 8}
_FACTORS = {prefix + size: factor * of for prefix, factor in _PREFIXES.items() for size, of in _SIZES.items()}

BYTES_PER_S_MAX = 1e12  # 8 Tbit/s: more is a typo


def bytes_per_s(text: str) -> float:
    """The rate in bytes per second. Raises UsageError, which says how to write one."""
    hint = "write a number of bytes per second, or one with a unit: 125MB, 80MiB, 1Gbit"
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"bad rate {text!r}: {hint}")
    unit = found["unit"].lower().removesuffix("ps")
    if unit not in _FACTORS:
        raise UsageError(f"bad rate {text!r}: unknown unit {found['unit']!r}; {hint}")
    rate = float(found["number"]) * _FACTORS[unit]
    if not 1 <= rate <= BYTES_PER_S_MAX:
        raise UsageError(f"bad rate {text!r}: {rate:g} bytes per second is out of range; {hint}")
    return rate


def megabytes_per_s(rate: float) -> str:
    """For tables, without a unit."""
    return f"{rate / 1e6:,.1f}"


# --- topics


TOPIC_COLUMNS = ("topic", "mode", "brokers", "epoch", "state")


def placement_data(placement: Placement) -> dict[str, object]:
    return {"epoch": placement.epoch, "mode": placement.mode, "brokers": placement.brokers}


def topic_data(state: TopicState) -> dict[str, object]:
    target = placement_data(state.target) if state.target is not None else None
    return {**placement_data(state.placement), "planned": state.planned, "target": target, "stage": state.stage or None}


def topic_row(topic: str, state: TopicState) -> tuple[str, ...]:
    placement = state.placement
    return (topic, placement.mode, ", ".join(placement.brokers), str(placement.epoch), _words(state))


def _words(state: TopicState) -> str:
    if state.target is not None:
        target = state.target
        return f"moving to {', '.join(target.brokers)} ({target.mode}), stage {state.stage or 'decided'}"
    return "settled" if state.planned else "not placed: on its directory"
