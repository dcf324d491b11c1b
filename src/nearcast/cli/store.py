"""`nearcast store`: whether the store has lost data, and how the journal was rebuilt."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from nearcast.cli.shared import (
    ASK_S,
    DEFAULT_URL,
    Output,
    OutputOption,
    Url,
    errors_as_exit_codes,
    refuse_options_before,
    run,
    show,
)

if TYPE_CHECKING:
    from nearcast.core.model.journal import LossEntry
    from nearcast.core.wire.bus import State


app = typer.Typer(invoke_without_command=True)

COLUMNS = ("leader", "term", "commits", "data lost", "acknowledged", "outcome")


@app.callback()
def store(context: typer.Context, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show whether the store has ever lost data.

    It also shows the leader, and how many commits the journal has.

    Example: nearcast store --url redis://127.0.0.1:7001
    """
    if context.invoked_subcommand is None:
        _show(run(lambda: _ask(url)), output)
        return
    with errors_as_exit_codes():
        refuse_options_before(context)


@app.command("acknowledge")
def acknowledge(url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Acknowledge the last loss of data.

    The warnings stop, and users may register names again.

    Names that were registered before the loss are then free. Restore `nc:u:*` and `nc:keys` first if you can.

    Example: nearcast store acknowledge
    """
    _show(run(lambda: _acknowledge(url)), output)


async def _ask(url: str) -> State:
    from nearcast.runtime.console import Console

    async with Console(url) as console:
        return await console.overview(timeout_s=ASK_S)


async def _acknowledge(url: str) -> State:
    from nearcast.runtime.console import Console

    async with Console(url) as console:
        return await console.acknowledge_loss(timeout_s=ASK_S)


def _show(state: State, output: Output) -> None:
    loss = state.loss
    data = {"leader": state.leader, "term": state.term, "commits": state.version, "loss": _loss_data(loss)}
    cells = ("never", "", "") if loss is None else (_when(loss), "yes" if loss.acknowledged else "no", loss.text)
    show(output, data, COLUMNS, [(state.leader, str(state.term), f"{state.version:,}", *cells)])


def _loss_data(loss: LossEntry | None) -> dict[str, object] | None:
    if loss is None:
        return None
    return {"at_s": loss.at_s, "term": loss.term, "text": loss.text, "acknowledged": loss.acknowledged}


def _when(loss: LossEntry) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(loss.at_s))
