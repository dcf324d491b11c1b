"""`nearcast simulate`: the protocol with faults, or a policy under load, both under virtual time.

`simulate protocol` checks the move protocol; with `--variant forwarding` it compares Dynamoth's moves with ours, on the
same seeds. `simulate flow` runs a policy and a workload in the flow simulator.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from nearcast.cli.shared import Output, OutputOption, errors_as_exit_codes, say, show
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.flow.model import Series
    from nearcast.flow.network import Delays
    from nearcast.sim.campaign import Outcome
    from nearcast.sim.forwarding.comparison import Case, Row
    from nearcast.sim.forwarding.comparison import Outcome as ForwardingOutcome
    from nearcast.workloads.rgame import Ramp


FLOW_COLUMNS = (
    "time s",
    "players",
    "brokers",
    "deliveries/s",
    "mean load",
    "max load",
    "response ms",
    "p99 ms",
    "lost/s",
)
ROWS = 20  # lines of the table


class FlowPolicy(StrEnum):
    DYNAMOTH = "dynamoth"
    HASH_RING = "hash_ring"
    NONE = "none"


# --- simulate flow


@errors_as_exit_codes()
def flow(
    policy: Annotated[FlowPolicy, typer.Option("--policy", help="What places topics.")] = FlowPolicy.DYNAMOTH,
    players: Annotated[
        str, typer.Option("--players", metavar="N[:N...]", help="Numbers of players, evenly spaced over the run.")
    ] = "120:1200",
    tiles: Annotated[str, typer.Option("--tiles", metavar="XxY", help="The size of the map.")] = "12x12",
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Simulated seconds.")] = 600.0,
    brokers: Annotated[int, typer.Option("--brokers", min=1, help="Brokers at the start.")] = 1,
    brokers_max: Annotated[int, typer.Option("--brokers-max", min=1, help="Most brokers, rented ones included.")] = 8,
    matrix: Annotated[
        Path | None, typer.Option("--matrix", help="Round trips in ms as CSV, instead of the lognormal model.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a game on simulated brokers, with a policy.

    The game is RGame. The policy places its tiles, and load and response times are shown.

    Brokers are as in Dynamoth's experiments: 6 MB/s of outgoing bandwidth, failing at 1.15 times that.

    Example: nearcast simulate flow --policy dynamoth --players 100:800:200:600 --seconds 900 --json
    """
    from nearcast.flow.model import FlowSettings
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
    show(Output.JSON if as_json else output, series, FLOW_COLUMNS, _flow_rows(series), _title(series))


def _ramp(text: str, seconds: float) -> Ramp:
    from nearcast.workloads.rgame import Ramp

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
    from nearcast.flow.network import LognormalDelays, MatrixDelays

    return LognormalDelays() if matrix is None else MatrixDelays.load(matrix)


def _progress(seconds: float) -> Callable[[float], None] | None:
    """One line that is overwritten on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        return None

    def tell(done_s: float) -> None:
        end = "\r\x1b[K" if done_s >= seconds else ""
        print(f"\r\x1b[K{done_s:.0f} of {seconds:.0f} simulated seconds{end}", end="", file=sys.stderr, flush=True)

    return tell


def _flow_rows(series: Series) -> list[tuple[str, ...]]:
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


app = typer.Typer(help="Simulate the protocol with faults, or a policy under load.", no_args_is_help=True)

SHOWN_MAX = 5  # violations printed per failing seed

T = TypeVar("T")


class Variant(StrEnum):
    """Another protocol to compare with."""

    FORWARDING = "forwarding"  # Dynamoth's dispatchers


class Summary(msgspec.Struct):
    """What a campaign found."""

    seeds: int = 0
    messages: int = 0
    moves: int = 0
    forced: int = 0
    failed: list[int] = []
    seconds: float = 0.0


@app.callback()
def simulate() -> None:
    """Simulate the protocol with faults, or a policy under load."""


# --- simulate protocol


app.command("flow")(flow)


@app.command("protocol")
def protocol(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds to run.")] = 1000,
    first_seed: Annotated[int, typer.Option("--first-seed", min=0, help="The first seed.")] = 0,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes. Default: one per core.")] = None,
    variant: Annotated[
        Variant | None, typer.Option("--variant", help="Compare with another protocol instead: see docs/forwarding.md.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run the protocol with faults, and check every invariant.

    It runs the machines of clients, agents and controllers under virtual time.

    A failing seed is printed with the command that replays it, and the exit code is 1.

    Example: nearcast simulate protocol --seeds 20000 --first-seed 5

    --variant forwarding compares the moves of the Dynamoth paper with ours, on the same seeds. Losses there are
    expected; the exit code is 1 if nearcast broke an invariant, or lost, duplicated or reordered anything.

    Example: nearcast simulate protocol --variant forwarding --seeds 500
    """
    if variant is Variant.FORWARDING:
        raise typer.Exit(compare(range(first_seed, first_seed + seeds), workers, output))

    from nearcast.sim.campaign import run_seeds

    began_s = time.monotonic()
    summary = Summary()
    for outcome in with_progress(run_seeds(range(first_seed, first_seed + seeds), workers), seeds):
        summary.seeds += 1
        summary.messages += outcome.messages
        summary.moves += outcome.moves
        summary.forced += outcome.forced
        if outcome.violations:
            summary.failed.append(outcome.seed)
            _tell(outcome)
    summary.seconds = time.monotonic() - began_s
    show(output, summary, ("", ""), _protocol_rows(summary))
    raise typer.Exit(1 if summary.failed else 0)


def with_progress(outcomes: Iterator[T], total: int) -> Iterator[T]:
    """A bar on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = ("seeds", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=total)
        for outcome in outcomes:
            progress.advance(task)
            yield outcome


def _tell(outcome: Outcome) -> None:
    say(f"seed {outcome.seed} ({outcome.profile}) failed; replay it with: {outcome.replay}")
    for violation in outcome.violations[:SHOWN_MAX]:
        say(f"  {violation}")
    for fault in outcome.faults:
        say(f"  fault at {fault}")


def _protocol_rows(summary: Summary) -> list[tuple[str, str]]:
    return [
        ("seeds", f"{summary.seeds:,}"),
        ("failed", f"{len(summary.failed):,}"),
        ("messages run on servers", f"{summary.messages:,}"),
        ("moves", f"{summary.moves:,}"),
        ("of which forced", f"{summary.forced:,}"),
        ("time", f"{summary.seconds:.1f} s"),
    ]


FORWARDING_COLUMNS = (
    "faults",
    "protocol",
    "moves",
    "deliveries owed",
    "seeds with loss",
    "lost per million",
    "duplicated",
    "reordered",
)


class Comparison(msgspec.Struct, frozen=True):
    seeds: int
    first_seed: int
    seconds: float
    rows: list[Row]


# --- the comparison with forwarding


def compare(seeds: range, workers: int | None, output: Output) -> int:
    """Run and print the comparison. Returns the exit code."""
    from nearcast.sim.forwarding.comparison import CASES, run_comparison, summarise

    began_s = time.monotonic()
    outcomes: dict[Case, list[ForwardingOutcome]] = {case: [] for case in CASES}
    for found in with_progress(run_comparison(seeds, workers), len(seeds)):
        for outcome in found:
            outcomes[outcome.case].append(outcome)
            if outcome.violations:
                say(f"nearcast failed with seed {outcome.seed}: {outcome.violations[0]}")
    rows = [summarise(case, outcomes[case]) for case in CASES]
    comparison = Comparison(len(seeds), seeds.start, round(time.monotonic() - began_s, 1), rows)
    title = f"{comparison.seeds:,} seeds from {comparison.first_seed}, {comparison.seconds} s"
    show(output, comparison, FORWARDING_COLUMNS, [_cells(row) for row in rows], title)
    failed = [seed for row in rows for seed in row.failed]
    if failed:
        say(f"nearcast failed with seeds {failed}")
    return 1 if failed else 0


def _cells(row: Row) -> tuple[str, ...]:
    return (
        "agent crashes" if row.crashes else "none",
        row.protocol,
        f"{row.moves:,}",
        f"{row.owed:,}",
        f"{row.share_of_seeds_with_loss:.1%}",
        f"{row.lost_per_million:,.0f}",
        f"{row.duplicated:,}",
        f"{row.reordered:,}",
    )
