"""Residual correction: what an estimate misses at the probed brokers, it misses at similar brokers too (kriging)."""

from __future__ import annotations

import numpy as np

from nearcast.coordinates.probes import Floats, Probes, from_log, to_log

NOISE = 0.3  # of a residual, relative to what brokers have in common: shrinks the correction


def kinship(matrix: Floats) -> Floats:
    """How alike the rows of two brokers are, from 0 to 1."""
    logs = to_log(matrix)
    inner = logs @ logs.T
    square = np.diag(inner)[:, None] + np.diag(inner)[None, :] - 2 * inner
    return np.exp(-np.sqrt(np.maximum(square, 0.0) / max(len(matrix), 1)))


def corrected(estimate: Floats, probes: Probes, kin: Floats) -> Floats:
    missed = np.where(probes.there, probes.log - to_log(probes.at_probes(estimate)), 0.0)
    both = probes.there[:, :, None] & probes.there[:, None, :]
    shared = kin[probes.broker[:, :, None], probes.broker[:, None, :]] * both + NOISE * np.eye(probes.most)
    strength = np.asarray(np.linalg.solve(shared, missed[:, :, None])[:, :, 0], dtype=np.float64)
    return from_log(np.maximum(to_log(estimate) + probes.spread(strength) @ kin, 0.0))
