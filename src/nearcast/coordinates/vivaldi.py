"""Vivaldi: a node moves its coordinate a little with every round trip it measures.

The network is a set of springs between nodes, at rest when the distance of two nodes is their round trip. A node that
hears of a round trip moves along that spring, far if it is unsure and its peer is sure. Four additions make it work on
real networks: heights (Dabek), a filter for single long round trips (`latency_filter.py`), neighbour decay and gravity
(Ledlie), and a last additive correction (Lee). One measurement passes them in this order: filter, force, adjustment,
gravity.

A peer may lie. What cannot be true is refused with a ProtocolError and changes nothing. What could be true moves a node
by at most a quarter of the reported round trip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import msgspec

from nearcast.coordinates.coordinate import Coordinate, distance_s, fault, raw_distance_s
from nearcast.coordinates.latency_filter import LatencyFilter
from nearcast.errors import ProtocolError, UsageError

NEIGHBOURS_MAX = 64  # of neighbour decay
TINY = 1e-6  # below this, a time or an error is taken for nothing


class VivaldiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The constants of a network of coordinates. All its nodes need the same dimensions."""

    dimensions: int = 8  # Serf; two or three suffice for distances on a globe, the others take up what does not fit
    error_max: float = 1.5  # Serf: the error of a newcomer
    error_gain: float = 0.25  # c_e
    force_gain: float = 0.25  # c_c
    adjustment_window: int = 20  # measurements; 0 switches the adjustment off
    height_min_s: float = 10e-6  # heights of zero would never grow, because forces multiply them
    filter_window: int = 3  # measurements per peer
    filter_percentile: float = 50.0  # of the window; Ledlie takes the 25th of 4
    gravity_s: float = 150.0  # rho: how far from the origin the pull is one second
    neighbour_decay_s: float = 0.0  # how long a neighbour's last measurement counts; 0 switches it off
    rtt_max_s: float = 10.0

    def __post_init__(self) -> None:
        positive = (self.error_max, self.height_min_s, self.gravity_s, self.rtt_max_s)
        if not all(0 < value < math.inf for value in positive):
            raise UsageError("error_max, height_min_s, gravity_s and rtt_max_s must be above 0 and finite")
        if self.dimensions < 1 or self.filter_window < 1 or self.adjustment_window < 0:
            raise UsageError("dimensions and filter_window must be at least 1, adjustment_window at least 0")
        if not (0 < self.error_gain <= 1 and 0 < self.force_gain <= 1):
            raise UsageError("error_gain and force_gain must be above 0 and at most 1")
        if not 0 <= self.filter_percentile <= 100:
            raise UsageError("filter_percentile must be between 0 and 100")
        if not 0 <= self.neighbour_decay_s < math.inf:
            raise UsageError("neighbour_decay_s must not be negative, and finite")


SERF = VivaldiSettings()
# Ledlie's filter, half an hour of neighbours, and a rho of 256. Theirs works on milliseconds: the same pull on seconds
# is sqrt(256^2 / 1000).
LEDLIE = VivaldiSettings(filter_window=4, filter_percentile=25.0, gravity_s=8.1, neighbour_decay_s=1800.0)


class _Neighbour(msgspec.Struct, frozen=True):
    coordinate: Coordinate
    rtt_s: float
    heard_s: float


class Vivaldi:
    """One node. It reads no clock: `now_s` matters only for neighbour decay."""

    def __init__(self, settings: VivaldiSettings = SERF, *, seed: int = 0) -> None:
        self.settings = settings
        self.resets = 0  # how often the own state was no longer finite
        self.refused = 0  # measurements that could not be true
        self._rng = Random(seed)
        self._filter = LatencyFilter(settings.filter_window, settings.filter_percentile)
        self._start()

    def _start(self) -> None:
        settings = self.settings
        self.coordinate = Coordinate((0.0,) * settings.dimensions, settings.height_min_s, settings.error_max)
        self._misses_s = [0.0] * settings.adjustment_window
        self._next_miss = 0
        self._neighbours: dict[str, _Neighbour] = {}  # in the order in which they were heard

    def observed(self, peer: str, coordinate: Coordinate, rtt_s: float, now_s: float = 0.0) -> Coordinate:
        """Take one measurement into account, with the peer's coordinate, and return the own one.

        Raises ProtocolError for a measurement that cannot be true. The state is as before then.
        """
        self._refuse_lies(peer, coordinate, rtt_s)
        rtt_s = max(self._filter.filtered(peer, rtt_s), TINY)
        error = self.coordinate.error
        self._update_error(coordinate, rtt_s)
        if self.settings.neighbour_decay_s:
            for neighbour, share in self._recent(peer, _Neighbour(coordinate, rtt_s, now_s)):
                self._pull(neighbour.coordinate, neighbour.rtt_s, share * _weight(error, neighbour.coordinate.error))
        else:
            self._pull(coordinate, rtt_s, _weight(error, coordinate.error))
        if self.settings.adjustment_window:
            self._adjust(coordinate, rtt_s)
        self._gravitate()
        if fault(self.coordinate, self.settings.dimensions):
            self.resets += 1
            self._start()
        return self.coordinate

    def forget(self, peer: str) -> None:
        """The peer is gone."""
        self._filter.forget(peer)
        self._neighbours.pop(peer, None)

    def _refuse_lies(self, peer: str, coordinate: Coordinate, rtt_s: float) -> None:
        problem = fault(coordinate, self.settings.dimensions)
        if not 0 <= rtt_s <= self.settings.rtt_max_s:  # false for NaN too
            problem = f"a round trip of {rtt_s:g} s; only 0 to {self.settings.rtt_max_s:g} s count"
        if problem:
            self.refused += 1
            raise ProtocolError(f"measurement of {peer!r} refused: {problem}")

    def _update_error(self, other: Coordinate, rtt_s: float) -> None:
        own = self.coordinate
        wrong = abs(distance_s(own, other) - rtt_s) / rtt_s
        gain = self.settings.error_gain * _weight(own.error, other.error)
        self._move(own.position_s, own.height_s, min(gain * wrong + own.error * (1 - gain), self.settings.error_max))

    def _pull(self, other: Coordinate, rtt_s: float, weight: float) -> None:
        force_s = self.settings.force_gain * weight * (rtt_s - distance_s(self.coordinate, other))
        self._apply(force_s, other.position_s, other.height_s)

    def _apply(self, force_s: float, origin_s: tuple[float, ...], height_s: float) -> None:
        """Move away from a point by this much, or towards it if negative."""
        own = self.coordinate
        apart_s = math.dist(own.position_s, origin_s)
        height = own.height_s
        if apart_s > TINY:
            step = force_s / apart_s
            position = tuple([x + (x - y) * step for x, y in zip(own.position_s, origin_s, strict=True)])
            height = max(height + (height + height_s) * step, self.settings.height_min_s)
        else:  # two nodes in one place have to part somehow
            position = tuple([x + force_s * u for x, u in zip(own.position_s, self._direction(), strict=True)])
        self._move(position, height, own.error)

    def _direction(self) -> list[float]:
        values = [self._rng.gauss(0.0, 1.0) for _ in range(self.settings.dimensions)]
        length = math.hypot(*values) or 1.0
        return [value / length for value in values]

    def _move(self, position_s: tuple[float, ...], height_s: float, error: float) -> None:
        self.coordinate = Coordinate(position_s, height_s, error, self.coordinate.adjustment_s)

    def _recent(self, peer: str, heard: _Neighbour) -> Iterator[tuple[_Neighbour, float]]:
        """All neighbours of late, each with its share of the force: the younger, the more (Ledlie)."""
        self._neighbours.pop(peer, None)
        self._neighbours[peer] = heard
        oldest_s = heard.heard_s - self.settings.neighbour_decay_s
        self._neighbours = {
            name: neighbour
            for name, neighbour in list(self._neighbours.items())[-NEIGHBOURS_MAX:]
            if neighbour.heard_s > oldest_s
        }
        total_s = sum(neighbour.heard_s - oldest_s for neighbour in self._neighbours.values())
        return ((neighbour, (neighbour.heard_s - oldest_s) / total_s) for neighbour in self._neighbours.values())

    def _adjust(self, other: Coordinate, rtt_s: float) -> None:
        """Half the mean of what positions and heights leave over; the peer's adjustment is the other half."""
        self._misses_s[self._next_miss] = rtt_s - raw_distance_s(self.coordinate, other)
        self._next_miss = (self._next_miss + 1) % len(self._misses_s)
        own = self.coordinate
        adjustment_s = sum(self._misses_s) / (2 * len(self._misses_s))
        self.coordinate = Coordinate(own.position_s, own.height_s, own.error, adjustment_s)

    def _gravitate(self) -> None:
        """Nodes that move alike would drift away together, and no force between them would notice."""
        own = self.coordinate
        settings = self.settings
        apart_s = math.hypot(*own.position_s) + own.height_s + settings.height_min_s
        self._apply(-((apart_s / settings.gravity_s) ** 2), (0.0,) * settings.dimensions, settings.height_min_s)


def _weight(own_error: float, other_error: float) -> float:
    """How far to trust the peer: from 0, if only the own coordinate is sure, to 1."""
    return own_error / max(own_error + other_error, TINY)
