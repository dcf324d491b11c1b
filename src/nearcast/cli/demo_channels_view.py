"""How the demo's third act looks: gateways with their subscribers and loads, and the newest notifications."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from nearcast.cli.demo_view import Look, plain_table
from nearcast.cli.output import printable
from nearcast.core.bus import GatewayView
from nearcast.testbed.act import Kind
from nearcast.testbed.channels_act import ChannelsAct
from nearcast.testbed.emergency import Noticed

BAR = 24  # characters of the highest load
COLUMNS = ("gateway", "load", "kB/s", "people", "subscriptions", "shared as", "moving")
NOTIFICATIONS = 4  # shown
WIDTHS = {"gateway": len("gateway"), "load": BAR, "kB/s": len("1234.5")}


class ChannelsLook(Look):
    name = "act 3, channels"
    explanation = (
        "People of a city ask for emergencies near them. Spark joins the reports with where they are and with",
        "shelters; gateways deliver, and people move between gateways. Each must get what it is owed, once.",
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
    """A notification in words: the newest of its reports, and how many there were."""
    row = one.rows[-1]
    text = f"{row['kind']} in {row['district']}, severity {row['severity']}"
    if "shelter" in row:
        text += f"; {row['shelter']} is near, {row['capacity']} places"
    return text + (f" (and {len(one.rows) - 1} more)" if len(one.rows) > 1 else "")


def _load(view: GatewayView) -> float:
    """F_j in kB/s."""
    return (view.incoming_bytes_per_s + view.outgoing_bytes_per_s) / 1e3
