"""`nearcast controller`: one controller of the cluster; of several, one leads and the others wait."""

from __future__ import annotations

import logging

from nearcast.cli.options import StoreUrl
from nearcast.cli.running import log_to_stderr, run, until_told_to_stop

log = logging.getLogger("nearcast.controller")


def controller(store: StoreUrl) -> None:
    """Run a controller, until it is stopped. Run two on two machines: one leads, the other takes over.

    Example: nearcast controller --store redis://store.example.com:6379
    """
    log_to_stderr()
    run(lambda: _serve(store))


async def _serve(store: str) -> None:
    from nearcast.runtime.controller import Controller

    process = Controller(store)
    await process.start()
    log.info("controller %s", process.name)
    try:
        await until_told_to_stop()
    finally:
        await process.stop()
