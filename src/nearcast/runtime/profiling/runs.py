"""A run: one configuration for some seconds, and what was measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from nearcast.core.wire.backend import Credentials, Figures
from nearcast.core.wire.valkey import figures_of
from nearcast.errors import Unavailable
from nearcast.runtime.calibration import BUSY, SETTLE_SHARE, LimitedBy
from nearcast.runtime.profiling.configuration import Configuration
from nearcast.runtime.profiling.traffic import Traffic
from nearcast.runtime.requester import Requester

KEPT_RATE = 0.95  # share of the asked rate that must have been published


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The means over one run, without its beginning. All rates are achieved ones."""

    configuration: Configuration
    published_per_s: float
    output_per_s: float  # messages delivered
    output_bytes_per_s: float  # as the server counts them
    latency_p50_s: float
    latency_p95_s: float
    latency_p99_s: float
    cpu_share: float  # of the server, of one core
    measuring_cpu_share: float  # of this program

    @property
    def kept_share(self) -> float:
        """Of the asked rate."""
        rate_per_s = self.configuration.rate_per_s
        return 1.0 if rate_per_s is None else self.published_per_s / (rate_per_s * self.configuration.topics)

    @property
    def kept_rate(self) -> bool:
        return self.kept_share >= KEPT_RATE

    @property
    def limited_by(self) -> LimitedBy | None:
        """What was busy; None if nothing was, and the rate was kept."""
        if self.cpu_share >= BUSY:
            return LimitedBy.SERVER
        if self.measuring_cpu_share >= BUSY:
            return LimitedBy.MEASURING  # what the run shows is not the server's limit
        return None if self.kept_rate and self.configuration.rate_per_s is not None else LimitedBy.PATH


class _Moment(msgspec.Struct, frozen=True):
    at_s: float
    own_cpu_s: float
    server: Figures
    sent: int
    received: int


async def measure(
    url: str, credentials: Credentials, requester: Requester, configuration: Configuration, seconds: float
) -> Run:
    async with await Traffic.open(url, credentials, configuration) as traffic:
        begin, _ = await asyncio.gather(_settled(traffic, requester, seconds), traffic.publish(seconds))
        end = await _moment(traffic, requester)
    if not traffic.latencies:
        raise Unavailable(f"the server delivered nothing within {seconds:g} s: does it do other work? Try again later")
    measured_s = end.at_s - begin.at_s
    p50_s, p95_s, p99_s = percentiles(traffic.latencies, (0.5, 0.95, 0.99))
    return Run(
        configuration=configuration,
        published_per_s=(end.sent - begin.sent) / measured_s,
        output_per_s=(end.received - begin.received) / measured_s,
        output_bytes_per_s=(end.server.output_bytes - begin.server.output_bytes) / measured_s,
        latency_p50_s=p50_s,
        latency_p95_s=p95_s,
        latency_p99_s=p99_s,
        cpu_share=(end.server.cpu_s - begin.server.cpu_s) / measured_s,
        measuring_cpu_share=(end.own_cpu_s - begin.own_cpu_s) / measured_s,
    )


async def _settled(traffic: Traffic, requester: Requester, seconds: float) -> _Moment:
    await traffic.wait(seconds * SETTLE_SHARE)
    traffic.latencies.clear()
    return await _moment(traffic, requester)


async def _moment(traffic: Traffic, requester: Requester) -> _Moment:
    info = await requester.ask("INFO")
    if not isinstance(info, bytes):
        raise Unavailable(f"the server does not report its figures ({info}): let this user run INFO")
    return _Moment(time.monotonic(), time.process_time(), figures_of(info), traffic.sent, traffic.received)


def percentiles(latencies: Sequence[tuple[float, int]], shares: Sequence[float]) -> list[float]:
    """Of messages, given as latencies with the number of messages that had them. The shares ascend."""
    ordered = sorted(latencies)
    total = sum(count for _, count in ordered)
    found: list[float] = []
    passed = 0
    for latency_s, count in ordered:
        passed += count
        while len(found) < len(shares) and passed >= shares[len(found)] * total:
            found.append(latency_s)
    return found
