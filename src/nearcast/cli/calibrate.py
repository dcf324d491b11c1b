"""`nearcast brokers calibrate`: measure how many bytes per second brokers can send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.asking import ASK_S, known
from nearcast.cli.options import DEFAULT_URL, Output, OutputOption, Url
from nearcast.cli.output import show
from nearcast.cli.rates import megabytes_per_s
from nearcast.cli.running import run, say
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.bus import BrokerView, State
    from nearcast.runtime.calibration import Calibration, CalibrationSettings
    from nearcast.runtime.console import Console

BUSY_SHARE = 0.2  # of a core, or of the capacity known so far: a broker that carries more is not disturbed unasked
QUIET_WAIT_S = 3.0  # a report is the mean of a second: wait for what has just ended, a calibration for example
LOOK_S = 0.5

COLUMNS = (
    *("broker", "capacity MB/s", "messages/s", "p99 ms", "CPU %"),
    *("peak MB/s", "peak CPU %", "measuring CPU %", "limited by"),
)


def calibrate(
    brokers: Annotated[list[str] | None, typer.Argument(metavar="BROKER", help="Default: all members.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1, max=60, help="Full load on each, at most.")] = 5.0,
    payload_bytes: Annotated[int, typer.Option("--payload-bytes", min=1, max=1 << 20, help="Of one message.")] = 200,
    subscribers: Annotated[int, typer.Option("--subscribers", min=1, max=1000, help="Connections to use.")] = 32,
    apply: Annotated[bool, typer.Option("--apply/--dry-run", help="Make what was found the capacity.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also brokers that carry load.")] = False,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Measure how many bytes per second brokers can send, one after the other, and print it.

    Each is put under full load for some seconds, on a private channel. Run it where the clients are, or beside the
    server: what is measured is the server and the way to it. Load ratios are relative to the capacity found.

    Example: nearcast brokers calibrate b1 b2 --apply
    """
    from nearcast.runtime.calibration import CalibrationSettings

    settings = CalibrationSettings(seconds=seconds, payload_bytes=payload_bytes, subscribers=subscribers)
    found = run(lambda: _calibrate(url, brokers or [], settings, apply=apply, force=force))
    show(output, {"applied": apply, "brokers": found}, COLUMNS, [_row(name, one) for name, one in found.items()])
    for name, one in found.items():
        if not apply:
            rate = f"{one.capacity_bytes_per_s / 1e6:.1f}MB"
            say(f"not applied: repeat with --apply, or run: nearcast brokers capacity {name} {rate}")


async def _calibrate(
    url: str, names: list[str], settings: CalibrationSettings, *, apply: bool, force: bool
) -> dict[str, Calibration]:
    from nearcast.runtime import calibration
    from nearcast.runtime.connection import parse_url
    from nearcast.runtime.console import Console

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
    """The broker, once it carries little; or a refusal."""
    import asyncio

    for _ in range(round(QUIET_WAIT_S / LOOK_S)):
        view = known(await console.overview(timeout_s=ASK_S), name)
        share = busy_share(view)
        if force or (share is not None and share <= BUSY_SHARE):
            return view
        await asyncio.sleep(LOOK_S)
    load = "has sent no report" if share is None else f"is at {share:.0%} of what it can carry"
    raise UsageError(f"broker {name!r} {load}: calibrate it at a quiet time, or disturb its clients with --force")


def busy_share(view: BrokerView) -> float | None:
    """How busy the broker is, as far as is known: by its processor, and by its capacity if it has one."""
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
