"""`nearcast simulate flow`: a policy and a workload under the flow simulator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import show
from nearcast.cli.running import errors_as_exit_codes
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.flow.delays import Delays
    from nearcast.flow.series import Series
    from nearcast.workloads.ramp import Ramp

COLUMNS = ("time s", "players", "brokers", "deliveries/s", "mean load", "max load", "response ms", "p99 ms", "lost/s")
ROWS = 20  # lines of the table


class FlowPolicy(StrEnum):
    DYNAMOTH = "dynamoth"
    HASH_RING = "hash_ring"
    NONE = "none"


@errors_as_exit_codes()
def flow(
    policy: Annotated[FlowPolicy, typer.Option("--policy", help="Who places topics.")] = FlowPolicy.DYNAMOTH,
    players: Annotated[
        str, typer.Option("--players", metavar="N[:N...]", help="Players at equal distances over the run.")
    ] = "120:1200",
    tiles: Annotated[str, typer.Option("--tiles", metavar="XxY", help="The map.")] = "12x12",
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Simulated seconds.")] = 600.0,
    brokers: Annotated[int, typer.Option("--brokers", min=1, help="At the start.")] = 1,
    brokers_max: Annotated[int, typer.Option("--brokers-max", min=1, help="With those that can be rented.")] = 8,
    matrix: Annotated[
        Path | None, typer.Option("--matrix", help="A CSV file of round trips in ms instead of King-like delays.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run the game RGame on simulated brokers, with a policy that places its tiles, and show load and response times.

    Brokers are as in Dynamoth's experiments: 6 MB/s of outgoing bandwidth, failing at 1.15 times that.

    Example: nearcast simulate flow --policy dynamoth --players 100:800:200:600 --seconds 900 --json
    """
    from nearcast.flow.settings import FlowSettings
    from nearcast.flow.simulation import FlowSimulation
    from nearcast.policies.catalog import policy_named
    from nearcast.workloads.rgame import RGame

    ramp, (tiles_x, tiles_y) = _ramp(players, seconds), _tiles(tiles)
    simulation = FlowSimulation(
        RGame(tiles_x, tiles_y, ramp, seed),
        None if policy is FlowPolicy.NONE else policy_named(policy),
        FlowSettings(brokers_max=brokers_max),
        _delays(matrix),
        seed,
        brokers,
    )
    series = simulation.run(seconds, _progress(seconds))
    show(Output.JSON if as_json else output, series, COLUMNS, _rows(series), _title(series))


def _ramp(text: str, seconds: float) -> Ramp:
    from nearcast.workloads.ramp import Ramp

    try:
        counts = [int(count) for count in text.split(":")]
    except ValueError:
        raise UsageError(f"bad --players {text!r}: give numbers with colons between them, such as 120:1200") from None
    between_s = seconds / max(len(counts) - 1, 1)
    return Ramp(tuple((number * between_s, count) for number, count in enumerate(counts)))


def _tiles(text: str) -> tuple[int, int]:
    x, _, y = text.partition("x")
    if not (x.isdecimal() and y.isdecimal()):
        raise UsageError(f"bad --tiles {text!r}: give the map's width and height, such as 12x12")
    return int(x), int(y)


def _delays(matrix: Path | None) -> Delays:
    from nearcast.flow.delays import LognormalDelays, MatrixDelays

    return LognormalDelays() if matrix is None else MatrixDelays.load(matrix)


def _progress(seconds: float) -> Callable[[float], None] | None:
    """One line that is written over on a terminal; nothing where nobody looks."""
    if not sys.stderr.isatty():
        return None

    def tell(done_s: float) -> None:
        end = "\r\x1b[K" if done_s >= seconds else ""
        print(f"\r\x1b[K{done_s:.0f} of {seconds:.0f} simulated seconds{end}", end="", file=sys.stderr, flush=True)

    return tell


def _rows(series: Series) -> list[tuple[str, ...]]:
    every = max(1, len(series.at_s) // ROWS)
    return [
        (
            f"{series.at_s[step]:.0f}",
            f"{series.clients[step]:,}",
            str(series.brokers[step]),
            f"{series.deliveries_per_s[step]:,.0f}",
            f"{series.load_ratio_mean[step]:.2f}",
            f"{series.load_ratio_max[step]:.2f}",
            f"{series.response_s[step] * 1e3:,.0f}",
            f"{series.response_p99_s[step] * 1e3:,.0f}",
            f"{series.lost_per_s[step]:,.0f}",
        )
        for step in range(0, len(series.at_s), every)
    ]


def _title(series: Series) -> str:
    return f"{series.policy}: {len(series.rebalancings)} rebalancings, {series.lost:,.0f} deliveries lost"
