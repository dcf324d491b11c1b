"""Act 1, moves: games, where their topics are, and the brokers at their sites."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from nearcast.cli.demo_views.look import Look, figures, plain_table
from nearcast.cli.shared import printable
from nearcast.core.model.reports import Report
from nearcast.demo.act import Kind
from nearcast.demo.moves import SITES, MovesAct, describe, describe_brokers
from nearcast.testing.load import WatchedTopic
from nearcast.testing.network.sites import WORLD

WIDTHS = {"mode": len("all_subscribers"), "brokers": len("> paris+virginia")}
TOPIC_COLUMNS = ("topic", "mode", "brokers", "epoch", "msg/s", "p50 ms", "p99 ms", "moves")
BROKER_COLUMNS = ("broker at", "topics", "in kB/s", "out kB/s", "CPU %", *(f"from {site}" for site in SITES))


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
        table, act = plain_table(TOPIC_COLUMNS, gap, left=3, widths=WIDTHS), self._act
        for topic, game in act.topics.items():
            style = "yellow" if game.target is not None else ""
            table.add_row(Text(printable(topic)), *_placed(game), *figures(act, [game]), str(game.moves), style=style)
        table.add_row("all", "", "", "", *figures(act, act.topics.values()), str(act.moves), style="bold")
        return table

    # --- brokers

    def _brokers(self, gap: int) -> Table:
        table = plain_table(BROKER_COLUMNS, gap, left=1, widths=WIDTHS)
        for broker in SITES:
            view = self._act.brokers.get(broker)
            load = _load(view.report if view is not None else None)
            table.add_row(broker, str(self._act.carried(broker)), *load, *_round_trips(broker))
        return table


def _placed(game: WatchedTopic) -> tuple[str, str, str]:
    """Where it is or, while it moves, where it is going."""
    if game.placement is None:
        return "", "", ""
    shown, arrow = (game.placement, "") if game.target is None else (game.target, "> ")
    return shown.mode, arrow + describe_brokers(shown.brokers), str(game.placement.epoch)


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
