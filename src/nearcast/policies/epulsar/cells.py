"""Brokers grouped by place, so that a topic is not compared with every one of them.

The cost of a broker for a topic is |P - b| + |C - b| + 2 h_b: the way from one point to the broker and on to another,
with the broker's height twice. By the triangle inequality, the costs of all brokers of a cell differ by at most four
radii. Most cells are then known to hold none of the brokers that keep a bound, or only such. The rest is looked at
broker by broker, so the result is exact.
"""

from __future__ import annotations

from math import inf

import msgspec
import numpy as np

from nearcast.policies.loads import Floats, Numbers

CELL_MAX = 16  # brokers
BLOCK = 4096  # topics at a time, which keeps the memory bounded
PRODUCT_MAX = 250_000  # multiplications at once: OpenBLAS starts threads for more, which wait for busy cores
ROUNDING_S = 1e-9  # far above the error of a distance, far below what anyone can measure


class Cell(msgspec.Struct, frozen=True, eq=False):
    brokers: Numbers  # ascending
    factor: Floats  # their places, ready for `apart`
    heights: Floats  # twice
    centre: Floats
    radius: float


class Found(msgspec.Struct, frozen=True, eq=False):
    """By topic: how many brokers cost at most the limit; the cheapest broker, and its cost."""

    count: Numbers
    best: Numbers
    best_cost: Floats  # infinite if there is no broker


class Cells:
    """Some brokers by place. Coordinates are a position, and a height at the end."""

    def __init__(self, coordinates: Floats, brokers: Numbers) -> None:
        groups = _split(coordinates[:, :-1], brokers) if len(brokers) else []
        self._cells = [_cell(coordinates, group) for group in groups]
        self._centres = factor_of(np.vstack([cell.centre for cell in self._cells])) if groups else np.empty((0, 0))
        self._radii = np.array([2 * cell.radius + ROUNDING_S for cell in self._cells])
        self._lowest = np.array([cell.heights.min() for cell in self._cells])
        self._highest = np.array([cell.heights.max() for cell in self._cells])

    def search(self, one: Floats, other: Floats, limit: Floats) -> Found:
        """`one` and `other`: the two points of each topic. `limit`: what a broker may cost."""
        count, best, cost = np.zeros(len(one), np.int32), np.zeros(len(one), np.int32), np.full(len(one), inf)
        for first in range(0, len(one) if self._cells else 0, BLOCK):
            block = slice(first, first + BLOCK)
            found = self._search(one[block], other[block], limit[block])
            count[block], best[block], cost[block] = found.count, found.best, found.best_cost
        return Found(count, best, cost)

    def _search(self, one: Floats, other: Floats, limit: Floats) -> Found:
        middle = apart(one, self._centres) + apart(other, self._centres)
        least, most = middle + (self._lowest - self._radii), middle + (self._highest + self._radii)
        within = most <= limit[:, None]
        count = within @ np.array([len(cell.brokers) for cell in self._cells])
        undecided = ~within & (least <= limit[:, None])
        wanted = undecided | (least <= most.min(axis=1)[:, None])
        best, cost = np.zeros(len(one), np.int32), np.full(len(one), inf)
        for number, cell in enumerate(self._cells):
            topics = np.flatnonzero(wanted[:, number])
            if not len(topics):
                continue
            costs = apart(one[topics], cell.factor) + apart(other[topics], cell.factor) + cell.heights
            count[topics] += (costs <= limit[topics, None]).sum(axis=1) * undecided[topics, number]
            column = costs.argmin(axis=1)
            cheapest, broker = costs[np.arange(len(topics)), column], cell.brokers[column]
            better = (cheapest < cost[topics]) | ((cheapest == cost[topics]) & (broker < best[topics]))
            best[topics[better]], cost[topics[better]] = broker[better], cheapest[better]
        return Found(count.astype(np.int32), best, cost)


def _split(places: Floats, brokers: Numbers) -> list[Numbers]:
    """Halves of the widest dimension, again and again."""
    if len(brokers) <= CELL_MAX:
        return [np.sort(brokers)]
    widest = int(np.ptp(places[brokers], axis=0).argmax()) if places.shape[1] else 0
    order = brokers[np.argsort(places[brokers, widest], kind="stable")] if places.shape[1] else brokers
    half = len(order) // 2
    return _split(places, order[:half]) + _split(places, order[half:])


def _cell(coordinates: Floats, brokers: Numbers) -> Cell:
    places = coordinates[brokers, :-1]
    centre = places.mean(axis=0)
    radius = float(np.sqrt(((places - centre) ** 2).sum(axis=1)).max())
    return Cell(brokers, factor_of(places), 2 * coordinates[brokers, -1], centre, radius)


# --- distances


def factor_of(places: Floats) -> Floats:
    """Places as the right side of the product of matrices that gives squared distances to them."""
    return np.ascontiguousarray(np.vstack((-2 * places.T, np.ones(len(places)), (places**2).sum(axis=1))))


def apart(coordinates: Floats, factor: Floats) -> Floats:
    """The distances in space, without heights."""
    places = coordinates[:, :-1]
    left = np.hstack((places, (places**2).sum(axis=1, keepdims=True), np.ones((len(places), 1))))
    squared = np.empty((len(left), factor.shape[1]))
    rows = max(1, PRODUCT_MAX // max(1, factor.size))
    for first in range(0, len(left), rows):
        np.matmul(left[first : first + rows], factor, out=squared[first : first + rows])
    np.maximum(squared, 0.0, out=squared)  # rounding may leave a little below zero
    return np.sqrt(squared, out=squared)
