"""`nearcast demo`: topics that move under the players of a few games, shown live."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import print_json, print_table
from nearcast.cli.running import run, say, until_told_to_stop

if TYPE_CHECKING:
    from nearcast.testbed.demo import Summary
    from nearcast.testbed.games import DemoPlan

CLIENTS_MIN = 36  # a test holds it to the demo, which is heavy to import


def demo(
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="How long messages flow and topics move.")] = 60,
    clients: Annotated[
        int, typer.Option("--clients", min=CLIENTS_MIN, max=240, help="Half of them publish, half of them subscribe.")
    ] = 48,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the moves, the kills and the emulated network.")] = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Watch topics move between three emulated sites while their messages flow, and count what subscribers notice.

    Starts a cluster on this machine and ends it after the given time, or at Ctrl-C. Agents and the controller are
    killed now and then. The exit code is 1 if a message was lost, doubled or reordered.

    Example: nearcast demo --seconds 30 --seed 7
    """
    from nearcast.testbed.games import DemoPlan

    summary = run(lambda: _demo(DemoPlan(seconds, clients, seed), output))
    if output is Output.JSON:
        print_json(summary)
    else:
        print()
        print_table(("summary", ""), _rows(summary))
    for example in summary.examples:
        say(f"  {example}")
    raise typer.Exit(0 if summary.exact else 1)


async def _demo(plan: DemoPlan, output: Output) -> Summary:
    from nearcast.cli.demo_view import View
    from nearcast.testbed.demo import Demo

    view = View()
    demo = Demo(plan, view.tell)
    running = asyncio.create_task(demo.run())
    tasks: list[asyncio.Task[Any]] = [running, asyncio.create_task(until_told_to_stop())]
    if output is Output.TABLE:
        tasks.append(asyncio.create_task(view.show(demo)))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if not (running.done() or demo.begun.is_set()):
            raise typer.Exit(130)  # told to stop while starting: there is nothing to sum up
        demo.stop()
        return await running
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _rows(summary: Summary) -> list[tuple[str, str]]:
    return [
        ("time", f"{summary.seconds:.0f} s"),
        ("clients", f"{summary.clients}"),
        ("messages", f"{summary.messages:,}"),
        ("deliveries", f"{summary.deliveries:,}"),
        ("moves", f"{summary.moves:,}, of them {summary.mode_changes:,} changes of mode"),
        ("kills", f"{summary.agent_kills} of agents, {summary.controller_kills} of the controller"),
        ("latency", f"p50 {_ms(summary.p50_ms)}, p99 {_ms(summary.p99_ms)}"),
        ("lost", f"{summary.lost:,}"),
        ("duplicated", f"{summary.duplicated:,}"),
        ("reordered", f"{summary.reordered:,}"),
        ("gaps and interruptions", f"{summary.gaps + summary.interrupted:,}"),
        ("guarantee", "kept" if summary.exact else "BROKEN"),
    ]


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} ms"
