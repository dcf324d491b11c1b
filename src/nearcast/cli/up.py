"""`nearcast up`: a whole cluster on this machine, to try things out."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.settings import (
    DEFAULT_BALANCE_S,
    DEFAULT_PLACEMENT,
    DEFAULT_WAIT_S,
    NO_BALANCE,
    NO_POLICY,
    BalanceEveryOption,
    BalanceOption,
    BalanceSetOption,
    BrokersMaxOption,
    PlacementOption,
    PolicyOption,
    ThresholdOption,
    TimerOption,
    WaitOption,
    balancing_arguments,
    planning_arguments,
    timer_arguments,
)
from nearcast.cli.shared import (
    ASK_S,
    Output,
    OutputOption,
    errors_as_exit_codes,
    name_list,
    name_server,
    print_json,
    print_table,
    run,
    say,
    until_told_to_stop,
    warned,
)
from nearcast.errors import ClusterError

if TYPE_CHECKING:
    from nearcast.testing.cluster import LocalCluster


LOOK_S = 0.5  # how often we check that all processes still run


def up(
    brokers: Annotated[
        str, typer.Option("--brokers", metavar="N|NAMES", help="How many brokers, or their names: b1,b2,... ")
    ] = "3",
    controllers: Annotated[int, typer.Option("--controllers", min=1, help="One leads, the others wait.")] = 1,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1, max=65000, help="The store's port; brokers get the next ones. Default: free ports."
        ),
    ] = None,
    policy: PolicyOption = NO_POLICY,
    thresholds: ThresholdOption = None,
    wait: WaitOption = DEFAULT_WAIT_S,
    max_brokers: BrokersMaxOption = 0,
    placement: PlacementOption = DEFAULT_PLACEMENT,
    balance: BalanceOption = NO_BALANCE,
    balance_thresholds: BalanceSetOption = None,
    balance_every: BalanceEveryOption = DEFAULT_BALANCE_S,
    timers: TimerOption = None,
    replicas: Annotated[
        int, typer.Option("--replicas", min=0, max=6, help="Replicas of each broker's server, for logs with a quorum.")
    ] = 0,
    dry: Annotated[
        bool, typer.Option("--dry", help="Print which servers the policy asks for and releases, but start none.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a whole cluster on this machine until Ctrl-C.

    It has a store, brokers and controllers, and keeps nothing on disk.

    With --policy, topics are moved and replicated as their load demands; with --max-brokers, servers are added and
    removed.

    Example: nearcast up --brokers 1 --policy dynamoth --max-brokers 4 --port 7000
    """
    with errors_as_exit_codes():
        wanted: int | list[str] = int(brokers) if brokers.isdecimal() else list(name_list("broker", brokers))
        planning = planning_arguments(policy, thresholds, wait, max_brokers)
        planning += balancing_arguments(placement, balance, balance_thresholds, balance_every)
        planning += timer_arguments(timers)
    start = partial(_start, wanted, controllers, planning, port, replicas)
    run(lambda: _up(start, dry, output))


async def _start(
    brokers: int | list[str], controllers: int, planning: list[str], port: int | None, replicas: int
) -> LocalCluster:
    from nearcast.testing.cluster import LocalCluster

    name_server()
    say("starting ...")
    return await LocalCluster.start(
        brokers, controllers=controllers, controller_options=planning, first_port=port, replicas=replicas
    )


async def _up(start: Callable[[], Awaitable[LocalCluster]], dry: bool, output: Output) -> None:
    from nearcast.runtime.provider import DryProvider, ProviderDesk
    from nearcast.testing.provider import LocalProvider

    async with await start() as cluster:
        provider = DryProvider(say) if dry else LocalProvider(cluster)
        async with ProviderDesk(cluster.store_url, provider):
            await _until_stopped(cluster, output)


async def _until_stopped(cluster: LocalCluster, output: Output) -> None:
    from nearcast.runtime.workers import until_one_ends

    _announce(cluster, output)
    try:
        await until_one_ends(_tell_of_ends(cluster), _tell_of_losses(cluster), until_told_to_stop())
    finally:
        say("stopping ...")


def _announce(cluster: LocalCluster, output: Output) -> None:
    if output is Output.JSON:
        print_json({"store": cluster.store_url, "brokers": cluster.urls, "pids": cluster.pids})
        return
    print_table(("", "URL"), [("store", cluster.store_url), *cluster.urls.items()])
    first, url = next(iter(cluster.urls.items()))
    print("In another terminal:")
    print(f"  export NEARCAST_URL={url}")
    print("  nearcast brokers")
    print(f"  nearcast topic move greetings --to {first}")
    print("In a program:")
    print(f'  async with nearcast.connect("{url}") as client:')
    print('      await client.publish("greetings", b"hello")')
    print("Ctrl-C ends the cluster.")
    sys.stdout.flush()


async def _tell_of_ends(cluster: LocalCluster) -> None:
    """Report processes that end: a user may kill one on purpose, but any other end must not go unnoticed."""
    known: set[str] = set()
    while True:
        for name in sorted(set(cluster.ended) - known):
            say(f"{name} has ended; the others continue without it")
        known = set(cluster.ended)
        await asyncio.sleep(LOOK_S)


async def _tell_of_losses(cluster: LocalCluster) -> None:
    """Report each loss of the store's data once. Controllers log it too, but their logs are rarely read."""
    console = await cluster.console()
    told_s = 0.0
    while True:
        with contextlib.suppress(ClusterError):  # the store or the controllers are away
            state = await console.overview(timeout_s=ASK_S)
            if state.loss is not None and state.loss.at_s != told_s:
                told_s = state.loss.at_s
                warned(state)
        await asyncio.sleep(LOOK_S)
