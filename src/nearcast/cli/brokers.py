"""`nearcast brokers`: the brokers of the cluster, their load and their capacity.

`nearcast brokers calibrate` measures how many bytes per second brokers can send. `nearcast brokers profile`, which is
in `brokers_profile.py`, finds how many messages per second they may deliver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.bounds import distances
from nearcast.cli.brokers_profile import profile
from nearcast.cli.quiet import chosen, quiet
from nearcast.cli.shared import (
    ASK_S,
    DEFAULT_URL,
    Output,
    OutputOption,
    Url,
    ask_overview,
    bytes_per_s,
    checked_name,
    errors_as_exit_codes,
    known,
    megabytes_per_s,
    refuse_options_before,
    run,
    say,
    show,
)
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.model.reports import Report
    from nearcast.core.wire.views import BrokerView
    from nearcast.runtime.calibration import Calibration, CalibrationSettings


# --- brokers calibrate


CALIBRATION_COLUMNS = (
    *("broker", "capacity MB/s", "messages/s", "p99 ms", "CPU %"),
    *("peak MB/s", "peak CPU %", "measuring CPU %", "limited by"),
)


def calibrate(
    brokers: Annotated[list[str] | None, typer.Argument(metavar="BROKER", help="Default: all members.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1, max=60, help="Longest full load per broker.")] = 5.0,
    payload_bytes: Annotated[int, typer.Option("--payload-bytes", min=1, max=1 << 20, help="Per message.")] = 200,
    subscribers: Annotated[int, typer.Option("--subscribers", min=1, max=1000, help="Connections to use.")] = 32,
    apply: Annotated[bool, typer.Option("--apply/--dry-run", help="Set the capacity to the result.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also measure brokers that carry load.")] = False,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Measure how many bytes per second brokers can send.

    One broker after another is put under full load for a few seconds, on a private channel. The result covers the
    server and the path to it, so run this where the clients are, or beside the server. Load ratios are relative to the
    capacity.

    Example: nearcast brokers calibrate b1 b2 --apply
    """
    from nearcast.runtime.calibration import CalibrationSettings

    settings = CalibrationSettings(seconds=seconds, payload_bytes=payload_bytes, subscribers=subscribers)
    found = run(lambda: _calibrate(url, brokers or [], settings, apply=apply, force=force))
    show(
        output,
        {"applied": apply, "brokers": found},
        CALIBRATION_COLUMNS,
        [_row(name, one) for name, one in found.items()],
    )
    for name, one in found.items():
        if not apply:
            rate = f"{one.capacity_bytes_per_s / 1e6:.1f}MB"
            say(f"not applied: repeat with --apply, or run: nearcast brokers capacity {name} {rate}")


async def _calibrate(
    url: str, names: list[str], settings: CalibrationSettings, *, apply: bool, force: bool
) -> dict[str, Calibration]:
    from nearcast.runtime import calibration
    from nearcast.runtime.console import Console
    from nearcast.runtime.driver import parse_url

    _, credentials = parse_url(url)
    found: dict[str, Calibration] = {}
    async with Console(url) as console:
        for name in chosen(await console.overview(timeout_s=ASK_S), names):
            view = await quiet(console, name, force=force)
            say(f"{name}: measuring for at most {settings.seconds:g} s ...")
            found[name] = await calibration.calibrate(view.url, credentials, settings)
            if apply:
                await console.set_capacity(name, found[name].capacity_bytes_per_s)
    return found


def _row(name: str, found: Calibration) -> tuple[str, ...]:
    return (
        name,
        megabytes_per_s(found.capacity_bytes_per_s),
        f"{found.deliveries_per_s:,.0f}",
        f"{found.latency_p99_s * 1e3:.1f}",
        f"{found.cpu_share * 100:.0f}",
        megabytes_per_s(found.peak_bytes_per_s),
        f"{found.peak_cpu_share * 100:.0f}",
        f"{found.measuring_cpu_share * 100:.0f}",
        found.limited_by,
    )


# --- brokers


app = typer.Typer(invoke_without_command=True)

BROKER_COLUMNS = (
    *("broker", "site", "state", "answers", "url", "connections"),
    *("out kB/s", "in kB/s", "capacity MB/s", "load ratio", "CPU %", "memory MB"),
)

MESSAGES_COLUMN = "messages/s at most"  # shown if a broker has its own threshold
MESSAGES_PER_S_MAX = 1e12  # more is a typo

Broker = Annotated[str, typer.Argument(metavar="BROKER")]


@app.callback()
def brokers(context: typer.Context, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show the brokers of the cluster and their load.

    It also says whether each answers. The load is that of the last second.

    Example: nearcast brokers --url redis://127.0.0.1:7001
    """
    if context.invoked_subcommand is None:
        _show(run(lambda: ask_overview(url)).brokers, output)
        return
    with errors_as_exit_codes():
        refuse_options_before(context)


app.command("calibrate")(calibrate)
app.command("profile")(profile)
app.command("distances")(distances)


@app.command("capacity")
def capacity(
    broker: Broker,
    rate: Annotated[str, typer.Argument(metavar="BYTES_PER_S", help="For example 125MB, 80MiB or 1Gbit.")],
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set how many bytes per second a broker can send. Load ratios are relative to it.

    Example: nearcast brokers capacity b1 1Gbit
    """
    _show({broker: run(lambda: _set_capacity(url, broker, rate))}, output)


async def _set_capacity(url: str, broker: str, rate: str) -> BrokerView:
    from nearcast.runtime.console import Console

    checked_name("broker", broker)
    wanted = bytes_per_s(rate)
    async with Console(url) as console:
        known(await console.overview(timeout_s=ASK_S), broker)
        return await console.set_capacity(broker, wanted)


@app.command("messages")
def messages(
    broker: Broker,
    per_s: Annotated[float, typer.Argument(metavar="MESSAGES_PER_S", help="Delivered; 0: as the policy says.")],
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set how many messages per second a broker may deliver.

    Above it, the policy epulsar takes topics away. `nearcast brokers profile` measures it.

    Example: nearcast brokers messages b1 400000
    """
    _show({broker: run(lambda: _set_messages_high(url, broker, per_s))}, output)


async def _set_messages_high(url: str, broker: str, per_s: float) -> BrokerView:
    from nearcast.runtime.console import Console

    checked_name("broker", broker)
    if not 0 <= per_s <= MESSAGES_PER_S_MAX:
        raise UsageError(f"{per_s:g} messages per second: use 0 to {MESSAGES_PER_S_MAX:g}")
    async with Console(url) as console:
        known(await console.overview(timeout_s=ASK_S), broker)
        return await console.set_messages_high(broker, per_s)


@app.command("drain")
def drain(
    broker: Broker,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the drain; the broker stays.")] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Give up what it keeps of logs, instead of waiting until it is read.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the broker has left.")] = True,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Total time limit.")] = 60.0,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a broker leave the cluster.

    Its topics are moved away first, while messages flow. If it keeps messages of logs, it leaves when they are read
    or have expired.

    Example: nearcast brokers drain b2
    """
    view = run(lambda: _drain(url, broker, cancel=cancel, abandon=abandon, wait=wait, timeout_s=timeout_s))
    _show({broker: view}, output)


async def _drain(url: str, broker: str, *, cancel: bool, abandon: bool, wait: bool, timeout_s: float) -> BrokerView:
    from nearcast.runtime.console import Console

    checked_name("broker", broker)
    async with Console(url) as console:
        known(await console.overview(timeout_s=ASK_S), broker)
        return await console.drain(broker, cancel=cancel, abandon=abandon, wait=wait, timeout_s=timeout_s)


# --- how a broker is shown


def _show(views: dict[str, BrokerView], output: Output) -> None:
    data = {"brokers": {name: broker_data(view) for name, view in views.items()}}
    columns: tuple[str, ...] = BROKER_COLUMNS
    rows = [broker_row(name, view) for name, view in sorted(views.items())]
    if any(view.messages_high_per_s for view in views.values()):
        columns = (*columns, MESSAGES_COLUMN)
        rows = [(*row, _messages_high(views[row[0]])) for row in rows]
    show(output, data, columns, rows)


def _messages_high(view: BrokerView) -> str:
    return f"{view.messages_high_per_s:,.0f}" if view.messages_high_per_s else "as the policy says"


def broker_data(view: BrokerView) -> dict[str, object]:
    return {
        "url": view.url,
        "site": view.site,
        "state": view.state,
        "alive": _alive(view),
        "rented": view.rented,
        "capacity_bytes_per_s": view.capacity_bytes_per_s or None,
        "messages_high_per_s": view.messages_high_per_s or None,
        "load_ratio": load_ratio(view),
        "load": _load(view.report) if view.report is not None else None,
    }


def _alive(view: BrokerView) -> bool:
    return view.alive and view.state != "dead"  # a broker that was just given up had its last grant a moment ago


def load_ratio(view: BrokerView) -> float | None:
    """LR = measured outgoing bandwidth / capacity (Dynamoth, equation 1); None while one of them is unknown."""
    if view.report is None or not view.capacity_bytes_per_s:
        return None
    return view.report.output_bytes_per_s / view.capacity_bytes_per_s


def _load(report: Report) -> dict[str, object]:
    return {
        "at_s": report.at_s,
        "connections": report.connections,
        "output_bytes_per_s": report.output_bytes_per_s,
        "input_bytes_per_s": report.input_bytes_per_s,
        "cpu_share": report.cpu_share,
        "memory_bytes": report.memory_bytes,
        "counted_bytes_per_s": report.counted_bytes_per_s,
    }


def broker_row(name: str, view: BrokerView) -> tuple[str, ...]:
    who = (name, view.site, view.state, "yes" if _alive(view) else "no", view.url)
    known = megabytes_per_s(view.capacity_bytes_per_s) if view.capacity_bytes_per_s else "not known"
    report, ratio = view.report, load_ratio(view)
    if report is None:
        return (*who, "", "", "", known, "", "", "")
    return (
        *who,
        str(report.connections),
        f"{report.output_bytes_per_s / 1e3:.1f}",
        f"{report.input_bytes_per_s / 1e3:.1f}",
        known,
        "" if ratio is None else f"{ratio:.2f}",
        f"{report.cpu_share * 100:.0f}",
        f"{report.memory_bytes / 1e6:.1f}",
    )
