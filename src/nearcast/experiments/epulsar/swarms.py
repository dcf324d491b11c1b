"""Figure 8: swarms of drones fly from zone to zone, and latency is back under 40 ms when their topics have followed."""

from __future__ import annotations

from collections.abc import Sequence

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
from nearcast.workloads.uav import Points, Swarms, uav_play

NAME = "epulsar-8"
SHOWN = 4  # buckets in one point of the chart: a second
CHART_MAX_MS = 80.0
COLOURS = (Colour.BLUE, Colour.ORANGE, Colour.GREEN, Colour.PURPLE)


class SwarmsSettings(msgspec.Struct, frozen=True, kw_only=True):
    swarms: Swarms = Swarms()
    seconds: float = 60.0
    rate_scale: float = 10.0  # the paper's rates divided by this
    policies: tuple[str, ...] = (HASHING, BOUNDS)


class SwarmsFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    bound_ms: float
    seconds: float
    swarms: int
    drones: int
    zones: int
    zone_changes: int
    rate_per_s: float  # of each drone
    rate_scale: float
    payload_bytes: int
    policies: tuple[PolicyRun, ...]


async def run_swarms(
    settings: SwarmsSettings,
    progress: Progress = silent,
    *,
    stations: Points | None = None,
) -> Result:
    swarms = settings.swarms
    flown = msgspec.structs.replace(swarms, rate_per_s=swarms.rate_per_s / settings.rate_scale)
    play = uav_play(flown, settings.seconds, stations)
    runs = await run_policies(play, settings.policies, settings.seconds, progress)
    return report(settings, play, runs)


def report(settings: SwarmsSettings, play: Play, runs: Sequence[Run]) -> Result:
    figures = SwarmsFigures(
        bound_ms=play.bound_s * 1e3,
        seconds=settings.seconds,
        swarms=settings.swarms.swarms,
        drones=len(play.clients),
        zones=settings.swarms.zones,
        zone_changes=len(play.changes),
        rate_per_s=play.rate_per_s,
        rate_scale=settings.rate_scale,
        payload_bytes=play.payload_bytes,
        policies=tuple(run.figures for run in runs),
    )
    shown = {run.figures.policy: _lines(play, run) for run in runs}
    panels, series = charted(play, shown, CHART_MAX_MS)
    title = f"{len(play.endpoints)} swarms over {settings.swarms.zones} zones: latency of one topic each"
    rows = (
        *rows_of(figures.policies, play.bound_s),
        ("changes of zone", str(figures.zone_changes)),
        ("messages a second of each drone", f"{play.rate_per_s:g}: the paper's divided by {settings.rate_scale:g}"),
    )
    chart = Chart(title=f"{title} (ePulsar, figure 8)", x_label="seconds", panels=panels)
    return Result(
        name=NAME, figures=figures, series={"latency": series, "changes": play.changes}, chart=chart, rows=rows
    )


def _lines(play: Play, run: Run) -> tuple[Line, ...]:
    """A representative topic of each swarm, as in the paper."""
    lines = []
    for number, endpoint in enumerate(play.endpoints):
        topic = play.topics_of(endpoint)[-1]
        means_s = run.outcome.recording.means_s(topic, SHOWN)
        lines.append(
            Line(
                label=endpoint,
                x=[step * SHOWN * BUCKET_S for step in range(len(means_s))],
                y=[None if mean_s is None else round(mean_s * 1e3, 2) for mean_s in means_s],
                colour=COLOURS[number % len(COLOURS)],
                dashed=number >= len(COLOURS),
            )
        )
    return tuple(lines)
