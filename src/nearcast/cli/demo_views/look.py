"""What all acts look like: a headline, tables and events on a terminal; a few lines elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from rich.console import ConsoleDimensions, Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from nearcast.cli.shared import printable
from nearcast.demo.act import Act, Happening, Kind
from nearcast.testing.load import WatchedTopic, percentile

WIDE = 100  # from this width on, columns are further apart
STYLES = {Kind.KILL: "red", Kind.SCENE: "bold", Kind.SERVER: "green"}


class Look(ABC):
    """How one act looks."""

    name: str
    explanation: tuple[str, ...]
    drawn: frozenset[Kind]  # the events shown on the screen
    printed: frozenset[Kind]  # the events printed where there is none

    def __init__(self, act: Act[Any]) -> None:
        self._act = act

    @abstractmethod
    def clock(self) -> str: ...

    @abstractmethod
    def totals(self) -> str: ...

    @abstractmethod
    def tables(self, gap: int) -> list[Table]:
        """`gap`: columns of space between two columns."""

    @abstractmethod
    def lines(self) -> list[str]:
        """The state, where there is no screen."""

    def remarks(self) -> list[Text]:
        """What to know while looking at the screen."""
        return [Text(line, style="dim") for line in self.explanation]

    def screen(self, size: ConsoleDimensions, note: str = "") -> Group:
        """The whole screen, with as many events as the terminal's height allows."""
        tables = self.tables(2 if size.width >= WIDE else 1)
        head = [self._headline(note), Text(self.totals()), *self.remarks()]
        # The height left over, after an empty line before each table and the events, and a line for the cursor.
        room = size.height - len(head) - sum(table.row_count + 2 for table in tables) - 2
        events = [event for event in self._act.events_since(0) if event.kind in self.drawn]
        parts = [part for table in tables for part in ("", table)]
        return Group(*head, *parts, "", *map(event_line, events[-room:] if room > 0 else ()))

    def _headline(self, note: str) -> Text:
        headline = Text.assemble(("nearcast demo", "bold"), f"  {self.name}: {self.clock()}  ")
        if note:
            return headline.append(note, style="yellow")
        return headline.append("noticed by subscribers: ").append(*self._noticed())

    def _noticed(self) -> tuple[str, str]:
        noticed = self._act.noticed
        return (f"{noticed:,} FAULTS", "red") if noticed else ("nothing", "green")

    def status(self) -> list[str]:
        """The totals and the state as lines."""
        begin = f"{self._act.elapsed_s:4.0f} s  "
        return [f"{begin}{self.totals()}; noticed by subscribers: {self._noticed()[0]}", *self.lines()]


def event_line(event: Happening) -> Text:
    line = f"{event.at_s:4.0f} s  {printable(event.text)}"
    return Text(line, style=STYLES.get(event.kind, "dim"), no_wrap=True, overflow="ellipsis")


# --- tables


def plain_table(columns: Iterable[str], gap: int, *, left: int, widths: dict[str, int]) -> Table:
    """The first `left` columns hold words, the others figures. Widths are fixed, so that nothing jumps."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold underline")
    for number, name in enumerate(columns):
        justify: JustifyMethod = "left" if number < left else "right"
        table.add_column(name, justify=justify, no_wrap=True, min_width=widths.get(name, len(name)))
    return table


def figures(act: Act[Any], topics: Iterable[WatchedTopic]) -> tuple[str, str, str]:
    """Messages per second, p50 and p99 in ms, of the last seconds."""
    latencies_s, per_s = [], 0.0
    for topic in topics:
        recent_s = topic.recent.latencies_s(act.now_s)
        per_s += len(recent_s) / topic.subscribers / act.recent_s
        latencies_s += recent_s
    return f"{per_s:.0f}", milliseconds(percentile(latencies_s, 50)), milliseconds(percentile(latencies_s, 99))


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.0f}"
