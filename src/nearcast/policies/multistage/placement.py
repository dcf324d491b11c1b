"""Stage 1 (section 5.1): the broker of a subscriber that has just come, before it has subscribed to anything."""

from __future__ import annotations

import numpy as np

from nearcast.errors import UsageError
from nearcast.policies.multistage.demand import Floats, Numbers

ROWS_AT_ONCE = 50_000  # subscribers whose distances are in memory together


def nearest(subscribers: Floats, brokers: Floats) -> Numbers:
    """NR: the broker at the least distance, the first of equal ones. Rows are positions or coordinates."""
    if not len(brokers) or subscribers.ndim != 2 or subscribers.shape[1:] != brokers.shape[1:]:
        raise UsageError("nearest placement needs brokers, and positions of the same dimensions for everybody")
    home = np.empty(len(subscribers), dtype=np.int32)
    centre = brokers.mean(axis=0)  # differences from it keep their digits when coordinates are large
    sites = brokers - centre
    squares = (sites * sites).sum(axis=1)
    for first in range(0, len(subscribers), ROWS_AT_ONCE):
        rows = subscribers[first : first + ROWS_AT_ONCE] - centre
        home[first : first + ROWS_AT_ONCE] = (squares - 2 * (rows @ sites.T)).argmin(axis=1)
    return home


def round_robin(count: int, brokers: int, first: int = 0) -> Numbers:
    """RR: one after the other; `first` is where the last call ended."""
    return ((np.arange(count) + first) % brokers).astype(np.int32)


def at_random(count: int, brokers: int, seed: int) -> Numbers:
    """RND: any broker, the same ones for the same seed."""
    return np.random.default_rng(seed).integers(brokers, size=count, dtype=np.int32)


def least_loaded(count: int, loads: Floats) -> Numbers:
    """LL: all who come between two measurements go to the same broker, which is what the paper has against it."""
    return np.full(count, loads.argmin(), dtype=np.int32)
