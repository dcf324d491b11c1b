"""What is known: all round trips between brokers, and of each client those to the k brokers it probed.

Inside the estimator a time is a number of milliseconds, and most work is done on `log(1 + time)`. That makes errors
relative where times are long, and absolute below a millisecond, where nobody minds a factor of two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearcast.errors import UsageError

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]

RTT_MAX_S = 10.0  # as for coordinates: longer is not a round trip
SELF_SHARE = 0.2  # a client in a broker's place is this share of the way to the broker's neighbours from it
NEIGHBOURS = 3
NOBODY = -1


def to_log(times: Floats) -> Floats:
    return np.log1p(times)


def from_log(logs: Floats) -> Floats:
    return np.expm1(logs)


class Probes:
    """The probes of many clients, one row each, padded to the longest.

    A client may be a broker that poses as one. `poses_as` names it then, and no estimate of that row may use what the
    cluster knows of that broker.
    """

    def __init__(self, times: Floats, poses_as: Numbers | None = None) -> None:
        known = ~np.isnan(times)
        self.most = int(known.sum(axis=1).max(initial=0))
        self.broker: Numbers = np.argsort(~known, axis=1, kind="stable")[:, : self.most]
        self.there: Flags = np.take_along_axis(known, self.broker, axis=1)
        self.time: Floats = np.where(self.there, np.take_along_axis(times, self.broker, axis=1), 0.0)
        self.log: Floats = to_log(self.time)
        self.known = known
        self.poses_as = np.full(len(times), NOBODY) if poses_as is None else poses_as
        self.brokers = times.shape[1]

    def __len__(self) -> int:
        return len(self.time)

    def at_probes(self, values: Floats) -> Floats:
        """Of each client's row of values, those of the brokers it probed."""
        return np.take_along_axis(values, self.broker, axis=1)

    def spread(self, values: Floats) -> Floats:
        """The opposite: values per probe as rows over all brokers, zero elsewhere."""
        wide = np.zeros((len(self), self.brokers))
        np.put_along_axis(wide, self.broker, np.where(self.there, values, 0.0), axis=1)
        return wide


# --- checks


def checked_matrix(broker_rtt_s: Floats) -> Floats:
    """The matrix if it is one; NaN means that nobody measured."""
    matrix = np.asarray(broker_rtt_s, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise UsageError(f"the brokers' round trips have the shape {matrix.shape}: give a square matrix")
    if bool((matrix < 0).any() or (matrix > RTT_MAX_S).any()):
        raise UsageError(f"the brokers' round trips must be between 0 and {RTT_MAX_S:g} s, or NaN where unknown")
    return matrix


def checked_probes(probe_rtt_s: Floats, brokers: int) -> Floats:
    """One row per client. What cannot be true counts as not measured: one liar must not stop the others' estimates."""
    probes = np.asarray(probe_rtt_s, dtype=np.float64)
    if probes.ndim != 2 or probes.shape[1] != brokers:
        raise UsageError(f"probes have the shape {probes.shape}: give one row per client, with {brokers} brokers each")
    with np.errstate(invalid="ignore"):
        return np.where((probes >= 0) & (probes <= RTT_MAX_S), probes, np.nan)


# --- the brokers' matrix


def completed(matrix: Floats) -> Floats:
    """Symmetrical, without holes, zero on the diagonal.

    A hole takes the other direction. Without that, it takes the middle of what the triangles over all other brokers
    allow, and without any triangle the median.
    """
    other = matrix.T
    both = np.where(np.isnan(matrix), other, np.where(np.isnan(other), matrix, (matrix + other) / 2))
    np.fill_diagonal(both, 0.0)
    holes = np.argwhere(np.triu(np.isnan(both), 1))
    if not len(holes):
        return both
    apart = both[~np.eye(len(both), dtype=bool)]
    middle = float(np.nanmedian(apart)) if not np.isnan(apart).all() else 0.0
    filled = both.copy()
    for one, two in holes:
        sums, gaps = both[one] + both[two], np.abs(both[one] - both[two])
        usable = ~np.isnan(sums)
        value = (sums[usable].min() + gaps[usable].max()) / 2 if usable.any() else middle
        filled[one, two] = filled[two, one] = value
    return filled


def with_selves(matrix: Floats) -> Floats:
    """The matrix with a diagonal as clients would see it: a broker is no way from itself, a client beside it is."""
    count = len(matrix)
    seen = matrix.copy()
    if count > 1:
        others = np.sort(matrix + np.diag(np.full(count, np.inf)), axis=1)
        near = others[:, : min(NEIGHBOURS, count - 1)].mean(axis=1)
        seen[np.arange(count), np.arange(count)] = SELF_SHARE * near
    return seen
