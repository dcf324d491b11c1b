"""`nearcast demo`: topics that move under the players of a few games, shown live."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import print_json, print_table
from nearcast.cli.running import run, say, until_told_to_stop

if TYPE_CHECKING:
    from nearcast.testbed.demo import Demo, DemoPlan, Summary

CLIENTS_MIN = 12  # one publisher and one subscriber per game; a test holds it to the demo, which is heavy to import


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

    Example: nearcast demo --seconds 30 --clients 24
    """
    from nearcast.testbed.demo import DemoPlan

    summary = run(lambda: _demo(DemoPlan(seconds, clients, seed), output))
    if output is Output.JSON:
        print_json(summary)
    else:
        print_table(("", ""), _rows(summary))
    for example in summary.examples:
        say(f"  {example}")
    raise typer.Exit(0 if summary.exact else 1)


async def _demo(plan: DemoPlan, output: Output) -> Summary:
    from nearcast.testbed.demo import Demo

    demo = Demo(plan, say)
    running = asyncio.create_task(demo.run())
    showing = asyncio.create_task(_show(demo, output))
    stopping = asyncio.create_task(until_told_to_stop())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not (demo.begun or running.done()):
            raise KeyboardInterrupt  # there is nothing to sum up yet
        demo.stop()
        return await running
    finally:
        for task in (running, showing, stopping):
            task.cancel()
        await asyncio.gather(running, showing, stopping, return_exceptions=True)
