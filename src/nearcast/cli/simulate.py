"""`nearcast simulate`: the machines under virtual time, with faults."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from nearcast.cli import simulate_flow
from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import show
from nearcast.cli.running import say

if TYPE_CHECKING:
    from nearcast.sim.campaign import Outcome

app = typer.Typer(help="The protocol under virtual time, with faults.", no_args_is_help=True)

SHOWN_MAX = 5  # violations printed of a failing seed

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
    """The protocol under virtual time, with faults."""


app.command("flow")(simulate_flow.flow)


@app.command("protocol")
def protocol(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds to run.")] = 1000,
    first_seed: Annotated[int, typer.Option("--first-seed", min=0, help="The first of them.")] = 0,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes; one per core if not given.")
    ] = None,
    variant: Annotated[
        Variant | None, typer.Option("--variant", help="Compare with another protocol instead: see docs/forwarding.md.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run the client, agent and controller machines with faults, and check every invariant of the move protocol.

    A failing seed is printed with the command that replays it, and the exit code is 1.

    Example: nearcast simulate protocol --seeds 20000 --first-seed 5

    With --variant forwarding: the moves of the Dynamoth paper beside ours, on the same seeds. Its losses are what the
    comparison shows; the exit code is 1 if nearcast broke an invariant, or lost, doubled or reordered anything.

    Example: nearcast simulate protocol --variant forwarding --seeds 500
    """
    if variant is Variant.FORWARDING:
        from nearcast.cli.simulate_forwarding import compare

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
    show(output, summary, ("", ""), _rows(summary))
    raise typer.Exit(1 if summary.failed else 0)


def with_progress(outcomes: Iterator[T], total: int) -> Iterator[T]:
    """A bar on a terminal; nothing where nobody looks."""
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


def _rows(summary: Summary) -> list[tuple[str, str]]:
    return [
        ("seeds", f"{summary.seeds:,}"),
        ("failed", f"{len(summary.failed):,}"),
        ("messages run on servers", f"{summary.messages:,}"),
        ("moves", f"{summary.moves:,}"),
        ("of them forced", f"{summary.forced:,}"),
        ("time", f"{summary.seconds:.1f} s"),
    ]
