"""Act 4, channels: gateways with the people at them, and the newest notifications."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from nearcast.cli.demo_views.look import Look, plain_table
from nearcast.cli.shared import printable
from nearcast.core.wire.views import GatewayView
from nearcast.demo.act import Kind
from nearcast.demo.channels import ChannelsAct
from nearcast.workloads.emergency.run import Noticed

BAR = 24  # characters of the highest load
COLUMNS = ("gateway", "load", "kB/s", "people", "subscriptions", "shared as", "moving")
NOTIFICATIONS = 4  # shown
WIDTHS = {"gateway": len("gateway"), "load": BAR, "kB/s": len("1234.5")}


class ChannelsLook(Look):
    """Gateways with their subscribers and loads, and the newest notifications."""

    name = "act 4, channels"
    explanation = (
        "People in a city subscribe to emergencies near them. Spark joins the reports with people's positions and",
        "with shelters. Gateways deliver, and people move between gateways. All must get each result exactly once.",
    )
    drawn = frozenset({Kind.DECISION})
    printed = drawn

    def __init__(self, act: ChannelsAct) -> None:
        super().__init__(act)
        self._channels = act

    def clock(self) -> str:
        return f"{self._act.elapsed_s:.0f} s of {self._channels.plan.settings.seconds:.0f} s"

    def totals(self) -> str:
        act = self._channels
        published = act.play.published if act.play is not None else 0
        return f"reports {published:,}, notifications {act.deliveries:,}, people moved {act.moves:,}"

    def tables(self, gap: int) -> list[Table]:
        return [self._gateways(gap), self._notifications(gap)]

    def lines(self) -> list[str]:
        loads = [
            f"{printable(name)} {view.subscribers} people, {_load(view):.1f} kB/s"
            for name, view in sorted(self._channels.gateways.items())
        ]
        shown = [f"        {one.user}: {describe(one)}" for one in self._newest()[-1:]]
        return [f"        gateways: {'; '.join(loads)}", *shown]

    def _gateways(self, gap: int) -> Table:
        table = plain_table(COLUMNS, gap, left=2, widths=WIDTHS)
        views = sorted(self._channels.gateways.items())
        highest = max((_load(view) for _, view in views), default=0.0) or 1.0
        for name, view in views:
            filled = round(BAR * _load(view) / highest)
            bar = Text.assemble(("█" * filled, "green"), ("░" * (BAR - filled), "dim"))
            figures = (f"{_load(view):.1f}", str(view.subscribers), str(view.frontend), str(view.backend))
            table.add_row(printable(name), bar, *figures, str(view.moving or ""))
        return table

    def _notifications(self, gap: int) -> Table:
        table = plain_table(("to", "notification"), gap, left=2, widths={"to": len("u00000")})
        newest = self._newest()
        for one in newest:
            table.add_row(one.user, Text(describe(one), no_wrap=True, overflow="ellipsis"))
        for _ in range(NOTIFICATIONS - len(newest)):
            table.add_row("")
        return table

    def _newest(self) -> list[Noticed]:
        return list(self._channels.play.newest)[-NOTIFICATIONS:] if self._channels.play is not None else []


def describe(one: Noticed) -> str:
    """A notification as text: the newest of its reports, and how many there were."""
    row = one.rows[-1]
    text = f"{row['kind']} in {row['district']}, severity {row['severity']}"
    if "shelter" in row:
        text += f"; {row['shelter']} is near, {row['capacity']} places"
    return text + (f" (and {len(one.rows) - 1} more)" if len(one.rows) > 1 else "")


def _load(view: GatewayView) -> float:
    """F_j in kB/s."""
    return (view.incoming_bytes_per_s + view.outgoing_bytes_per_s) / 1e3
