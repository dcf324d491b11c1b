"""`nearcast subscribers`: the gateways, how many subscribers each serves, and moves of subscribers between them."""

from __future__ import annotations

from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.shared import (
    ASK_S,
    DEFAULT_URL,
    Output,
    OutputOption,
    Url,
    checked_name,
    errors_as_exit_codes,
    refuse_options_before,
    run,
    show,
)
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.wire.bus import State
    from nearcast.core.wire.views import GatewayView


app = typer.Typer(invoke_without_command=True)

COLUMNS = (
    *("gateway", "site", "accepts", "url", "subscribers", "frontend", "backend"),
    *("in kB/s", "out kB/s", "load kB/s", "moving"),
)


@app.callback()
def subscribers(context: typer.Context, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show the gateways and how many subscribers each serves.

    It also shows their subscriptions, and the load they cause.

    Example: nearcast subscribers --url redis://127.0.0.1:7001
    """
    if context.invoked_subcommand is None:
        _show(run(lambda: _ask(url)), output)
        return
    with errors_as_exit_codes():
        refuse_options_before(context)


async def _ask(url: str) -> State:
    from nearcast.runtime.console import Console

    async with Console(url) as console:
        return await console.subscribers(timeout_s=ASK_S)


@app.command("move")
def move(
    user: Annotated[str, typer.Argument(metavar="USER")],
    to: Annotated[str, typer.Option("--to", metavar="BROKER", help="The broker whose gateway will serve the user.")],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the subscriber is there.")] = True,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Total time limit.")] = 30.0,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send an online subscriber to another gateway.

    It misses nothing and gets nothing twice.

    Example: nearcast subscribers move ada --to b2
    """
    _show(run(lambda: _move(url, user, to, wait=wait, timeout_s=timeout_s)), output)


async def _move(url: str, user: str, broker: str, *, wait: bool, timeout_s: float) -> State:
    from nearcast.core.model.names import user_problem
    from nearcast.runtime.console import Console

    checked_name("broker", broker)
    if problem := user_problem(user):
        raise UsageError(problem)
    async with Console(url) as console:
        return await console.move_subscriber(user, broker, wait=wait, timeout_s=timeout_s)


@app.command("shuffle")
def shuffle(url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Place all subscribers again.

    Each gets the least loaded gateway, the heaviest subscriber first. They move in waves.

    The controller must run with --balance.

    Example: nearcast subscribers shuffle
    """
    _show(run(lambda: _shuffle(url)), output)


async def _shuffle(url: str) -> State:
    from nearcast.runtime.console import Console

    async with Console(url) as console:
        return await console.shuffle_subscribers()


# --- how it is shown


def _show(state: State, output: Output) -> None:
    loads = [view.incoming_bytes_per_s + view.outgoing_bytes_per_s for view in state.gateways.values()]
    cov = pstdev(loads) / fmean(loads) if loads and fmean(loads) > 0 else 0.0
    data = {
        "gateways": state.gateways,
        "cov": cov,
        "assignments": state.assignments,
        "moving": {user: {"from": source, "to": target} for user, (source, target) in state.moving.items()},
    }
    online = sum(view.subscribers for view in state.gateways.values())
    title = f"{online} subscribers online, coefficient of variation of the loads {cov:.3f}"
    show(output, data, COLUMNS, [gateway_row(name, view) for name, view in sorted(state.gateways.items())], title)


def gateway_row(name: str, view: GatewayView) -> tuple[str, ...]:
    return (
        *(name, view.site, "yes" if view.takes else "no", view.url),
        *(str(view.subscribers), str(view.frontend), str(view.backend)),
        f"{view.incoming_bytes_per_s / 1e3:.1f}",
        f"{view.outgoing_bytes_per_s / 1e3:.1f}",
        f"{(view.incoming_bytes_per_s + view.outgoing_bytes_per_s) / 1e3:.1f}",
        str(view.moving),
    )
