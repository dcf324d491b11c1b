"""`nearcast brokers`: the brokers of the cluster, their load and their capacity.

`nearcast brokers calibrate` measures how many bytes per second brokers can send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.bounds import distances
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
    from nearcast.core.wire.bus import State
    from nearcast.core.wire.views import BrokerView
    from nearcast.runtime.calibration import Calibration, CalibrationSettings
    from nearcast.runtime.console import Console


# --- brokers calibrate


BUSY_SHARE = 0.2  # of a core, or of the capacity known so far: busier brokers need --force
QUIET_WAIT_S = 3.0  # reports are means over a second: load that has just ended, as of a calibration, still shows
LOOK_S = 0.5

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
            view = await _quiet(console, name, force=force)
            say(f"{name}: measuring for at most {settings.seconds:g} s ...")
            found[name] = await calibration.calibrate(view.url, credentials, settings)
            if apply:
                await console.set_capacity(name, found[name].capacity_bytes_per_s)
    return found


def chosen(state: State, names: list[str]) -> list[str]:
    """The brokers to measure: those named, or all members."""
    for name in names:
        if (view := known(state, name)).state != "member":
            raise UsageError(f"broker {name!r} is {view.state}: calibrate it while it is a member")
    members = sorted(name for name, view in state.brokers.items() if view.state == "member")
    if not members:
        raise UsageError("the cluster has no member to measure: start `nearcast agent` beside a server")
    return list(dict.fromkeys(names)) or members


async def _quiet(console: Console, name: str, *, force: bool) -> BrokerView:
    """The broker, once it carries little load. Raises UsageError if it stays busy."""
    import asyncio

    for _ in range(round(QUIET_WAIT_S / LOOK_S)):
        view = known(await console.overview(timeout_s=ASK_S), name)
        share = busy_share(view)
        if force or (share is not None and share <= BUSY_SHARE):
            return view
        await asyncio.sleep(LOOK_S)
    load = "has sent no report" if share is None else f"is at {share:.0%} of what it can carry"
    raise UsageError(
        f"broker {name!r} {load}: calibrate it at a quiet time, or use --force, which disturbs its clients"
    )


def busy_share(view: BrokerView) -> float | None:
    """How busy the broker is, by its CPU and, if its capacity is known, by that; None without a report."""
    report = view.report
    if report is None:
        return None
    capacity = view.capacity_bytes_per_s
    return max(report.cpu_share, report.output_bytes_per_s / capacity if capacity else 0.0)


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
    show(output, data, BROKER_COLUMNS, [broker_row(name, view) for name, view in sorted(views.items())])


def broker_data(view: BrokerView) -> dict[str, object]:
    return {
        "url": view.url,
        "site": view.site,
        "state": view.state,
        "alive": _alive(view),
        "rented": view.rented,
        "capacity_bytes_per_s": view.capacity_bytes_per_s or None,
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
