"""`nearcast log`: messages that are kept."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.shared import (
    ASK_S,
    DEFAULT_URL,
    Counting,
    Output,
    OutputOption,
    Url,
    errors_as_exit_codes,
    printable,
    run,
    say,
    show,
)
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.model.logs import Log, PartLoad
    from nearcast.core.model.message import Kept
    from nearcast.core.wire.bus import State
    from nearcast.runtime.reader import Reader

app = typer.Typer(help="Keep the messages of topics, and read them.", no_args_is_help=True)

LOG_COLUMNS = ("log", "topics", "retained for", "and MB per broker", "quorum", "messages", "MB")
PART_COLUMNS = ("part", "state", "messages", "entries left", "MB", "not read")

Name = Annotated[str, typer.Argument(metavar="LOG")]


@app.command("create")
@errors_as_exit_codes()
def create(
    name: Name,
    topics: Annotated[
        list[str],
        typer.Option("--topics", metavar="PATTERN", help="A topic, or a pattern such as order.*; repeatable."),
    ],
    retain: Annotated[str, typer.Option("--retain", metavar="TIME", help="How long: 90s, 30m, 1h, 7d.")] = "1h",
    retain_bytes: Annotated[
        str, typer.Option("--retain-bytes", metavar="SIZE", help="How much at each broker: 512MB, 2GiB.")
    ] = "512MB",
    quorum: Annotated[
        int,
        typer.Option("--quorum", min=1, help="Servers that have a message before it counts. 2: a replica too."),
    ] = 1,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Keep the messages of topics from now on.

    When the command returns, everything that is published from then on is kept. Repeating it changes nothing.

    Messages are in the servers' memory. With --quorum 2 they survive the loss of a server: start the agents with
    --replica for that. What was chosen here stays: to change it, drop the log, with all that it keeps, and create it
    again.

    Example: nearcast log create orders --topics 'order.*' --retain 1h --retain-bytes 512MB
    """

    async def made() -> State:
        from nearcast.core.model.logs import Log
        from nearcast.runtime.console import Console

        log = Log(name, 0, tuple(topics), seconds(retain), size(retain_bytes), quorum)
        async with Console(url) as console:
            await console.create_log(log)
            return await console.logs(timeout_s=ASK_S)

    _show(run(made), output, name)


@app.command("list")
def list_logs(url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show all logs.

    Example: nearcast log list
    """
    _show(run(lambda: _ask(url)), output)


@app.command("show")
@errors_as_exit_codes()
def show_log(name: Name, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show the parts of a log, and how far groups have read them.

    A part is what one broker has kept, from when it joined: b1@3 joined with version 3 of the membership. If its server
    was lost, the part says so. An entry is a batch of messages that were published together; "messages" counts all that
    were ever kept, "not read" what each group has not committed.

    Example: nearcast log show orders
    """

    async def asked() -> tuple[State, Log]:
        state = await _ask(url)
        return state, _known(state, name)

    state, log = run(asked)
    parts = _parts(state, log)
    rows = [
        (
            str(part["part"]),
            str(part["state"]),
            _number(part["messages"]),
            _number(part["entries"]),
            f"{int(str(part['bytes'] or 0)) / 1e6:.1f}",
            _unread(part["unread"]),
        )
        for part in parts
    ]
    show(output, {**_data(state, log), "parts": parts}, PART_COLUMNS, rows, _title(log))
    for former in state.former:
        if former.state == "sealing" and former.ended > log.created:
            say(f"{former.life} waits until its replicas have answered: {', '.join(former.replicas)}")
            say(f"if one is gone for good, run: nearcast log abandon {former.life}")


@app.command("drop")
def drop(name: Name, url: Url = DEFAULT_URL) -> None:
    """Keep nothing more, and remove what was kept. Its groups end with it.

    Example: nearcast log drop orders
    """

    async def dropped() -> None:
        from nearcast.runtime.console import Console

        async with Console(url) as console:
            await console.drop_log(name)

    run(dropped)
    say(f"log {name} was dropped")


@app.command("abandon")
def abandon(
    part: Annotated[str, typer.Argument(metavar="PART", help="As `nearcast log show` names it.")],
    url: Url = DEFAULT_URL,
) -> None:
    """Wait no longer for what a server that is gone had kept.

    While a replica that may have something of a part does not answer, the part is `sealing`, and readers and publishers
    wait. If it will never answer, give it up: what the other replicas have is read, and readers are told that messages
    may be missing. A part that is `held` is given up as a whole; the replica that holds it is then free again.

    Example: nearcast log abandon b2@17
    """

    async def given_up() -> None:
        from nearcast.runtime.console import Console

        async with Console(url) as console:
            await console.abandon_part(part)

    run(given_up)
    say(f"{part} was given up")


@app.command("read")
def read(
    name: Name,
    group: Annotated[
        str, typer.Option("--group", metavar="NAME", help="Continue where this group was, and commit what is printed.")
    ] = "",
    from_: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help="earliest, latest, or how long ago: 10m. A group that was there goes on."
        ),
    ] = "earliest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for what is published from now on.")] = False,
    last: Annotated[int | None, typer.Option("--max", metavar="N", min=1, help="Stop after this many.")] = None,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the messages of a log, in each publisher's order.

    One line for each: time, topic, publisher and number, payload. What is lost is said on stderr. With -o json, one
    JSON object per line. Without --follow it ends when nothing came for a second; with it, at Ctrl-C.

    Several commands with the same --group share the messages: each is printed by one of them.

    Example: nearcast log read orders --follow

    Example: nearcast log read orders --group billing --max 100
    """
    run(lambda: _read(url, name, group, start(from_), follow=follow, limit=last, output=output))


async def _read(
    url: str, name: str, group: str, from_: str | float, *, follow: bool, limit: int | None, output: Output
) -> None:
    import nearcast
    from nearcast.runtime.console import Console

    async with Console(url) as console:
        _known(await console.logs(timeout_s=ASK_S), name)
        brokers = [view.url for view in (await console.overview(timeout_s=ASK_S)).brokers.values() if view.alive]
    async with nearcast.connect(*brokers) as client:
        reader = await client.read(name, group=group, from_=from_)
        committing = Committing(reader) if group else None
        try:
            await _print_events(reader, committing, follow=follow, limit=limit, output=output)
        finally:  # at Ctrl-C too: what is printed is done
            if committing is not None:
                await committing.end()


async def _print_events(
    reader: Reader, committing: Committing | None, *, follow: bool, limit: int | None, output: Output
) -> None:
    import asyncio

    from nearcast.core.model.message import Message

    count = 0
    with Counting("messages") as counting:
        while limit is None or count < limit:
            event = None
            try:
                event = await asyncio.wait_for(reader.get(), QUIET_S)
            except TimeoutError:
                if not follow:
                    break
            if event is not None:
                count += isinstance(event, Message)
                _print(event, output)
                if not sys.stdout.isatty():
                    counting.tell(count)
            if committing is not None:
                await committing.printed(int(event is not None))


QUIET_S = 1.0  # without --follow: nothing came for this long, so that was all
COMMIT_EVERY = 1000  # events,
COMMIT_S = 1.0  # or seconds: other members of the group may wait for it


class Committing:
    """Commits what a reader has printed, now and then."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._count = 0  # events that were printed and not committed
        self._since_s = time.monotonic()

    async def printed(self, count: int) -> None:
        from nearcast.errors import Unavailable

        self._count += count
        if self._count >= COMMIT_EVERY or (self._count and time.monotonic() - self._since_s >= COMMIT_S):
            try:
                await self.end()
            except Unavailable as error:  # another member reads there now: read on
                say(str(error))

    async def end(self) -> None:
        count, self._count, self._since_s = self._count, 0, time.monotonic()
        if count:
            await self._reader.commit()


def _print(event: Kept, output: Output) -> None:
    from datetime import UTC, datetime

    from nearcast.core.model.message import Lost

    if isinstance(event, Lost):
        count = "an unknown number of" if event.count is None else f"{event.count:,}"
        say(f"lost: {count} messages of {event.part}: {event.reason}")
        return
    at = datetime.fromtimestamp(event.published_at, UTC).isoformat(timespec="milliseconds")
    text = event.payload.decode("utf-8", "backslashreplace")
    if output is Output.JSON:
        import msgspec

        line = {"at": at, "topic": event.topic, "publisher": f"{event.publisher:016x}", "number": event.sequence}
        print(msgspec.json.encode({**line, "payload": text}).decode(), flush=True)
    else:
        print(f"{at} {printable(event.topic)} {event.publisher:016x}#{event.sequence} {printable(text)}", flush=True)


# --- what is shown


async def _ask(url: str) -> State:
    from nearcast.runtime.console import Console

    async with Console(url) as console:
        return await console.logs(timeout_s=ASK_S)


def _known(state: State, name: str) -> Log:
    for log in state.logs:
        if log.name == name:
            return log
    names = ", ".join(sorted(log.name for log in state.logs)) or "none"
    raise UsageError(f"no log {name!r}; the cluster has: {names}")


def _show(state: State, output: Output, name: str = "") -> None:
    logs = [_known(state, name)] if name else sorted(state.logs, key=lambda log: log.name)
    rows = []
    for log in logs:
        loads = [parts[log.key] for parts in state.parts.values() if log.key in parts]
        rows.append(
            (
                *(log.name, ", ".join(log.topics), f"{log.retain_s:g} s", f"{log.retain_bytes / 1e6:g}"),
                *(str(log.quorum), f"{sum(load.total for load in loads):,}"),
                f"{sum(load.size_bytes for load in loads) / 1e6:.1f}",
            )
        )
    show(output, {"logs": [_data(state, log) for log in logs]}, LOG_COLUMNS, rows)


def _data(state: State, log: Log) -> dict[str, object]:
    loads = [parts[log.key] for parts in state.parts.values() if log.key in parts]
    return {
        "log": log.name,
        "topics": log.topics,
        "retain_s": log.retain_s,
        "retain_bytes": log.retain_bytes,
        "quorum": log.quorum,
        "messages": sum(load.total for load in loads),
        "bytes": sum(load.size_bytes for load in loads),
    }


def _parts(state: State, log: Log) -> list[dict[str, object]]:
    parts = [_part(life, loads.get(log.key)) for life, loads in sorted(state.parts.items())]
    gone = [former for former in state.former if former.ended > log.created]
    return parts + [
        {
            "part": former.life,
            "state": str(former.state),
            "messages": (former.counts or {}).get(log.key),
            "entries": 0,
            "bytes": None,
            "unread": {},
        }
        for former in gone
    ]


def _part(life: str, load: PartLoad | None) -> dict[str, object]:
    if load is None:
        return {"part": life, "state": "not known yet", "messages": None, "entries": None, "bytes": None, "unread": {}}
    return {
        "part": life,
        "state": "there",
        "messages": load.total,
        "entries": load.entries,
        "bytes": load.size_bytes,
        "unread": load.groups,
    }


def _title(log: Log) -> str:
    limits = f"{log.retain_s:g} s, {log.retain_bytes / 1e6:g} MB per broker"
    return f"{log.name}: {', '.join(log.topics)}; retained for {limits}"


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "unknown"


def _unread(groups: object) -> str:
    assert isinstance(groups, dict)
    return ", ".join(f"{group}: {count:,}" for group, count in sorted(groups.items())) or "no group"


# --- what people write


_TIME = re.compile(r"(\d{1,15}(?:\.\d+)?)\s*(ms|s|m|min|h|d)?", re.IGNORECASE)
_TIMES = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZES = _DECIMAL | {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def seconds(text: str) -> float:
    """A time as people write it."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"bad time {text!r}: write seconds, or a number with a unit: 90s, 30m, 1h, 7d")
    return float(found[1]) * _TIMES[(found[2] or "s").lower()]


def size(text: str) -> int:
    """A number of bytes as people write it."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"bad size {text!r}: write bytes, or a number with a unit: 512MB, 2GiB")
    return int(float(found[1]) * _SIZES[(found[2] or "").lower()])


def start(text: str) -> str | float:
    """Where to begin to read: a word, or how long ago."""
    if text in ("earliest", "latest"):
        return text
    if _TIME.fullmatch(text.strip()) is None:
        raise UsageError(f"cannot read from {text!r}: write earliest, latest, or how long ago: 10m")
    return time.time() - seconds(text)
