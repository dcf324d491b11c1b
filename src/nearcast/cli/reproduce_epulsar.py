"""The commands of `nearcast reproduce` for ePulsar's experiments that run on real servers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.conclusion import AsJson, Out, conclude
from nearcast.cli.shared import Output, OutputOption, run

if TYPE_CHECKING:
    from nearcast.experiments.result import Progress, Result


Minutes = Annotated[float, typer.Option("--minutes", min=0.1, help="How long each policy runs. The paper: 10.")]
RateScale = Annotated[float, typer.Option("--rate-scale", min=1, help="Divide the paper's message rates by this.")]
Policies = Annotated[
    list[str] | None, typer.Option("--policy", help="A policy to run; may be repeated. Default: hash_ring.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="For where everybody is when.")]


class Distances(StrEnum):
    """The same as in nearcast.workloads.mmog, which is slow to import."""

    PAPER = "paper"
    HALVED = "halved"


class Lifetimes(StrEnum):
    """The same as in nearcast.workloads.mmog, which is slow to import."""

    UNIFORM = "uniform"
    EXPONENTIAL = "exponential"


def migration(
    rate: Annotated[float, typer.Option("--rate", min=20, max=200, help="Messages per second of each topic.")] = 20.0,
    topics: Annotated[int, typer.Option("--topics", min=16, help="How many topics move.")] = 128,
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, help="How many moves at a time.")] = 16,
    out: Out = None,
    as_json: AsJson = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Moves with a distant controller: how long clients notice.

    128 topics with one client each move between two brokers, 16 in flight, with 0 to 80 ms between brokers and
    controller. A sequential baseline with look-up is beside it.

    Example: nearcast reproduce epulsar-7 --json
    """

    def experiment(progress: Progress) -> Result:
        from nearcast.experiments.epulsar.migration import MigrationSettings, run_migration

        default = MigrationSettings()
        settings = MigrationSettings(
            rate_per_s=rate,
            topics=topics,
            in_flight=in_flight,
            baseline_topics=min(default.baseline_topics, topics),
            counts=tuple(sorted({min(count, topics) for count in default.counts})),
        )
        return run(lambda: run_migration(settings, progress))

    conclude("epulsar-7", experiment, out, as_json, output)


def swarms(
    minutes: Minutes = 1.0,
    rate_scale: RateScale = 10.0,
    policy: Policies = None,
    seed: Seed = 0,
    stations: Annotated[
        Path | None,
        typer.Option("--stations", help="Base stations as CSV with lat and lon, instead of a made-up city."),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Swarms of drones fly from zone to zone: who stays under 40 ms.

    8 swarms of 8 drones, 4 zones, 50 m/s, 200 messages a second of 1 KB from each drone, divided by --rate-scale.

    Example: nearcast reproduce epulsar-8 --minutes 10 --json
    """

    def experiment(progress: Progress) -> Result:
        from nearcast.experiments.epulsar.end_to_end import HASHING
        from nearcast.experiments.epulsar.swarms import SwarmsSettings, run_swarms
        from nearcast.workloads.uav import Swarms, read_stations

        settings = SwarmsSettings(
            swarms=Swarms(seed=seed),
            seconds=minutes * 60,
            rate_scale=rate_scale,
            policies=tuple(policy or [HASHING]),
        )
        points = None if stations is None else read_stations(stations)
        return run(lambda: run_swarms(settings, progress, stations=points))

    conclude("epulsar-8", experiment, out, as_json, output)


def game(
    minutes: Minutes = 1.0,
    rate_scale: RateScale = 20.0,
    policy: Policies = None,
    seed: Seed = 0,
    distances: Annotated[
        Distances, typer.Option("--distances", help="Round trips taken as one way, as the paper does, or halved.")
    ] = Distances.PAPER,
    lifetimes: Annotated[
        Lifetimes, typer.Option("--lifetimes", help="In a group: 30 to 60 s, or exponential.")
    ] = Lifetimes.UNIFORM,
    matrix: Annotated[
        Path | None, typer.Option("--matrix", help="Round trips in ms as CSV with names, instead of our own table.")
    ] = None,
    cities: Annotated[
        str, typer.Option("--cities", help="Names in that file; the controller is in the first.")
    ] = "NewYork,Chicago,Dallas,LosAngeles,Seattle",
    out: Out = None,
    as_json: AsJson = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Players in five cities change groups: who stays under 100 ms.

    64 players, 300 messages a second of 998 B from each avatar, divided by --rate-scale.

    Example: nearcast reproduce epulsar-9 --minutes 10 --json
    """

    def experiment(progress: Progress) -> Result:
        from nearcast.experiments.epulsar.end_to_end import HASHING
        from nearcast.experiments.epulsar.game import GameSettings, run_game
        from nearcast.workloads import mmog

        played = mmog.Game(
            seed=seed, distances=mmog.Distances(distances.value), lifetimes=mmog.Lifetimes(lifetimes.value)
        )
        settings = GameSettings(
            game=played, seconds=minutes * 60, rate_scale=rate_scale, policies=tuple(policy or [HASHING])
        )
        named = tuple(city.strip() for city in cities.split(","))
        round_trips_ms = mmog.ROUND_TRIPS_MS if matrix is None else mmog.read_round_trips(matrix, named)
        return run(lambda: run_game(settings, progress, round_trips_ms=round_trips_ms))

    conclude("epulsar-9", experiment, out, as_json, output)
