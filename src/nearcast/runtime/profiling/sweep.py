"""The sweep: configurations in which every parameter varies independently of the others.

Each value of a parameter is used equally often, in a random order. What is spread evenly, on a logarithmic scale, is
the rate of delivered messages, because the threshold is one of those. The rate per topic follows from it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from nearcast.errors import UsageError
from nearcast.runtime.profiling.configuration import MESSAGES_MIN, Configuration

# Of the rate that the broker delivers at most in the first run. Other configurations may do more, or less.
LOWEST_SHARE = 0.01
HIGHEST_SHARE = 1.25
PEAK = "as fast as possible"


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """The values to choose from."""

    topics: tuple[int, ...] = (1, 4, 16)
    publishers: tuple[int, ...] = (1, 2, 4)
    subscribers: tuple[int, ...] = (1, 2, 4, 8)
    payload_bytes: tuple[int, ...] = (20, 200, 1000)

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name):
                raise UsageError(f"no value of {name} to choose from: give at least one")
        self._made(min)
        self._made(max)  # all others are between these

    def middle(self) -> Configuration:
        """A configuration without a rate, for the run that finds the highest one."""
        return self._made(lambda values: sorted(values)[len(values) // 2])

    def _made(self, choose: Callable[[tuple[int, ...]], int]) -> Configuration:
        topics, publishers = choose(self.topics), choose(self.publishers)
        subscribers, payload_bytes = choose(self.subscribers), choose(self.payload_bytes)
        return Configuration(
            topics=topics, publishers=publishers, subscribers=subscribers, payload_bytes=payload_bytes, name=PEAK
        )


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration whose rate is a share of one that is not known yet."""

    topics: int
    publishers: int
    subscribers: int
    payload_bytes: int
    share: float

    def at(self, peak_per_s: float, seconds: float) -> Configuration:
        rate_per_s = self.share * peak_per_s / (self.topics * self.subscribers)
        return Configuration(
            topics=self.topics,
            publishers=self.publishers,
            subscribers=self.subscribers,
            payload_bytes=self.payload_bytes,
            rate_per_s=max(rate_per_s, MESSAGES_MIN / seconds / self.topics),
        )


def draw(space: Space, runs: int, rng: Random) -> list[Planned]:
    columns = [_column(values, runs, rng) for values in msgspec.structs.astuple(space)]
    planned = [
        Planned(topics=topics, publishers=publishers, subscribers=subscribers, payload_bytes=payload_bytes, share=share)
        for topics, publishers, subscribers, payload_bytes, share in zip(*columns, _shares(runs), strict=True)
    ]
    rng.shuffle(planned)  # so that what else happens on the machine does not grow with the rate
    return planned


def _column(values: tuple[int, ...], runs: int, rng: Random) -> list[int]:
    column = [values[number % len(values)] for number in range(runs)]
    rng.shuffle(column)
    return column


def _shares(runs: int) -> list[float]:
    step = (HIGHEST_SHARE / LOWEST_SHARE) ** (1 / max(1, runs - 1))
    return [LOWEST_SHARE * step**number for number in range(runs)]
