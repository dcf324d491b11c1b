"""What `nearcast demo` looks like: a live screen on a terminal, some lines every few seconds elsewhere.

How an act looks is in a file of its own; here is what all of them share.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleDimensions, Group, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nearcast.cli.output import printable
from nearcast.cli.running import say
from nearcast.testbed.act import Act, Happening, Kind
from nearcast.testbed.recent import percentile
from nearcast.testbed.watched import WatchedTopic

DRAW_S = 0.5
EVENTS_S = 1.0  # how often events are printed where there is no screen
LINES_S = 5.0  # and how often the state
WIDE = 100  # columns from which on there is room for more space between them
STYLES = {Kind.KILL: "red", Kind.SCENE: "bold", Kind.SERVER: "green"}


class Look(ABC):
    """How one act looks."""

    name: str
    explanation: tuple[str, ...]
    drawn: frozenset[Kind]  # the events worth a line on the screen
    printed: frozenset[Kind]  # and where there is none

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
        """Everything there is to see, as high as the terminal allows."""
        tables = self.tables(2 if size.width >= WIDE else 1)
        head = [self._headline(note), Text(self.totals()), *self.remarks()]
        # What is left of the height, with an empty line before each table and the events, and a line for the cursor.
        room = size.height - len(head) - sum(table.row_count + 2 for table in tables) - 2
        events = [event for event in self._act.events_since(0) if event.kind in self.drawn]
        parts = [part for table in tables for part in ("", table)]
        return Group(*head, *parts, "", *map(_event, events[-room:] if room > 0 else ()))

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


class View:
    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._note = ""
        self._drawing = False

    def tell(self, step: str) -> None:
        """A step of the start or of the end."""
        self._note = step
        if not self._drawing:
            say(step)

    async def show(self, act: Act[Any], look: Look) -> None:
        """Until it is cancelled."""
        await act.begun.wait()
        self._note = ""
        if self._console.is_terminal:
            await self._draw(look)
        else:
            await self._print(act, look)

    async def _draw(self, look: Look) -> None:
        self._drawing = True
        with Live(console=self._console, auto_refresh=False) as live:
            try:
                while True:
                    live.update(look.screen(self._console.size, self._note), refresh=True)
                    await asyncio.sleep(DRAW_S)
            finally:
                self._note, self._drawing = "", False
                live.update(look.screen(self._console.size), refresh=True)

    async def _print(self, act: Act[Any], look: Look) -> None:
        for line in look.explanation:
            print(line, flush=True)
        shown, due_s = 0, LINES_S
        while True:
            await asyncio.sleep(EVENTS_S)
            fresh, shown = act.events_since(shown), act.happened
            lines = [_event(event).plain for event in fresh if event.kind in look.printed]
            if act.elapsed_s >= due_s:
                due_s += LINES_S
                lines += look.status()
            for line in lines:
                print(line, flush=True)


def _event(event: Happening) -> Text:
    line = f"{event.at_s:4.0f} s  {printable(event.text)}"
    return Text(line, style=STYLES.get(event.kind, "dim"), no_wrap=True, overflow="ellipsis")


# --- tables


def plain_table(columns: Iterable[str], gap: int, *, left: int, widths: dict[str, int]) -> Table:
    """The first `left` columns hold words, the others figures. Widths are fixed: nothing jumps when a word changes."""
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
    return f"{per_s:.0f}", _ms(percentile(latencies_s, 50)), _ms(percentile(latencies_s, 99))


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.0f}"
