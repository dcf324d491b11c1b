"""Coordinates from a whole matrix: brokers in space with heights, and clients placed among them.

Vivaldi finds coordinates one measurement at a time. Who has the whole matrix can do better: majorise the stress
(SMACOF, de Leeuw 1977) for the brokers, then find each client by damped Gauss-Newton steps. A client starts where the
brokers are whose profiles it shares, and a spring holds it there, the more firmly the fewer probes it has.
"""

from __future__ import annotations

import numpy as np

from nearcast.coordinates.probes import Floats, Probes

STEPS = 150
STEPS_LEFT_OUT = 60  # per broker that is left out
STEPS_CLIENT = 12
MS = 1e3
FIRMNESS = 0.1  # of the spring that holds a client at the broker nearest to it
PLAIN = 5  # dimensions. More are for networks that are like no map, and those need all they can get
SPARE = 3  # brokers, that more dimensions leave
LEFT_OUT_MAX = 32  # with more brokers than this, one of them does not matter to the others' places


def embedded(matrix: Floats, dimensions: int, steps: int = STEPS) -> Floats:
    """A row per broker: its position, then its height."""
    count = len(matrix)
    apart = ~np.eye(count, dtype=bool)
    weight = np.where(apart, 1 / np.maximum(matrix, 1.0), 0.0)
    total = np.maximum(weight.sum(axis=1), 1e-12)
    height = np.where(apart, matrix, np.inf).min(axis=1) / 4 if count > 1 else np.zeros(count)
    position = _classical(np.maximum(matrix - height[:, None] - height[None, :], 0.0) * apart, dimensions)
    inverse = np.linalg.pinv(np.diag(weight.sum(axis=1)) - weight)
    for _ in range(steps):
        distance = _distances(position, position)
        for _ in range(2):
            missing = (weight * (matrix - distance - height[None, :])).sum(axis=1) / total
            height = (height + np.maximum(missing, 0.0)) / 2
        target = np.maximum(matrix - height[:, None] - height[None, :], 0.0)
        pull = np.where(apart, -weight * target / np.maximum(distance, 1e-6), 0.0)
        pull -= np.diag(pull.sum(axis=1))
        position = inverse @ (pull @ position)
    return np.hstack([position, height[:, None]])


def _classical(distance: Floats, dimensions: int) -> Floats:
    """Positions by classical scaling, as a start."""
    count = len(distance)
    centring = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-0.5 * centring @ distance**2 @ centring)
    kept = np.argsort(values)[::-1][:dimensions]
    position: Floats = vectors[:, kept] * np.sqrt(np.maximum(values[kept], 0.0))
    return position


def _distances(one: Floats, other: Floats) -> Floats:
    inner = one @ other.T
    square = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None, :] - 2 * inner
    distance: Floats = np.sqrt(np.maximum(square, 0.0))
    return distance


class Embedding:
    """The brokers' coordinates; and once more for every broker that poses as a client, without it."""

    def __init__(self, matrix: Floats, dimensions: int) -> None:
        count = len(matrix)
        self._matrix = matrix
        most = count - SPARE if dimensions > PLAIN else count // 3
        self._dimensions = min(dimensions, max(1, most))
        self._whole = embedded(matrix, self._dimensions)
        self._without: Floats | None = None

    def estimated(self, probes: Probes, alike: Floats, firmness: float) -> Floats:
        """`alike`: the weights of the brokers in the middle from which each client starts."""
        places = np.broadcast_to(self._whole, (len(probes), *self._whole.shape))
        if bool((probes.poses_as >= 0).any()) and len(self._matrix) <= LEFT_OUT_MAX:
            places = self._left_out()[probes.poses_as]
        start = np.matmul(alike[:, None, :], places)[:, 0, :]
        anchors = np.take_along_axis(places, probes.broker[:, :, None], axis=1)
        own = _placed(anchors, probes, start, firmness)
        offset = places[:, :, :-1] - own[:, None, :-1]
        distance: Floats = np.sqrt((offset**2).sum(axis=2)) + places[:, :, -1] + own[:, None, -1]
        return distance

    def _left_out(self) -> Floats:
        if self._without is None:
            count = len(self._matrix)
            without = np.zeros((count, *self._whole.shape))
            for left in range(count):
                kept = np.arange(count) != left
                if kept.any():
                    without[left, kept] = embedded(self._matrix[np.ix_(kept, kept)], self._dimensions, STEPS_LEFT_OUT)
            self._without = without
        return self._without


def placed(brokers_s: Floats, probe_rtt_s: Floats) -> Floats:
    """Clients among brokers whose coordinates are known, from rows of probes with NaN where nothing was measured.

    A client starts at the broker that is nearest to it. Without a probe it stays a point nobody knows: NaN.
    """
    probes = Probes(probe_rtt_s * MS)
    anchors = (brokers_s * MS)[probes.broker]
    nearest = np.where(probes.there, probes.time, np.inf).argmin(axis=1)
    start = anchors[np.arange(len(probes)), nearest]
    found = _placed(anchors, probes, start, FIRMNESS) / MS
    found[~probes.known.any(axis=1)] = np.nan
    return found


def _placed(anchors: Floats, probes: Probes, start: Floats, firmness: float) -> Floats:
    """Each client's position and height: near its start, and at the measured distances from its anchors."""
    weight = np.where(probes.there, 1 / np.maximum(probes.time, 1.0), 0.0)
    count = np.maximum(probes.there.sum(axis=1, keepdims=True), 1)
    spring = firmness * weight.sum(axis=1, keepdims=True) / count + 1e-9
    own = start.copy()
    eye = np.eye(start.shape[1])
    for _ in range(STEPS_CLIENT):
        offset = own[:, None, :-1] - anchors[:, :, :-1]
        distance = np.sqrt((offset**2).sum(axis=2) + 1e-6)
        missed = distance + own[:, -1:] + anchors[:, :, -1] - probes.time
        slope = np.concatenate([offset / distance[:, :, None], np.ones_like(distance)[:, :, None]], axis=2)
        weighted = (slope * weight[:, :, None]).transpose(0, 2, 1)
        square = np.matmul(weighted, slope) + spring[:, :, None] * eye
        force = np.matmul(weighted, missed[:, :, None])[:, :, 0] + spring * (own - start)
        own = own - np.linalg.solve(square, force[:, :, None])[:, :, 0]
        own[:, -1] = np.maximum(own[:, -1], 0.0)
    return own
