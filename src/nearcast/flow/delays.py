"""Network delays between clients and brokers, one way.

Dynamoth (V.B) samples the King data set for every message: one value for client to infrastructure, two for client to
client. King measures round trips between DNS servers; the authors' code halves them, and so do we.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol, Self

import msgspec
import numpy as np

from nearcast.errors import UsageError
from nearcast.flow.demand import FloatArray, IntArray
from nearcast.flow.matrix_file import read_matrix

_MS = 1e-3


class Delays(Protocol):
    def one_way_s(self, clients: IntArray, brokers: IntArray, rng: np.random.Generator) -> FloatArray:
        """The delay of one message each between these clients and these brokers (numbers in order of joining)."""
        ...


class LognormalDelays(msgspec.Struct, frozen=True, kw_only=True):
    """King-like: every message has its own delay, whoever sends it, as in the paper.

    The mean makes two samples 75 ms, the response time the paper reports at rest with the North American part of King
    (V.D). The spread is that of the whole King data set of 1,740 servers: its median round trip is 159 ms (Dabek et
    al., SIGCOMM 2004), its mean about 180 ms (p2psim), and for a lognormal mean / median = exp(sigma^2 / 2).
    """

    mean_s: float = 0.0375
    sigma: float = math.sqrt(2 * math.log(180 / 159))

    def __post_init__(self) -> None:
        if self.mean_s <= 0 or self.sigma < 0:
            raise UsageError(f"mean_s {self.mean_s:g} must be above 0 and sigma {self.sigma:g} not below")

    def one_way_s(self, clients: IntArray, brokers: IntArray, rng: np.random.Generator) -> FloatArray:
        return rng.lognormal(math.log(self.mean_s) - self.sigma**2 / 2, self.sigma, len(clients))


class MatrixDelays:
    """Measured round trips between places. Clients are at random places, brokers too unless their places are given."""

    def __init__(self, places: tuple[str, ...], round_trip_s: FloatArray, broker_places: tuple[str, ...] = ()) -> None:
        unknown = [place for place in broker_places if place not in places]
        if unknown:
            raise UsageError(f"the matrix has no place {unknown[0]!r}: choose from {', '.join(places[:8])}, ...")
        self.places = places
        self._one_way_s = round_trip_s / 2
        self._broker_rows = np.array([places.index(place) for place in broker_places], dtype=np.int64)

    @classmethod
    def load(cls, path: Path | str, broker_places: tuple[str, ...] = ()) -> Self:
        """A CSV file of round trips in ms: see matrix_file.py."""
        places, round_trip_ms = read_matrix(Path(path))
        return cls(places, round_trip_ms * _MS, broker_places)

    def one_way_s(self, clients: IntArray, brokers: IntArray, rng: np.random.Generator) -> FloatArray:
        at_brokers = (
            self._broker_rows[brokers % len(self._broker_rows)]
            if len(self._broker_rows)
            else _place(brokers, len(self.places), 1)
        )
        return self._one_way_s[_place(clients, len(self.places), 0), at_brokers]


def _place(numbers: IntArray, places: int, kind: int) -> IntArray:
    """Where a client or broker of this number lives: random, but always the same."""
    mixed = (numbers.astype(np.uint64) * np.uint64(2) + np.uint64(kind)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.uint64(places)).astype(np.int64)
