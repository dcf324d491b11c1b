"""The commands of `nearcast reproduce` for ePulsar's experiments that run on real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.conclusion import AsJson, Out, conclude
from nearcast.cli.shared import Output, OutputOption, run

if TYPE_CHECKING:
    from nearcast.experiments.result import Progress, Result


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
