"""Figure 9: players in five cities change groups, and what they hear of each other stays under 100 ms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nearcast.experiments.chart import Chart, Colour, Line
from nearcast.experiments.epulsar.end_to_end import (
    BOUNDS,
    HASHING,
    PolicyRun,
    Run,
    charted,
    rows_of,
    run_policies,
)
from nearcast.experiments.result import Progress, Result, silent
from nearcast.workloads.located.play import Play
from nearcast.workloads.located.recording import BUCKET_S
from nearcast.workloads.mmog import ROUND_TRIPS_MS, Game, avatar, homes_of, met_by, mmog_play, server_of

NAME = "epulsar-9"
PLAYER = 0  # the representative one
SHOWN = 4  # buckets in one point of the chart: a second
CHART_MAX_MS = 200.0
COLOURS = (Colour.BLUE, Colour.ORANGE, Colour.GREEN, Colour.PURPLE, Colour.GREY)


class GameSettings(msgspec.Struct, frozen=True, kw_only=True):
    game: Game = Game()
    seconds: float = 60.0
    rate_scale: float = 20.0  # the paper's rates divided by this
    policies: tuple[str, ...] = (HASHING, BOUNDS)


class GameFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    bound_ms: float
    seconds: float
    cities: int
    players: int
    groups: int
    distances: str
    lifetimes: str
    rate_per_s: float  # of each avatar
    rate_scale: float
    payload_bytes: int
    policies: tuple[PolicyRun, ...]


async def run_game(
    settings: GameSettings,
    progress: Progress = silent,
    *,
    round_trips_ms: Mapping[tuple[str, str], float] = ROUND_TRIPS_MS,
) -> Result:
    game = settings.game
    played = msgspec.structs.replace(game, rate_per_s=game.rate_per_s / settings.rate_scale)
    play = mmog_play(played, settings.seconds, round_trips_ms)
    home = homes_of(game, [site.name for site in play.world.sites])[PLAYER]
    runs = await run_policies(play, settings.policies, settings.seconds, progress, watched=server_of(home))
    return report(settings, play, runs)


def report(settings: GameSettings, play: Play, runs: Sequence[Run]) -> Result:
    game = settings.game
    figures = GameFigures(
        bound_ms=play.bound_s * 1e3,
        seconds=settings.seconds,
        cities=len(play.brokers),
        players=game.players,
        groups=game.groups,
        distances=game.distances.value,
        lifetimes=game.lifetimes.value,
        rate_per_s=play.rate_per_s,
        rate_scale=settings.rate_scale,
        payload_bytes=play.payload_bytes,
        policies=tuple(run.figures for run in runs),
    )
    shown = {run.figures.policy: _lines(settings, run) for run in runs}
    panels, series = charted(play, shown, CHART_MAX_MS)
    title = f"What the game server of one player hears of others in its group, {len(play.brokers)} cities"
    rows = (
        *rows_of(figures.policies, play.bound_s),
        ("messages a second of each avatar", f"{play.rate_per_s:g}: the paper's divided by {settings.rate_scale:g}"),
        ("distances, lifetimes", f"{game.distances}, {game.lifetimes}"),
    )
    chart = Chart(title=f"{title} (ePulsar, figure 9)", x_label="seconds", panels=panels)
    return Result(name=NAME, figures=figures, series={"latency": series}, chart=chart, rows=rows)


def _lines(settings: GameSettings, run: Run) -> tuple[Line, ...]:
    """A line for each avatar that the representative player meets, for as long as they share a group."""
    lines: list[Line] = []
    step_s = SHOWN * BUCKET_S
    for met in met_by(settings.game, settings.seconds, PLAYER):
        means_s = run.outcome.watched.means_s(avatar(met.player), SHOWN)
        at = [step for step in range(len(means_s)) if met.from_s <= step * step_s < met.to_s]
        values = [None if (mean_s := means_s[step]) is None else round(mean_s * 1e3, 2) for step in at]
        if any(value is not None for value in values):  # players of the same city hear each other in their game server
            colour = COLOURS[len(lines) % len(COLOURS)]
            dashed = len(lines) // len(COLOURS) % 2 == 1
            lines.append(
                Line(label=avatar(met.player), x=[step * step_s for step in at], y=values, colour=colour, dashed=dashed)
            )
    return tuple(lines)
