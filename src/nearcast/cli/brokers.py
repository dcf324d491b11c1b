"""`nearcast brokers`: the brokers of the cluster, their load, and what they can carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.asking import ASK_S, ask_overview, known
from nearcast.cli.calibrate import calibrate
from nearcast.cli.options import DEFAULT_URL, Output, OutputOption, Url, checked_name, refuse_options_before
from nearcast.cli.output import show
from nearcast.cli.rates import bytes_per_s, megabytes_per_s
from nearcast.cli.running import errors_as_exit_codes, run

if TYPE_CHECKING:
    from nearcast.core.bus import BrokerView, Report

app = typer.Typer(invoke_without_command=True)

COLUMNS = (
    *("broker", "site", "state", "answers", "url", "connections"),
    *("out kB/s", "in kB/s", "capacity MB/s", "load ratio", "CPU %", "memory MB"),
)

Broker = Annotated[str, typer.Argument(metavar="BROKER")]


@app.callback()
def brokers(context: typer.Context, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show the brokers of the cluster, whether they answer, and the load of the last second.

    Example: nearcast brokers --url redis://127.0.0.1:7001
    """
    if context.invoked_subcommand is None:
        _show(run(lambda: ask_overview(url)).brokers, output)
        return
    with errors_as_exit_codes():
        refuse_options_before(context)


app.command("calibrate")(calibrate)


@app.command("capacity")
def capacity(
    broker: Broker,
    rate: Annotated[str, typer.Argument(metavar="BYTES_PER_S", help="For example 125MB, 80MiB or 1Gbit.")],
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say how many bytes per second a broker can send: load ratios are relative to it.

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
    cancel: Annotated[bool, typer.Option("--cancel", help="Call it off: the broker stays.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until the broker has left.")] = True,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="For the whole.")] = 60.0,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move everything away from a broker while messages flow, and let it leave the cluster.

    Example: nearcast brokers drain b2
    """
    view = run(lambda: _drain(url, broker, cancel=cancel, wait=wait, timeout_s=timeout_s))
    _show({broker: view}, output)


async def _drain(url: str, broker: str, *, cancel: bool, wait: bool, timeout_s: float) -> BrokerView:
    from nearcast.runtime.console import Console

    checked_name("broker", broker)
    async with Console(url) as console:
        known(await console.overview(timeout_s=ASK_S), broker)
        return await console.drain(broker, cancel=cancel, wait=wait, timeout_s=timeout_s)


# --- how a broker is shown


def _show(views: dict[str, BrokerView], output: Output) -> None:
    data = {"brokers": {name: broker_data(view) for name, view in views.items()}}
    show(output, data, COLUMNS, [broker_row(name, view) for name, view in sorted(views.items())])


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
    return view.alive and view.state != "dead"  # one that was given up had its last grant a moment before


def load_ratio(view: BrokerView) -> float | None:
    """LR = measured outgoing bandwidth / capacity (Dynamoth, equation 1); None while one of them is not known."""
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
