"""`nearcast brokers`: the brokers of the cluster and their load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.cli.asking import ask_state
from nearcast.cli.options import DEFAULT_URL, Output, OutputOption, Url
from nearcast.cli.output import show
from nearcast.cli.running import run

if TYPE_CHECKING:
    from nearcast.core.bus import BrokerView, Report

COLUMNS = ("broker", "site", "state", "answers", "url", "connections", "out kB/s", "in kB/s", "CPU %", "memory MB")


def brokers(url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show the brokers of the cluster, whether they answer, and the load of the last second.

    Example: nearcast brokers --url redis://127.0.0.1:7001
    """
    views = run(lambda: ask_state(url)).brokers
    data = {"brokers": {name: _data(view) for name, view in views.items()}}
    show(output, data, COLUMNS, [_row(name, view) for name, view in sorted(views.items())])


def _data(view: BrokerView) -> dict[str, object]:
    load = _load(view.report) if view.report is not None else None
    return {"url": view.url, "site": view.site, "state": view.state, "alive": _alive(view), "load": load}


def _alive(view: BrokerView) -> bool:
    return view.alive and view.state != "dead"  # one that was given up had its last grant a moment before


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


def _row(name: str, view: BrokerView) -> tuple[str, ...]:
    who = (name, view.site, view.state, "yes" if _alive(view) else "no", view.url)
    report = view.report
    if report is None:
        return (*who, "", "", "", "", "")
    return (
        *who,
        str(report.connections),
        f"{report.output_bytes_per_s / 1e3:.1f}",
        f"{report.input_bytes_per_s / 1e3:.1f}",
        f"{report.cpu_share * 100:.0f}",
        f"{report.memory_bytes / 1e6:.1f}",
    )
