"""Calibration measures how many bytes per second a broker's server can send (Dynamoth III-B, equation 1: T_i).

First it finds the peak: a fan-out with a growing window of messages in flight, until the server's own count of sent
bytes stops growing. Then it finds the capacity: a share of the peak, published at an even pace, and less if the server
cannot keep up with that. Latency is measured at the capacity, where the load ratio is 1, and not at the peak, where
everything queues.

The figure is valid for the path between this program and the server. So run it where the server's clients are, or
beside the server if its network is known to be wider. It also depends on the payload size: small messages cost more per
byte.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial

import msgspec

from nearcast.core.wire.backend import Credentials, Figures
from nearcast.core.wire.valkey import figures_of
from nearcast.errors import Unavailable, UsageError
from nearcast.runtime.fanout import PACE_S, Fanout
from nearcast.runtime.requester import Requester

# A Redis server fails when its load ratio exceeds 1.15 (Dynamoth V-D), so ratio 1 is set that far below the peak.
HEADROOM = 1 / 1.15
WINDOWS = (16, 64, 256, 1024)  # messages in flight to each subscriber
BACKLOG = 4096  # the same while a rate is held: a server that has fallen behind is slower
# Bytes in flight to one subscriber: a quarter of the backlog at which Valkey starts its timer for cutting one off.
WINDOW_BYTES = 2 << 20
GROWTH = 1.05  # a wider window must gain at least this much; two in a row that do not end the search
KEPT_UP = 0.95  # share of what was published that must have been delivered: the rest is in flight
QUEUE_S = 0.2  # longest queue allowed: a longer one shows the limit, and harms others
HOLDS = 3  # attempts to find a rate the server keeps up with
SETTLE_SHARE = 0.25  # of each step, left out of the measurement
DRAIN_S = 1.0  # for messages still in flight between two steps
BUSY = 0.85  # share of one core at which a process counts as the limit
PERCENTILE = 0.99


class LimitedBy(StrEnum):
    """What limited the peak."""

    SERVER = "server"  # its process used a whole core
    MEASURING = "measuring side"  # this program did: the server can do more
    PATH = "path"  # neither: the network between them, or other programs on their machines


class CalibrationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure. The server is under full load for at most `seconds`."""

    seconds: float = 5.0
    payload_bytes: int = 200  # of one message, without its header; as in `nearcast bench client`
    subscribers: int = 32  # connections

    def __post_init__(self) -> None:
        rules = (
            (1 <= self.seconds <= 60, "seconds", self.seconds, "1 to 60"),
            (1 <= self.payload_bytes <= 1 << 20, "payload bytes", self.payload_bytes, "1 to 1048576"),
            (1 <= self.subscribers <= 1000, "subscribers", self.subscribers, "1 to 1000"),
        )
        for kept, name, value, rule in rules:
            if not kept:
                raise UsageError(f"cannot calibrate with {value:g} {name}: use {rule}")

    @property
    def step_s(self) -> float:
        return self.seconds / (len(WINDOWS) + HOLDS)


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. The first four belong to the capacity, the others to the peak."""

    capacity_bytes_per_s: float
    deliveries_per_s: float
    latency_p99_s: float
    cpu_share: float  # of one core
    peak_bytes_per_s: float
    peak_cpu_share: float
    measuring_cpu_share: float  # of this program
    limited_by: LimitedBy


class _Step(msgspec.Struct, frozen=True):
    """The means over one step."""

    output_bytes_per_s: float
    published_per_s: float
    deliveries_per_s: float
    cpu_share: float
    own_cpu_share: float


_NOTHING = _Step(0.0, 0.0, 0.0, 0.0, 0.0)


class _Moment(msgspec.Struct, frozen=True):
    """All counts at one moment."""

    at_s: float
    own_cpu_s: float
    server: Figures
    published: int
    delivered: int
    on_its_way_bytes: int

    def until(self, end: _Moment) -> _Step:
        """The server counts a byte as sent once the kernel has taken it. Bytes that only filled buffers on the path
        are left out: on a slow path they would make a peak that no subscriber sees.
        """
        seconds = end.at_s - self.at_s
        filled_bytes = max(0, end.on_its_way_bytes - self.on_its_way_bytes)
        return _Step(
            output_bytes_per_s=(end.server.output_bytes - self.server.output_bytes - filled_bytes) / seconds,
            published_per_s=(end.published - self.published) / seconds,
            deliveries_per_s=(end.delivered - self.delivered) / seconds,
            cpu_share=(end.server.cpu_s - self.server.cpu_s) / seconds,
            own_cpu_share=(end.own_cpu_s - self.own_cpu_s) / seconds,
        )


async def calibrate(
    url: str, credentials: Credentials | None = None, settings: CalibrationSettings | None = None
) -> Calibration:
    """Measure one server. `credentials` are used for a URL that carries none."""
    settings = settings or CalibrationSettings()
    credentials = credentials or Credentials()
    requester = Requester(url, credentials)
    try:
        async with await Fanout.open(
            url, credentials, subscribers=settings.subscribers, payload_bytes=settings.payload_bytes
        ) as fanout:
            return await _Bench(requester, fanout, settings).run()
    finally:
        await requester.close()


class _Bench:
    """One measurement of one server."""

    def __init__(self, requester: Requester, fanout: Fanout, settings: CalibrationSettings) -> None:
        self._requester = requester
        self._fanout = fanout
        self._subscribers = settings.subscribers
        self._step_s = settings.step_s
        self._most = max(2, WINDOW_BYTES // fanout.push_bytes)

    async def run(self) -> Calibration:
        peak = await self._peak()
        held, capacity_bytes_per_s = await self._hold(peak)
        latencies_s = sorted(self._fanout.latencies_s)
        return Calibration(
            capacity_bytes_per_s=capacity_bytes_per_s,
            deliveries_per_s=held.deliveries_per_s,
            latency_p99_s=latencies_s[math.ceil(PERCENTILE * len(latencies_s)) - 1] if latencies_s else math.nan,
            cpu_share=held.cpu_share,
            peak_bytes_per_s=peak.output_bytes_per_s,
            peak_cpu_share=peak.cpu_share,
            measuring_cpu_share=peak.own_cpu_share,
            limited_by=_limit(peak),
        )

    async def _peak(self) -> _Step:
        """Widen the window until that gains nothing more, or builds a queue."""
        best, useless = _NOTHING, 0
        for window in WINDOWS:
            step = await self._measured(partial(self._fanout.keep, min(window, self._most)))
            grown = step.output_bytes_per_s >= best.output_bytes_per_s * GROWTH
            best = max(best, step, key=lambda found: found.output_bytes_per_s)
            useless = 0 if grown else useless + 1
            if useless == 2 or self._fanout.on_its_way_bytes > QUEUE_S * step.output_bytes_per_s:
                break
        return best

    async def _hold(self, peak: _Step) -> tuple[_Step, float]:
        """Publish at an even pace below the peak; if the server falls behind, below what it then delivers.

        Returns the last step and the capacity in bytes per second.
        """
        per_s = peak.published_per_s * HEADROOM
        for _ in range(HOLDS):
            await self._drain()
            backlog = min(BACKLOG, self._most, max(2, int(QUEUE_S * per_s)))
            step = await self._measured(partial(self._fanout.pace, per_s, backlog))
            delivered_per_s = step.deliveries_per_s / self._subscribers
            if not self._fanout.held_back and delivered_per_s >= KEPT_UP * step.published_per_s:
                return step, min(step.output_bytes_per_s, peak.output_bytes_per_s * HEADROOM)
            per_s = delivered_per_s * HEADROOM
        return step, step.output_bytes_per_s * HEADROOM

    async def _drain(self) -> None:
        """Wait until nothing is in flight."""
        self._fanout.stop()
        until_s = time.monotonic() + DRAIN_S
        while self._fanout.on_its_way_bytes > 0 and time.monotonic() < until_s:
            await self._fanout.wait(PACE_S)

    async def _measured(self, work: Callable[[float], Awaitable[None]]) -> _Step:
        """Do the work for one step, and measure all of it but the beginning."""
        begin, _ = await asyncio.gather(self._settled(), work(self._step_s))
        return begin.until(await self._moment())

    async def _settled(self) -> _Moment:
        await self._fanout.wait(self._step_s * SETTLE_SHARE)
        self._fanout.latencies_s.clear()
        return await self._moment()

    async def _moment(self) -> _Moment:
        info = await self._requester.ask("INFO")
        if not isinstance(info, bytes):
            raise Unavailable(f"the server does not report its figures ({info}): let this user run INFO")
        fanout = self._fanout
        return _Moment(
            at_s=time.monotonic(),
            own_cpu_s=time.process_time(),
            server=figures_of(info),
            published=fanout.sent,
            delivered=fanout.received,
            on_its_way_bytes=fanout.on_its_way_bytes,
        )


def _limit(peak: _Step) -> LimitedBy:
    if peak.cpu_share >= BUSY:
        return LimitedBy.SERVER
    return LimitedBy.MEASURING if peak.own_cpu_share >= BUSY else LimitedBy.PATH
