"""How long messages took, by who plays and who decided where the topic is, over the time of an act."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from nearcast.testing.load import percentile


class Side(StrEnum):
    """Who decides where a topic is."""

    BOUND = "with a bound"  # the policy, so that messages keep the bound
    HASHED = "hashed"  # its name


@dataclass(frozen=True, slots=True)
class Series:
    """The topics of one group of players on one side."""

    group: str
    side: Side


@dataclass(frozen=True, slots=True)
class Delays:
    """The latencies of a while. None: there was no message."""

    p50_ms: float | None
    p95_ms: float | None
    within_share: float | None  # of the bound


class Timeline:
    """Latencies of every series, by when the messages were published, in seconds since the beginning."""

    def __init__(self, bound_s: float) -> None:
        self.bound_s = bound_s
        self._samples: dict[Series, list[tuple[float, float]]] = {}

    def note(self, series: Series, at_s: float, latency_s: float) -> None:
        insort(self._samples.setdefault(series, []), (at_s, latency_s))

    def delays(self, chosen: Collection[Series], from_s: float, until_s: float) -> Delays:
        """Of what these series published in this time."""
        latencies_s = sorted(chain.from_iterable(self._between(series, from_s, until_s) for series in chosen))
        within = sum(latency_s <= self.bound_s for latency_s in latencies_s)
        return Delays(
            p50_ms=_ms(percentile(latencies_s, 50)),
            p95_ms=_ms(percentile(latencies_s, 95)),
            within_share=round(within / len(latencies_s), 4) if latencies_s else None,
        )

    def _between(self, series: Series, from_s: float, until_s: float) -> list[float]:
        samples = self._samples.get(series, [])
        first, last = (bisect_left(samples, (at_s,)) for at_s in (from_s, until_s))
        return [latency_s for _, latency_s in samples[first:last]]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)
