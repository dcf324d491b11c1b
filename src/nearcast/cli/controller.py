"""`nearcast controller`: one controller of the cluster. If there are several, one leads and the others wait."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nearcast.cli.settings import (
    DEFAULT_BALANCE_S,
    DEFAULT_PLACEMENT,
    DEFAULT_WAIT_S,
    NO_BALANCE,
    NO_POLICY,
    PER_TOPIC,
    BalanceEveryOption,
    BalanceOption,
    BalanceSetOption,
    BrokersMaxOption,
    PlacementOption,
    PolicyOption,
    ThresholdOption,
    TimerOption,
    WaitOption,
    chosen_coordinating,
    chosen_policy,
    chosen_timing,
)
from nearcast.cli.shared import (
    StoreUrl,
    errors_as_exit_codes,
    log_problems,
    log_to_stderr,
    run,
    until_told_to_stop,
)

if TYPE_CHECKING:
    from nearcast.core.controller.planner import PlanningSettings
    from nearcast.core.controller.subscribers import CoordinationSettings
    from nearcast.core.model.planning import Policy
    from nearcast.core.model.settings import Timing
    from nearcast.runtime.controller import Controller


log = logging.getLogger("nearcast.controller")


def controller(
    store: StoreUrl,
    policy: PolicyOption = NO_POLICY,
    thresholds: ThresholdOption = None,
    wait: WaitOption = DEFAULT_WAIT_S,
    max_brokers: BrokersMaxOption = 0,
    placement: PlacementOption = DEFAULT_PLACEMENT,
    balance: BalanceOption = NO_BALANCE,
    balance_thresholds: BalanceSetOption = None,
    balance_every: BalanceEveryOption = DEFAULT_BALANCE_S,
    timers: TimerOption = None,
) -> None:
    """Run a controller until it is stopped. Run two, on two machines: one leads, the other takes over if it fails.

    On SIGTERM or Ctrl-C it gives up its leadership, and the other one leads at once.

    With a policy it moves and replicates topics by itself, and with --max-brokers it asks the provider for servers.
    With --balance it moves subscribers between gateways. Give all controllers the same --timer values, because clients
    and agents use those of the leader. A --store that is a broker's server is refused.

    Example: nearcast controller --store redis://store.example.com:6379 --policy dynamoth --set lr_high=0.7
    --balance ldm --balance-set alpha=0.1 --balance-set beta_bytes_per_s=1000000
    """
    from nearcast.core.controller.planner import PlanningSettings

    log_to_stderr()
    with errors_as_exit_codes():
        chosen, planning = (
            chosen_policy(policy, thresholds, max_brokers),
            PlanningSettings(wait_s=wait, brokers_max=max_brokers, per_topic=policy in PER_TOPIC),
        )
        coordinating = chosen_coordinating(placement, balance, balance_thresholds, balance_every)
        timing = chosen_timing(timers)
    run(lambda: _serve(store, chosen, planning, coordinating, timing))


async def _serve(
    store: str, policy: Policy | None, planning: PlanningSettings, coordinating: CoordinationSettings, timing: Timing
) -> None:
    from nearcast.runtime.controller import Controller
    from nearcast.runtime.workers import until_one_ends

    process = Controller(store, policy=policy, planning=planning, coordinating=coordinating, timing=timing)
    try:
        await until_one_ends(_work(process, store), until_told_to_stop())
    finally:
        await process.stop()


async def _work(process: Controller, store: str) -> None:
    """Runs until cancelled."""
    from nearcast.runtime.controller import until_checked

    await until_checked(store)
    await process.start()
    log.info("controller %s", process.name)
    await log_problems(log, lambda: process.problem)
