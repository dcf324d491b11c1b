"""What `nearcast demo` looks like: a live screen on a terminal, a few lines every few seconds elsewhere."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleDimensions, Group, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nearcast.cli.brokers import load_ratio
from nearcast.cli.shared import printable, say
from nearcast.core.model.journal import BrokerState
from nearcast.core.model.placement import Mode
from nearcast.core.model.reports import Report
from nearcast.core.wire.views import BrokerView, GatewayView
from nearcast.demo.act import Act, Happening, Kind
from nearcast.demo.channels import ChannelsAct
from nearcast.demo.moves import SITES, MovesAct, describe, describe_brokers
from nearcast.demo.policy import BROKERS_MAX, LR_HIGH, LR_SAFE, PolicyAct
from nearcast.testing.load import WatchedTopic, percentile
from nearcast.testing.network.sites import WORLD
from nearcast.workloads.emergency.run import Noticed

DRAW_S = 0.5
EVENTS_S, LINES_S = 1.0, 5.0  # how often events, and the state, are printed where there is no screen
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
        """Show a step of the start or of the end."""
        self._note = step
        if not self._drawing:
            say(step)

    async def show(self, act: Act[Any], look: Look) -> None:
        """Runs until cancelled."""
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
    return f"{per_s:.0f}", _ms(percentile(latencies_s, 50)), _ms(percentile(latencies_s, 99))


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.0f}"


# --- the third act


CHANNELS_BAR = 24  # characters of the highest load
COLUMNS = ("gateway", "load", "kB/s", "people", "subscriptions", "shared as", "moving")
NOTIFICATIONS = 4  # shown
CHANNELS_WIDTHS = {"gateway": len("gateway"), "load": CHANNELS_BAR, "kB/s": len("1234.5")}


class ChannelsLook(Look):
    """Gateways with their subscribers and loads, and the newest notifications."""

    name = "act 3, channels"
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
            f"{printable(name)} {view.subscribers} people, {_channels_load(view):.1f} kB/s"
            for name, view in sorted(self._channels.gateways.items())
        ]
        shown = [f"        {one.user}: {describe_channels(one)}" for one in self._newest()[-1:]]
        return [f"        gateways: {'; '.join(loads)}", *shown]

    def _gateways(self, gap: int) -> Table:
        table = plain_table(COLUMNS, gap, left=2, widths=CHANNELS_WIDTHS)
        views = sorted(self._channels.gateways.items())
        highest = max((_channels_load(view) for _, view in views), default=0.0) or 1.0
        for name, view in views:
            filled = round(CHANNELS_BAR * _channels_load(view) / highest)
            bar = Text.assemble(("█" * filled, "green"), ("░" * (CHANNELS_BAR - filled), "dim"))
            figures = (f"{_channels_load(view):.1f}", str(view.subscribers), str(view.frontend), str(view.backend))
            table.add_row(printable(name), bar, *figures, str(view.moving or ""))
        return table

    def _notifications(self, gap: int) -> Table:
        table = plain_table(("to", "notification"), gap, left=2, widths={"to": len("u00000")})
        newest = self._newest()
        for one in newest:
            table.add_row(one.user, Text(describe_channels(one), no_wrap=True, overflow="ellipsis"))
        for _ in range(NOTIFICATIONS - len(newest)):
            table.add_row("")
        return table

    def _newest(self) -> list[Noticed]:
        return list(self._channels.play.newest)[-NOTIFICATIONS:] if self._channels.play is not None else []


def describe_channels(one: Noticed) -> str:
    """A notification as text: the newest of its reports, and how many there were."""
    row = one.rows[-1]
    text = f"{row['kind']} in {row['district']}, severity {row['severity']}"
    if "shelter" in row:
        text += f"; {row['shelter']} is near, {row['capacity']} places"
    return text + (f" (and {len(one.rows) - 1} more)" if len(one.rows) > 1 else "")


def _channels_load(view: GatewayView) -> float:
    """F_j in kB/s."""
    return (view.incoming_bytes_per_s + view.outgoing_bytes_per_s) / 1e3


# --- the first act


MOVES_WIDTHS = {"mode": len("all_subscribers"), "brokers": len("> paris+virginia")}
MOVES_TOPIC_COLUMNS = ("topic", "mode", "brokers", "epoch", "msg/s", "p50 ms", "p99 ms", "moves")
MOVES_BROKER_COLUMNS = ("broker at", "topics", "in kB/s", "out kB/s", "CPU %", *(f"from {site}" for site in SITES))


class MovesLook(Look):
    """Games, where their topics are, and the brokers at their sites."""

    name = "act 1, moves"
    explanation = (
        "Each game is a topic, played at the sites in its name, over emulated distances.",
        "Topics keep moving, and processes are killed. Subscribers must not notice.",
    )
    drawn = frozenset({Kind.KILL, Kind.MOVE})
    printed = frozenset({Kind.KILL})

    def __init__(self, act: MovesAct) -> None:
        super().__init__(act)
        self._moves = act

    def clock(self) -> str:
        seconds = self._moves.plan.seconds
        return f"{min(self._act.elapsed_s, seconds):.0f} of {seconds:.0f} s"

    def totals(self) -> str:
        act = self._moves
        kills = act.agent_kills + act.controller_kills
        return f"messages {act.messages:,}, deliveries {act.deliveries:,}, moves {act.moves}, kills {kills}"

    def tables(self, gap: int) -> list[Table]:
        return [self._topics(gap), self._brokers(gap)]

    def lines(self) -> list[str]:
        return [f"        {self._line(topic, game)}" for topic, game in self._act.topics.items()]

    def _line(self, topic: str, game: WatchedTopic) -> str:
        per_s, p50_ms, p99_ms = figures(self._act, [game])
        place = describe(game.placement) if game.placement is not None else ""
        measured = f"{per_s:>4}/s  p50 {p50_ms:>4} ms  p99 {p99_ms:>4} ms  {game.moves:>3} moves"
        return f"{printable(topic):14}{place:37}{measured}"

    # --- topics

    def _topics(self, gap: int) -> Table:
        table, act = plain_table(MOVES_TOPIC_COLUMNS, gap, left=3, widths=MOVES_WIDTHS), self._act
        for topic, game in act.topics.items():
            style = "yellow" if game.target is not None else ""
            table.add_row(Text(printable(topic)), *_placed(game), *figures(act, [game]), str(game.moves), style=style)
        table.add_row("all", "", "", "", *figures(act, act.topics.values()), str(act.moves), style="bold")
        return table

    # --- brokers

    def _brokers(self, gap: int) -> Table:
        table = plain_table(MOVES_BROKER_COLUMNS, gap, left=1, widths=MOVES_WIDTHS)
        for broker in SITES:
            view = self._act.brokers.get(broker)
            load = _moves_load(view.report if view is not None else None)
            table.add_row(broker, str(self._act.carried(broker)), *load, *_round_trips(broker))
        return table


def _placed(game: WatchedTopic) -> tuple[str, str, str]:
    """Where it is or, while it moves, where it is going."""
    if game.placement is None:
        return "", "", ""
    shown, arrow = (game.placement, "") if game.target is None else (game.target, "> ")
    return shown.mode, arrow + describe_brokers(shown.brokers), str(game.placement.epoch)


def _moves_load(report: Report | None) -> tuple[str, str, str]:
    if report is None:
        return "", "", ""
    return (
        f"{report.input_bytes_per_s / 1e3:.1f}",
        f"{report.output_bytes_per_s / 1e3:.1f}",
        f"{report.cpu_share * 100:.1f}",
    )


def _round_trips(broker: str) -> list[str]:
    return [f"{WORLD.delay_s(site, broker) * 2e3:.0f} ms" for site in SITES]


# --- the second act


POLICY_BAR = 20  # characters of a load ratio of 1
POLICY_BROKER_COLUMNS = ("broker", "state", "load ratio", "", "out kB/s", "topics")
POLICY_TOPIC_COLUMNS = ("topic", "mode", "brokers", "msg/s", "subs", "p99 ms")
POLICY_WIDTHS = {
    "broker": len("rented-1"),
    "state": len("leaving"),
    "load ratio": POLICY_BAR,
    "": len("1.23"),
    "mode": len("all_subscribers"),
    "brokers": len("> b1+rented-1+rented-2+rented-3"),
}


class PolicyLook(Look):
    """Brokers with their load ratios, replicated topics, and what the policy decided."""

    name = "act 2, policy"
    explanation = (
        f"People come and go. A load ratio above {LR_HIGH:g} is too much for a server: the policy adds",
        "servers and replicates hot topics, and later undoes both. Subscribers must not notice.",
    )
    drawn = frozenset({Kind.KILL, Kind.DECISION, Kind.SERVER})
    printed = drawn | {Kind.SCENE}

    def __init__(self, act: PolicyAct) -> None:
        super().__init__(act)
        self._policy = act

    def clock(self) -> str:
        return f"{self._act.elapsed_s:.0f} s"

    def totals(self) -> str:
        act = self._policy
        return (
            f"messages {act.messages:,}, deliveries {act.deliveries:,}, servers +{act.servers_added} "
            f"-{act.servers_removed}, replicated {act.topics_replicated}, collapsed {act.topics_collapsed}"
        )

    def remarks(self) -> list[Text]:
        explanation = f"Above a load ratio of {LR_HIGH:g} the policy acts. Subscribers must not notice."
        return [Text(explanation, style="dim"), Text(self._policy.scene.title, style="bold")]

    def tables(self, gap: int) -> list[Table]:
        return [self._brokers(gap), self._topics(gap)]

    def lines(self) -> list[str]:
        loads = [f"{printable(name)} {ratio}" for name, view in self._shown() if (ratio := _ratio(view))]
        places = [f"{printable(topic)} {_place(watched)}" for topic, watched in self._act.topics.items()]
        return [f"        load ratios: {', '.join(loads)}", f"        topics: {', '.join(places)}"]

    # --- brokers

    def _shown(self) -> list[tuple[str, BrokerView]]:
        """All brokers, including those that have left."""
        return sorted(self._act.brokers.items())[:BROKERS_MAX]

    def _brokers(self, gap: int) -> Table:
        table = plain_table(POLICY_BROKER_COLUMNS, gap, left=3, widths=POLICY_WIDTHS)
        shown = self._shown()
        for name, view in shown:
            left = view.state == BrokerState.LEFT
            report = view.report if not left else None
            load = f"{report.output_bytes_per_s / 1e3:.0f}" if report is not None else ""
            topics = "" if left else str(self._act.carried(name))
            table.add_row(
                printable(name), view.state, _bar(view), _ratio(view), load, topics, style="dim" if left else ""
            )
        for _ in range(BROKERS_MAX - len(shown)):  # room for more brokers, so that nothing below jumps
            table.add_row("")
        return table

    # --- topics

    def _topics(self, gap: int) -> Table:
        table = plain_table(POLICY_TOPIC_COLUMNS, gap, left=3, widths=POLICY_WIDTHS)
        for topic, watched in self._act.topics.items():
            per_s, _, p99_ms = figures(self._act, [watched])
            subscribers = str(self._policy.subscribers(topic))
            row = (Text(printable(topic)), _mode(watched), _place(watched), per_s, subscribers, p99_ms)
            table.add_row(*row, style=_topic_style(watched))
        return table


def _bar(view: BrokerView) -> Text:
    ratio = None if view.state == BrokerState.LEFT else load_ratio(view)
    if ratio is None:
        return Text("")
    filled = min(POLICY_BAR, round(ratio * POLICY_BAR))
    style = "red" if ratio >= LR_HIGH else "yellow" if ratio >= LR_SAFE else "green"
    return Text.assemble(("█" * filled, style), ("░" * (POLICY_BAR - filled), "dim"))


def _ratio(view: BrokerView) -> str:
    ratio = load_ratio(view)
    return "" if ratio is None or view.state == BrokerState.LEFT else f"{ratio:.2f}"


def _mode(watched: WatchedTopic) -> str:
    return watched.placement.mode if watched.placement is not None else ""


def _place(watched: WatchedTopic) -> str:
    """Where it is or, while it moves, where it is going."""
    if watched.target is not None:
        return f"> {'+'.join(watched.target.brokers)}"
    return "+".join(watched.placement.brokers) if watched.placement is not None else ""


def _topic_style(watched: WatchedTopic) -> str:
    if watched.target is not None:
        return "yellow"
    return "bold" if watched.placement is not None and watched.placement.mode is not Mode.SINGLE else ""
