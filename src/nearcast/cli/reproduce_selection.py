"""The commands of `nearcast reproduce` for ePulsar's experiments that are computed: figures 3 to 6."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.conclusion import AsJson, Out, conclude
from nearcast.cli.shared import Output, OutputOption

if TYPE_CHECKING:
    from nearcast.experiments.epulsar.placements import Engine
    from nearcast.experiments.result import Progress, Result


class EngineName(StrEnum):
    LOCAL = "local"
    SPARK = "spark"


PLACEMENTS = 1000  # a test compares it with the experiment's, which is slow to import

Seed = Annotated[int, typer.Option("--seed", min=0, help="For everything that is random.")]
Placements = Annotated[int, typer.Option("--placements", min=1, help="How often clients are placed at random.")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Processes. Default: one per core.")]
OnEngine = Annotated[EngineName, typer.Option("--engine", help="Where it is computed; the figures are the same.")]


def accuracy(seed: Seed = 0, out: Out = None, as_json: AsJson = False, output: OutputOption = Output.TABLE) -> None:
    """How exact network coordinates are on a star.

    2 to 128 nodes with equal links, 20 to 160 ms of round trip.

    Example: nearcast reproduce epulsar-3 --json
    """

    def experiment(progress: Progress) -> Result:
        from nearcast.experiments.epulsar.accuracy import run_accuracy

        return run_accuracy(seed, progress)

    conclude("epulsar-3", experiment, out, as_json, output)


def cities(
    matrix: Annotated[
        Path | None, typer.Option("--matrix", help="Round trips between cities in ms as CSV. Default: generated.")
    ] = None,
    placements: Placements = PLACEMENTS,
    seed: Seed = 0,
    workers: Workers = None,
    engine: OnEngine = EngineName.LOCAL,
    out: Out = None,
    as_json: AsJson = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Broker selection for a game in cities.

    1,024 players in 128 groups. Centroids, all pairs and the best eight brokers, beside hashing: which pairs miss
    100 ms.

    Example: nearcast reproduce epulsar-4 --placements 100 --json
    """

    def experiment(progress: Progress) -> Result:
        from nearcast.experiments.epulsar.broker_selection import MMOG_BOUND_S, Selection, run_cities
        from nearcast.experiments.epulsar.topology import city_matrix

        names, rtt_s = city_matrix(matrix, seed)
        selection = Selection(
            name="epulsar-4",
            title=f"epulsar-4: broker selection for 1,024 players, {placements:,} placements",
            x_label="cities",
            bound_s=MMOG_BOUND_S,
            source=matrix.name if matrix else "generated",
            seed=seed,
            placements=placements,
        )
        with _opened(engine, workers) as chosen:
            return run_cities(names, rtt_s, selection, chosen, progress)

    conclude("epulsar-4", experiment, out, as_json, output)


def zones(
    stations: Annotated[
        Path | None, typer.Option("--stations", help="Base stations as CSV with lat and lon. Default: generated.")
    ] = None,
    placements: Placements = PLACEMENTS,
    seed: Seed = 0,
    workers: Workers = None,
    engine: OnEngine = EngineName.LOCAL,
    out: Out = None,
    as_json: AsJson = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Broker selection for swarms of drones over zones.

    16 swarms of 8, 2 to 10 zones. Centroids, all pairs and the best eight brokers, beside hashing: which pairs miss
    40 ms.

    Example: nearcast reproduce epulsar-5 --json
    """

    def experiment(progress: Progress) -> Result:
        from nearcast.experiments.epulsar.broker_selection import UAV_BOUND_S, Selection, run_zones
        from nearcast.workloads.uav import generated_stations, read_stations

        places = generated_stations(seed) if stations is None else read_stations(stations)
        selection = Selection(
            name="epulsar-5",
            title=f"epulsar-5: broker selection for 16 swarms of drones, {placements:,} placements",
            x_label="zones",
            bound_s=UAV_BOUND_S,
            source=stations.name if stations else "generated",
            seed=seed,
            placements=placements,
        )
        with _opened(engine, workers) as chosen:
            return run_zones(places, selection, chosen, progress)

    conclude("epulsar-5", experiment, out, as_json, output)


def monitoring(seed: Seed = 0, out: Out = None, as_json: AsJson = False, output: OutputOption = Output.TABLE) -> None:
    """What it costs to say where a topic's clients are.

    Bytes of one broker's reports, by topics and clients per topic.

    Example: nearcast reproduce epulsar-6 --json
    """

    def experiment(progress: Progress) -> Result:
        from nearcast.experiments.epulsar.monitoring import run_monitoring

        return run_monitoring(seed, progress)

    conclude("epulsar-6", experiment, out, as_json, output)


@contextlib.contextmanager
def _opened(name: EngineName, workers: int | None) -> Iterator[Engine]:
    """Processes of this machine, or Spark."""
    from nearcast.experiments.result import run_jobs

    if name is EngineName.LOCAL:
        yield partial(run_jobs, workers=workers)
        return
    from nearcast.pipeline.parallel import run_on_spark
    from nearcast.pipeline.spark import SessionSettings, open_session

    master = f"local[{workers or '*'}]"
    with open_session(SessionSettings(master=master, app_name="nearcast-reproduce")) as spark:
        yield partial(run_on_spark, spark)
