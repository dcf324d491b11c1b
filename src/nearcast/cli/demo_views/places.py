"""Act 3, places: latencies of topics with a bound beside those of their twins, and which broker carries what."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from nearcast.cli.demo_views.look import Look, milliseconds, plain_table
from nearcast.demo.act import Kind
from nearcast.demo.delays import Delays, Series, Side
from nearcast.demo.places import BOUND_S, GAMES, HOMES, SERIES, SITES, PlacesAct, topic_of
from nearcast.testing.network.sites import WORLD

RECENT_S = 2.0  # of the figures
HISTORY_S = 26  # of the sparkline
BARS = "▁▂▃▄▅▆▇█"
FURTHEST_S = 2 * max(WORLD.delays_s.values())  # a message to a broker there and back
DELAY_COLUMNS = ("players", "topics", "p50 ms", "p95 ms", "in bound", "p95 of each second")
BROKER_COLUMNS = ("broker", "topics with a bound", "hashed topics")
WIDTHS = {
    "players": len("blue in tokyo"),
    "topics": max(map(len, Side)),
    "p95 of each second": HISTORY_S,
    "broker": len("paris, blue"),
    "topics with a bound": len(", ".join(f"{group} {' '.join(GAMES)}" for group in HOMES)),
    "hashed topics": len(f"{', '.join(f'{group} {GAMES[0]}' for group in HOMES)}"),
}


class PlacesLook(Look):
    """Both groups with their latencies over time, the brokers, and what the policy decided."""

    name = "act 3, places"
    explanation = (
        f"Two groups of players swap continents. Topics with a bound of {BOUND_S * 1e3:.0f} ms follow;",
        "their hashed twins stay where names put them. Subscribers must not notice.",
        f"One way: {', '.join(f'{a}-{b} {delay_s * 1e3:.0f} ms' for (a, b), delay_s in WORLD.delays_s.items())}.",
    )
    drawn = frozenset({Kind.DECISION, Kind.SCENE})
    printed = drawn

    def __init__(self, act: PlacesAct) -> None:
        super().__init__(act)
        self._places = act

    def clock(self) -> str:
        return f"{self._act.elapsed_s:.0f} s"

    def totals(self) -> str:
        act = self._places
        return f"messages {act.messages:,}, deliveries {act.deliveries:,}, moves {act.moves}"

    def remarks(self) -> list[Text]:
        return [*super().remarks(), Text(self._scene(), style="bold")]

    def _scene(self) -> str:
        act, moments = self._places, self._places.moments
        away = f"{len(act.away())} of {len(HOMES) * len(GAMES)} topics with a bound are not there yet"
        if moments.settled_s is None:
            return f"the players have come: {away}"
        if moments.swapped_s is None:
            return "the topics with a bound are near their players"
        if moments.followed_s is None:
            return f"swapped {act.elapsed_s - moments.swapped_s:.0f} s ago: {away}"
        return f"swapped: the topics with a bound followed in {moments.followed_s - moments.swapped_s:.1f} s"

    def tables(self, gap: int) -> list[Table]:
        return [self._delays(gap), self._brokers(gap)]

    def lines(self) -> list[str]:
        return [
            f"        {self._where(series.group):14}{series.side:13} {_said(self._recent(series))}" for series in SERIES
        ]

    # --- latencies

    def _delays(self, gap: int) -> Table:
        table = plain_table(DELAY_COLUMNS, gap, left=2, widths=WIDTHS)
        table.columns[-1].justify = "left"
        for series in SERIES:
            recent = self._recent(series)
            figures = (_figure(recent.p50_ms), _figure(recent.p95_ms), _share(recent))
            table.add_row(self._where(series.group), series.side, *figures, self._sparkline(series))
        return table

    def _where(self, group: str) -> str:
        return f"{group} in {self._places.sites[group]}"

    def _recent(self, series: Series) -> Delays:
        now_s = self._act.elapsed_s
        return self._places.timeline.delays([series], now_s - RECENT_S, now_s)

    def _sparkline(self, series: Series) -> Text:
        ends_s = int(self._act.elapsed_s)
        begins_s = max(0, ends_s - HISTORY_S)
        seconds = [self._places.timeline.delays([series], at_s, at_s + 1) for at_s in range(begins_s, ends_s)]
        return Text.assemble(*(_bar(delays.p95_ms) for delays in seconds))

    # --- brokers

    def _brokers(self, gap: int) -> Table:
        table = plain_table(BROKER_COLUMNS, gap, left=3, widths=WIDTHS)
        for broker in SITES:
            players = [group for group, site in self._places.sites.items() if site == broker]
            carried = [self._carried(broker, side) for side in Side]
            table.add_row(", ".join([broker, *players]), *carried)
        return table

    def _carried(self, broker: str, side: Side) -> str:
        """The topics of one side, by group."""
        found = []
        for group in HOMES:
            placements = {game: self._act.topics[topic_of(Series(group, side), game)].placement for game in GAMES}
            games = [game for game, placement in placements.items() if placement and broker in placement.brokers]
            found += [" ".join([group, *games])] if games else []
        return ", ".join(found)


def _bar(p95_ms: float | None) -> tuple[str, str]:
    if p95_ms is None:
        return " ", ""
    level = min(len(BARS) - 1, int(p95_ms / 1e3 / FURTHEST_S * len(BARS)))
    return BARS[level], "green" if p95_ms <= BOUND_S * 1e3 else "red"


def _figure(value_ms: float | None) -> str:
    return milliseconds(None if value_ms is None else value_ms / 1e3)


def _share(delays: Delays) -> str:
    return "" if delays.within_share is None else f"{delays.within_share:.0%}"


def _said(delays: Delays) -> str:
    return (
        f"p50 {_figure(delays.p50_ms):>4} ms  p95 {_figure(delays.p95_ms):>4} ms  {_share(delays):>4} within the bound"
    )
