"""`nearcast bench multistage`: the speed of balancing subscribers over brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import show
from nearcast.cli.running import errors_as_exit_codes, say

if TYPE_CHECKING:
    from nearcast.bench.multistage import MultistageBench, Timed

COLUMNS = ("", "time", "moves", "cov before, after", "incoming load saved", "goal")
GOALS = {(1_000_000, 10_000, 100): "<= 10 s"}  # by subscribers, backend subscriptions and brokers; GSH and LDM

Row = tuple[str, str, str, str, str, str]


@errors_as_exit_codes()
def multistage(
    subscribers: Annotated[int, typer.Option("--subscribers", min=1000, help="Subscribers, all online.")] = 1_000_000,
    backend: Annotated[int, typer.Option("--backend", min=30, help="Backend subscriptions.")] = 10_000,
    brokers: Annotated[int, typer.Option("--brokers", min=2, help="Brokers they are on.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time a shuffle (GSH) and single moves (LDM, SDM) from the nearest placement, and Algorithm 1 in plain Python.

    Example: nearcast bench multistage --subscribers 1000000 --backend 10000 --brokers 100 --json
    """
    from nearcast.bench.multistage import measure_multistage

    found = measure_multistage(subscribers, backend, brokers, progress=say)
    show(Output.JSON if as_json else output, found, COLUMNS, _rows(found))


def _rows(found: MultistageBench) -> list[Row]:
    rows: list[Row] = []
    for size in found.growth:
        goal = GOALS.get((size.subscribers, found.backend, found.brokers), "")
        rows.append((f"{size.subscribers:,} subscribers, {size.frontend:,} subscriptions", "", "", "", "", ""))
        rows.append(_row("  GSH", size.gsh, goal))
        rows.append(_row("  LDM", size.ldm, goal))
        rows.append(_row("  SDM", size.sdm, ""))
    reference = found.reference
    moves = f"{reference.moves:,}"
    rows.append((f"{reference.subscribers:,} subscribers, Algorithm 1 as printed", "", "", "", "", ""))
    rows.append(("  plain Python", f"{reference.seconds_reference:.3f} s", moves, "", "", ""))
    rows.append(("  LDM", f"{reference.seconds:.3f} s, {reference.ratio:.0f} x", moves, "", "", ""))
    return rows


def _row(name: str, timed: Timed, goal: str) -> Row:
    covs = f"{timed.cov_before:.3f}, {timed.cov_after:.3f}"
    return name, f"{timed.seconds:.2f} s", f"{timed.moves:,}", covs, f"{timed.incoming_saved_share:.1%}", goal
