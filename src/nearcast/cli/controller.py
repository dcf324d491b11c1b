"""`nearcast controller`: one controller of the cluster; of several, one leads and the others wait."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nearcast.cli.options import StoreUrl
from nearcast.cli.planning import (
    DEFAULT_WAIT_S,
    NO_POLICY,
    BrokersMaxOption,
    PolicyOption,
    ThresholdOption,
    WaitOption,
    chosen_policy,
)
from nearcast.cli.running import errors_as_exit_codes, log_to_stderr, run, until_told_to_stop

if TYPE_CHECKING:
    from nearcast.core.planner import Planning
    from nearcast.core.proposal import Policy

log = logging.getLogger("nearcast.controller")


def controller(
    store: StoreUrl,
    policy: PolicyOption = NO_POLICY,
    thresholds: ThresholdOption = None,
    wait: WaitOption = DEFAULT_WAIT_S,
    max_brokers: BrokersMaxOption = 0,
) -> None:
    """Run a controller, until it is stopped. Run two on two machines: one leads, the other takes over.

    With a policy it moves and replicates topics by itself, and with --max-brokers it asks the provider for servers.

    Example: nearcast controller --store redis://store.example.com:6379 --policy dynamoth --set lr_high=0.7
    """
    from nearcast.core.planner import Planning

    log_to_stderr()
    with errors_as_exit_codes():
        chosen, planning = chosen_policy(policy, thresholds), Planning(wait_s=wait, brokers_max=max_brokers)
    run(lambda: _serve(store, chosen, planning))


async def _serve(store: str, policy: Policy | None, planning: Planning) -> None:
    from nearcast.runtime.controller import Controller

    process = Controller(store, policy=policy, planning=planning)
    await process.start()
    log.info("controller %s", process.name)
    try:
        await until_told_to_stop()
    finally:
        await process.stop()
