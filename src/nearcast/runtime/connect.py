"""The door to a cluster: `nearcast.connect`."""

from __future__ import annotations

from nearcast.core.model.settings import DEFAULT_LIMITS, DEFAULT_TIMING, Limits, Timing
from nearcast.runtime.calls import TIMEOUT_S, OnState
from nearcast.runtime.client import BOOTSTRAP_S, Client
from nearcast.runtime.driver import Resolve


def connect(
    *urls: str,
    timing: Timing = DEFAULT_TIMING,
    limits: Limits = DEFAULT_LIMITS,
    resolve: Resolve | None = None,
    bootstrap_s: float = BOOTSTRAP_S,
    patient: bool = True,
    timeout_s: float | None = TIMEOUT_S,
    on_state: OnState | None = None,
    probes: bool = True,
) -> Client:
    """A client of the cluster that these servers belong to; any one is enough. Await it, or use `async with`."""
    return Client(
        *urls,
        timing=timing,
        limits=limits,
        resolve=resolve,
        bootstrap_s=bootstrap_s,
        patient=patient,
        timeout_s=timeout_s,
        on_state=on_state,
        probes=probes,
    )
