"""What `nearcast demo` looks like: a live screen on a terminal, some lines every few seconds elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rich.console import Console, Group, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nearcast.cli.output import printable
from nearcast.cli.running import say
from nearcast.core.bus import Report
from nearcast.testbed.demo import Demo
from nearcast.testbed.games import SITES, Game, describe, describe_brokers
from nearcast.testbed.recent import percentile
from nearcast.testbed.sites import WORLD

DRAW_S = 0.5
LINES_S = 5.0
WIDE = 100  # columns from which on there is room for more space between them
EXPLANATION = (
    "Each game is a topic, played at the sites in its name, over emulated distances.",
    "Topics move and processes are killed all the time: subscribers must not notice.",
)
WIDTHS = {"mode": len("all_subscribers"), "brokers": len("> paris+virginia")}
TOPIC_COLUMNS = ("topic", "mode", "brokers", "epoch", "msg/s", "p50 ms", "p99 ms", "moves")
BROKER_COLUMNS = ("broker at", "topics", "in kB/s", "out kB/s", "CPU %", *(f"from {site}" for site in SITES))


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

    async def show(self, demo: Demo) -> None:
        """Until it is cancelled."""
        await demo.begun.wait()
        self._note = ""
        if self._console.is_terminal:
            await self._draw(demo)
        else:
            await self._print(demo)

    async def _draw(self, demo: Demo) -> None:
        self._drawing = True
        with Live(console=self._console, auto_refresh=False) as live:
            try:
                while True:
                    live.update(self.screen(demo), refresh=True)
                    await asyncio.sleep(DRAW_S)
            finally:
                self._note = ""
                live.update(self.screen(demo), refresh=True)

    async def _print(self, demo: Demo) -> None:
        for line in EXPLANATION:
            print(line)
        shown = 0.0
        while True:
            await asyncio.sleep(LINES_S)
            kills = [event for event in demo.events if event.kill and event.at_s > shown]
            shown = demo.elapsed_s
            for event in kills:
                print(f"{event.at_s:4.0f} s  {event.text}")
            print(f"{demo.elapsed_s:4.0f} s  {_totals(demo)}; noticed by subscribers: {_noticed(demo)}")
            for topic, game in demo.games.items():
                print(f"        {_line(demo, topic, game)}", flush=True)

    def screen(self, demo: Demo) -> Group:
        """Everything there is to see, as high as the terminal allows."""
        size = self._console.size
        gap = 2 if size.width >= WIDE else 1
        head = [_title(demo, self._note), Text(_totals(demo)), *(Text(line, style="dim") for line in EXPLANATION)]
        tables = (_topic_table(demo, gap), _broker_table(demo, gap))
        # What is left of the height, after two empty lines, the tables' headers, and a line for the cursor.
        room = size.height - len(head) - len(demo.games) - len(SITES) - 7
        events = [_event(demo, number) for number in range(min(room, len(demo.events)), 0, -1)]
        return Group(*head, "", tables[0], "", tables[1], "", *events)


def _title(demo: Demo, note: str) -> Text:
    seconds = min(demo.elapsed_s, demo.plan.seconds)
    title = Text.assemble(("nearcast demo", "bold"), f"  {seconds:.0f} of {demo.plan.seconds:.0f} s  ")
    if note:
        return title.append(note, style="yellow")
    return title.append("noticed by subscribers: ").append(_noticed(demo), style="red" if demo.noticed else "green")


def _totals(demo: Demo) -> str:
    kills = demo.agent_kills + demo.controller_kills
    return f"messages {demo.messages:,}, deliveries {demo.deliveries:,}, moves {demo.moves}, kills {kills}"


def _noticed(demo: Demo) -> str:
    return f"{demo.noticed:,} FAULTS" if demo.noticed else "nothing"


# --- topics


def _topic_table(demo: Demo, gap: int) -> Table:
    table = _table(TOPIC_COLUMNS, gap, left=3)
    for topic, game in demo.games.items():
        style = "yellow" if game.target is not None else ""
        table.add_row(Text(printable(topic)), *_placed(game), *_figures(demo, [game]), str(game.moves), style=style)
    table.add_row("all", "", "", "", *_figures(demo, demo.games.values()), str(demo.moves), style="bold")
    return table


def _placed(game: Game) -> tuple[str, str, str]:
    """Where it is; while it is being moved, where it goes."""
    placement = game.placement
    if placement is None:
        return "", "", ""
    mode, brokers = game.target or (placement.mode, placement.brokers)
    arrow = "" if game.target is None else "> "
    return mode, arrow + describe_brokers(brokers), str(placement.epoch)


def _figures(demo: Demo, games: Iterable[Game]) -> tuple[str, str, str]:
    """Messages per second, p50 and p99 in ms, of the last seconds."""
    latencies_s, per_s = [], 0.0
    for game in games:
        recent_s = game.recent.latencies_s(demo.now_s)
        per_s += len(recent_s) / game.subscribers / demo.recent_s
        latencies_s += recent_s
    return f"{per_s:.0f}", _ms(percentile(latencies_s, 50)), _ms(percentile(latencies_s, 99))


def _line(demo: Demo, topic: str, game: Game) -> str:
    per_s, p50_ms, p99_ms = _figures(demo, [game])
    place = describe(game.placement) if game.placement is not None else ""
    figures = f"{per_s:>4}/s  p50 {p50_ms:>4} ms  p99 {p99_ms:>4} ms  {game.moves:>3} moves"
    return f"{printable(topic):14}{place:37}{figures}"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.0f}"


# --- brokers


def _broker_table(demo: Demo, gap: int) -> Table:
    table = _table(BROKER_COLUMNS, gap, left=1)
    for broker in SITES:
        view = demo.brokers.get(broker)
        carried = [game for game in demo.games.values() if game.placement and broker in game.placement.brokers]
        load = _load(view.report if view is not None else None)
        table.add_row(broker, str(len(carried)), *load, *_round_trips(broker))
    return table


def _load(report: Report | None) -> tuple[str, str, str]:
    if report is None:
        return "", "", ""
    return (
        f"{report.input_bytes_per_s / 1e3:.1f}",
        f"{report.output_bytes_per_s / 1e3:.1f}",
        f"{report.cpu_share * 100:.1f}",
    )


def _round_trips(broker: str) -> list[str]:
    return [f"{WORLD.delay_s(site, broker) * 2e3:.0f} ms" for site in SITES]


# --- both


def _table(columns: tuple[str, ...], gap: int, *, left: int) -> Table:
    """The first `left` columns hold words, the others figures. Widths are fixed: nothing jumps when a word changes."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold underline")
    for number, name in enumerate(columns):
        justify: JustifyMethod = "left" if number < left else "right"
        table.add_column(name, justify=justify, no_wrap=True, min_width=WIDTHS.get(name, len(name)))
    return table


def _event(demo: Demo, back: int) -> Text:
    event = demo.events[-back]
    style = "red" if event.kill else "dim"
    return Text(f"{event.at_s:4.0f} s  {event.text}", style=style, no_wrap=True, overflow="ellipsis")
