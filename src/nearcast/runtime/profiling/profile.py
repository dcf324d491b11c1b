"""The profile of a broker: run after run, then what they say together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from nearcast.core.wire.backend import Credentials
from nearcast.errors import UsageError
from nearcast.runtime.calibration import LimitedBy
from nearcast.runtime.profiling.configuration import Configuration
from nearcast.runtime.profiling.correlation import correlations
from nearcast.runtime.profiling.runs import Run, measure
from nearcast.runtime.profiling.sweep import HIGHEST_SHARE, PEAK, Space, draw
from nearcast.runtime.profiling.threshold import FACTOR, Threshold, threshold
from nearcast.runtime.requester import Requester

Progress = Callable[[int, int, str], None]  # done, total, what comes next

RUNS_MAX = 1000
RATE_MAX_PER_S = 1e9


class ProfileSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to profile. With `runs=0` there is no sweep, only the given configurations."""

    seconds: float = 2.0  # of each run
    runs: int = 24  # of the sweep
    seed: int = 0
    space: Space = Space()
    highest_per_s: float | None = None  # delivered; None: the sweep begins with a run that finds out
    factor: float = FACTOR
    limit_s: float | None = None  # instead of the factor

    def __post_init__(self) -> None:
        highest_per_s = self.highest_per_s
        rules = (
            (0.5 <= self.seconds <= 60, "seconds", self.seconds, "0.5 to 60"),
            (0 <= self.runs <= RUNS_MAX, "runs", self.runs, f"0 to {RUNS_MAX}"),
            (highest_per_s is None or 1 <= highest_per_s <= RATE_MAX_PER_S, "messages/s", highest_per_s, "1 to 1e9"),
            (1 < self.factor <= 1000, "as factor", self.factor, "more than 1, at most 1000"),
            (self.limit_s is None or 0 < self.limit_s <= 60, "s as limit", self.limit_s, "more than 0, at most 60 s"),
        )
        for kept, name, value, rule in rules:
            if not kept:
                raise UsageError(f"cannot profile with {value} {name}: use {rule}")


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    runs: tuple[Run, ...]
    correlations: dict[str, float | None]
    threshold: Threshold


class _Session:
    def __init__(self, url: str, credentials: Credentials, settings: ProfileSettings, progress: Progress) -> None:
        self._url = url
        self._credentials = credentials
        self._settings = settings
        self._progress = progress
        self._requester = Requester(url, credentials)
        self.runs: list[Run] = []

    async def run(self, given: Sequence[Configuration]) -> None:
        total = self._settings.runs + len(given)
        try:
            if self._settings.runs:
                await self._sweep(total)
            for configuration in given:
                await self._measure(configuration, total)
        finally:
            await self._requester.close()
        self._progress(total, total, "done")

    async def _sweep(self, total: int) -> None:
        settings = self._settings
        peak_per_s, runs = (settings.highest_per_s or 0.0) / HIGHEST_SHARE, settings.runs
        if not peak_per_s:
            peak_per_s, runs = (await self._measure(settings.space.middle(), total)).output_per_s, runs - 1
        for planned in draw(settings.space, runs, Random(settings.seed)):
            await self._measure(planned.at(peak_per_s, settings.seconds), total)

    async def _measure(self, configuration: Configuration, total: int) -> Run:
        self._progress(len(self.runs), total, described(configuration))
        seconds = self._settings.seconds
        run = await measure(self._url, self._credentials, self._requester, configuration, seconds)
        self.runs.append(run)
        return run


def described(configuration: Configuration) -> str:
    rate_per_s = configuration.rate_per_s
    rate = PEAK if rate_per_s is None else f"{rate_per_s * configuration.deliveries:,.0f} messages/s out"
    each = f"{configuration.publishers} publishers and {configuration.subscribers} subscribers"
    return f"{configuration.topics} topics with {each}, {configuration.payload_bytes:,} B, {rate}"


async def profile(
    url: str,
    credentials: Credentials,
    settings: ProfileSettings,
    given: Sequence[Configuration] = (),
    progress: Progress = lambda done, total, what: None,
) -> Profile:
    """Profile one server. `credentials` are used for a URL that carries none. `given` comes after the sweep."""
    session = _Session(url, credentials, settings, progress)
    await session.run(given)
    return Profile(
        runs=tuple(session.runs),
        correlations=correlations([run for run in session.runs if run.limited_by is not LimitedBy.MEASURING]),
        threshold=threshold(session.runs, factor=settings.factor, limit_s=settings.limit_s),
    )
