"""Brokers to measure: members that carry little load, because a measurement disturbs clients, and they it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.cli.shared import ASK_S, known
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.wire.bus import State
    from nearcast.core.wire.views import BrokerView
    from nearcast.runtime.console import Console

BUSY_SHARE = 0.2  # of a core, or of the capacity known so far: busier brokers need --force
QUIET_WAIT_S = 3.0  # reports are means over a second: load that has just ended, as of a calibration, still shows
LOOK_S = 0.5


def chosen(state: State, names: list[str]) -> list[str]:
    """The brokers to measure: those named, or all members."""
    for name in names:
        if (view := known(state, name)).state != "member":
            raise UsageError(f"broker {name!r} is {view.state}: measure it while it is a member")
    members = sorted(name for name, view in state.brokers.items() if view.state == "member")
    if not members:
        raise UsageError("the cluster has no member to measure: start `nearcast agent` beside a server")
    return list(dict.fromkeys(names)) or members


async def quiet(console: Console, name: str, *, force: bool) -> BrokerView:
    """The broker, once it carries little load. Raises UsageError if it stays busy."""
    import asyncio

    for _ in range(round(QUIET_WAIT_S / LOOK_S)):
        view = known(await console.overview(timeout_s=ASK_S), name)
        share = busy_share(view)
        if force or (share is not None and share <= BUSY_SHARE):
            return view
        await asyncio.sleep(LOOK_S)
    load = "has sent no report" if share is None else f"is at {share:.0%} of what it can carry"
    raise UsageError(f"broker {name!r} {load}: measure it at a quiet time, or use --force, which disturbs its clients")


def busy_share(view: BrokerView) -> float | None:
    """How busy the broker is, by its CPU and, if its capacity is known, by that; None without a report."""
    report = view.report
    if report is None:
        return None
    capacity = view.capacity_bytes_per_s
    return max(report.cpu_share, report.output_bytes_per_s / capacity if capacity else 0.0)
