"""`nearcast bench flow`: the speed of the flow simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import show
from nearcast.cli.running import errors_as_exit_codes, say

if TYPE_CHECKING:
    from nearcast.bench.flow import FlowBench

COLUMNS = ("clients", "topics", "simulated s", "policy calls", "seconds", "ms per simulated s")


@errors_as_exit_codes()
def flow(
    clients: Annotated[int, typer.Option("--clients", min=10, help="Players of the game.")] = 10_000,
    seconds: Annotated[int, typer.Option("--seconds", min=2, help="Simulated seconds.")] = 600,
    largest: Annotated[
        int, typer.Option("--largest", help="Short runs with ten times the clients, and so on, up to this.")
    ] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time the flow simulator with the Dynamoth policy, and how the time grows with the clients. Takes about a minute.

    Example: nearcast bench flow --json
    """
    from nearcast.bench.flow import measure_flow

    found = measure_flow(clients, seconds, largest, say)
    show(Output.JSON if as_json else output, found, COLUMNS, _rows(found), _title(found))


def _rows(found: FlowBench) -> list[tuple[str, ...]]:
    return [
        (
            f"{size.clients:,}",
            f"{size.topics:,}",
            f"{size.steps:,}",
            f"{size.policy_calls:,}",
            f"{size.seconds:.2f}",
            f"{size.seconds_per_step * 1e3:.1f}",
        )
        for size in found.scaling
    ]


def _title(found: FlowBench) -> str:
    return f"{found.rebalancings} rebalancings; time per simulated second ~ clients^{found.exponent:.2f}"
