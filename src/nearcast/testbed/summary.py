"""What an act of the demo did, and what subscribers got."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TypedDict

from nearcast.testbed.audit import Verdict
from nearcast.testbed.recent import percentile


class Judged(TypedDict):
    lost: int
    duplicated: int
    reordered: int
    gaps: int
    interrupted: int
    exact: bool
    examples: list[str]


class Percentiles(TypedDict):
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What subscribers got. `exact`: every message came once and in order, and nobody was cut off.

    `finished`: nobody ended the act early. `missed`: what it was to show and did not.
    """

    seconds: float
    clients: int
    seed: int
    messages: int
    deliveries: int
    lost: int
    duplicated: int
    reordered: int
    gaps: int
    interrupted: int
    p50_ms: float | None
    p99_ms: float | None
    exact: bool
    examples: list[str]  # of what went wrong
    finished: bool
    missed: list[str]


def judged(verdicts: list[Verdict]) -> Judged:
    return Judged(
        lost=sum(verdict.lost for verdict in verdicts),
        duplicated=sum(verdict.duplicated for verdict in verdicts),
        reordered=sum(verdict.reordered for verdict in verdicts),
        gaps=sum(verdict.gaps for verdict in verdicts),
        interrupted=sum(verdict.interrupted for verdict in verdicts),
        exact=all(verdict.exact for verdict in verdicts),
        examples=list(chain.from_iterable(verdict.examples for verdict in verdicts)),
    )


def percentiles_ms(latencies_s: Iterable[float]) -> Percentiles:
    ordered_s = sorted(latencies_s)
    return Percentiles(p50_ms=_ms(percentile(ordered_s, 50)), p99_ms=_ms(percentile(ordered_s, 99)))


def noticed(verdict: Verdict) -> int:
    """Without what is lost at an end of a line: until the end of the run it may be on its way."""
    wrong = verdict.duplicated + verdict.reordered + verdict.unexpected + verdict.lost_middle
    return wrong + verdict.gaps + verdict.interrupted


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)
