"""Mixtures: a client as a blend of brokers, with weights that are not negative (non-negative least squares).

The weights are those with which the brokers' rows give the client's probes. With few probes many blends do, so the
search begins at the brokers whose profiles are alike, and ends early.
"""

from __future__ import annotations

import numpy as np

from nearcast.coordinates.probes import Floats, Probes

CANDIDATES = 64  # brokers per blend: those with the most similar profiles


def mixed(matrix: Floats, probes: Probes, start: Floats, steps: int) -> Floats:
    """The weights after so many steps, by client and broker.

    Multiplicative steps (Lee and Seung, 1999) never increase the error and never change a sign. An error counts the
    less the longer the round trip is.
    """
    count = min(CANDIDATES, start.shape[1])
    chosen = np.argpartition(-start, count - 1, axis=1)[:, :count]
    weights = np.take_along_axis(start, chosen, axis=1)[:, None, :]
    rows = matrix[chosen[:, :, None], probes.broker[:, None, :]]  # client, candidate, probe
    importance = np.where(probes.there, 1 / np.maximum(probes.time, 1.0), 0.0)[:, None, :]
    columns = np.ascontiguousarray(rows.transpose(0, 2, 1))
    wanted = np.matmul(importance * probes.time[:, None, :], columns)
    for _ in range(steps):
        reached = np.matmul(importance * np.matmul(weights, rows), columns)
        weights = weights * (wanted / (reached + 1e-12))
    wide = np.zeros_like(start)
    np.put_along_axis(wide, chosen, weights[:, 0, :], axis=1)
    return wide
