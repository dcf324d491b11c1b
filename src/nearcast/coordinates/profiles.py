"""Profiles: a broker's row of round trips, and how well it describes a client.

A client that measures about what a broker measures is near it, or at least reaches the network the same way. Two
estimates follow: the mean of the most similar profiles, and a regression among them, which also learns how a column of
the matrix depends on the probed columns.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nearcast.coordinates.probes import NOBODY, Floats, Probes, from_log, to_log

RIDGE = 0.007  # of the regression, relative to the mean round trip


def dissimilarity(matrix: Floats, probes: Probes) -> Floats:
    """By client and broker: root of the mean square of the differences between logarithms, over the client's probes."""
    logs = to_log(matrix)
    seen = probes.spread(probes.log)
    known = probes.known.astype(np.float64)
    square = (seen**2).sum(axis=1)[:, None] - 2 * seen @ logs.T + known @ (logs**2).T
    count = np.maximum(known.sum(axis=1), 1.0)[:, None]
    apart: Floats = np.sqrt(np.maximum(square, 0.0) / count)
    posing = np.flatnonzero(probes.poses_as != NOBODY)
    apart[posing, probes.poses_as[posing]] = np.inf
    return apart


def likeness(apart: Floats, scale: float) -> Floats:
    """Weights of the brokers for each client, with the sum 1."""
    nearest = apart.min(axis=1, keepdims=True)
    nearest = np.where(np.isfinite(nearest), nearest, 0.0)
    weights = np.exp(-(apart - nearest) / scale)
    total = weights.sum(axis=1, keepdims=True)
    even = np.full_like(weights, 1 / max(weights.shape[1], 1))
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), even)


def mean_profile(matrix: Floats, apart: Floats, scale: float) -> Floats:
    return from_log(likeness(apart, scale) @ to_log(matrix))


def regressed(
    matrix: Floats, probes: Probes, apart: Floats, scale: float, *, root: bool = True, ridge: float = RIDGE
) -> Floats:
    """Regress every column on the probed columns, over profiles weighted by likeness, and read off the client's value.

    It runs on square roots or on logarithms. Both tame long round trips; they err in different places.
    """
    there: Callable[[Floats], Floats] = np.sqrt if root else to_log
    columns = there(matrix)
    own = np.where(probes.there, there(probes.time), 0.0)
    weights = likeness(apart, scale)
    offsets = columns[:, probes.broker].transpose(1, 0, 2) - own[:, None, :]  # client, profile, probe
    offsets *= probes.there[:, None, :]
    centre = np.matmul(weights[:, None, :], offsets)[:, 0, :]
    offsets -= centre[:, None, :]
    weighted = (offsets * weights[:, :, None]).transpose(0, 2, 1)
    penalty = ridge * (float(matrix.mean()) if root else 4.0) + 1e-9
    square = np.matmul(weighted, offsets) + penalty * np.eye(probes.most)
    slopes = np.linalg.solve(square, np.matmul(weighted, columns))
    value = weights @ columns - np.matmul(centre[:, None, :], slopes)[:, 0, :]
    value = np.clip(value, 0.0, 1.3 * columns.max(initial=0.0) + 1e-9)
    return value**2 if root else from_log(value)
