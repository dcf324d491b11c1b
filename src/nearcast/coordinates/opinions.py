"""Opinions: what each of the simple methods says about every pair of client and broker.

None is best everywhere. Profiles are good where a broker is beside the client, blends and regressions between brokers,
coordinates where the network is like a map. What they say, and what the pair looks like, is all that the last step
(`estimator.py`) sees.
"""

from __future__ import annotations

import numpy as np

from nearcast.coordinates.embedding import Embedding
from nearcast.coordinates.mixing import mixed
from nearcast.coordinates.probes import Floats, Probes, to_log, with_selves
from nearcast.coordinates.profiles import dissimilarity, likeness, mean_profile, regressed
from nearcast.coordinates.residuals import corrected, kinship

FIRM, SOFT, LOOSE = 0.5, 0.1, 0.02  # how much a client's coordinate is held where its profile says
NARROW, WIDE = 0.05, 0.3  # how similar profiles must be to have a say in that
EMBEDDINGS = {  # by dimensions: the globe's surface; what does not fit on it; as many as Serf has
    2: ((FIRM, NARROW), (LOOSE, NARROW)),
    5: ((FIRM, NARROW), (LOOSE, NARROW)),
    8: ((LOOSE, NARROW),),
}
FEW = 32  # brokers, of which the one with the most similar profile may be far away
EMBEDDINGS_OF_FEW = {
    2: ((FIRM, WIDE), (SOFT, WIDE)),
    5: ((FIRM, WIDE), (SOFT, WIDE)),
    8: ((LOOSE, WIDE),),
}


class Council:
    """All methods, with what they need of the brokers' matrix."""

    def __init__(self, matrix: Floats) -> None:
        self._matrix = matrix  # complete, in ms
        self._seen = with_selves(matrix)
        self._kin = kinship(self._seen)
        chosen = EMBEDDINGS if len(matrix) > FEW else EMBEDDINGS_OF_FEW
        self._embeddings = [(Embedding(matrix, dimensions), starts) for dimensions, starts in chosen.items()]
        self._typical = np.median(to_log(self._seen), axis=0)

    def opinions(self, probes: Probes) -> Floats:
        """Logarithms of round trips, by method, client and broker."""
        seen, apart = self._seen, dissimilarity(self._seen, probes)
        near = mixed(seen, probes, likeness(apart, 0.07), 40)
        plain = [
            mean_profile(seen, apart, 0.03),
            near @ seen,
            mixed(seen, probes, near, 200) @ seen,
            mixed(seen, probes, likeness(apart, 0.15), 240) @ seen,
            regressed(seen, probes, apart, 0.15),
            regressed(seen, probes, apart, 0.3),
            regressed(seen, probes, apart, 0.15, root=False),
        ]
        for embedding, starts in self._embeddings:
            plain += [embedding.estimated(probes, likeness(apart, scale), firmness) for firmness, scale in starts]
        highest = 3 * np.maximum(seen.max(initial=0.0), probes.time.max(axis=1, initial=0.0))[:, None] + 1.0
        plain = [np.clip(estimate, 0.0, highest) for estimate in plain]
        better = [corrected(estimate, probes, self._kin) for estimate in plain]
        return to_log(np.clip(np.array(plain + better), 0.0, highest))

    def circumstances(self, probes: Probes, opinions: Floats, middle: Floats) -> Floats:
        """What a pair looks like, by client, broker and feature: when to believe whom."""
        there = probes.there[:, :, None]
        to_probed = self._matrix[probes.broker]  # client, probe, broker
        own = probes.time[:, :, None]
        least = np.where(there, np.abs(own - to_probed), 0.0).max(axis=1, initial=0.0)
        most = np.where(there, own + to_probed, np.inf).min(axis=1, initial=np.inf)
        nearest = np.where(there, to_probed, np.inf).argmin(axis=1)[:, None, :]
        to_nearest = np.take_along_axis(to_probed, nearest, axis=1)[:, 0, :]
        own_nearest = np.take_along_axis(np.broadcast_to(own, to_probed.shape), nearest, axis=1)[:, 0, :]
        missed = np.where(probes.there, probes.log - probes.at_probes(opinions[2]), 0.0)
        missed_nearest = np.take_along_axis(np.broadcast_to(missed[:, :, None], to_probed.shape), nearest, axis=1)
        misfit = np.sqrt((missed**2).sum(axis=1) / np.maximum(probes.there.sum(axis=1), 1))
        closest = np.where(probes.there, probes.log, np.inf)
        from_closest = np.take_along_axis(to_probed, closest.argmin(axis=1)[:, None, None], axis=1)[:, 0, :]
        apart = dissimilarity(self._seen, probes).min(axis=1)
        limit = to_log(np.array(3 * self._seen.max(initial=0.0) + 1.0))
        features = [
            *(opinion - middle for opinion in opinions),
            to_log(least) - middle,
            np.minimum(to_log(most), limit + 10.0) - middle,
            middle,
            to_log(to_nearest),
            to_log(own_nearest) - middle,
            missed_nearest[:, 0, :],
            to_log(from_closest) - middle,
            *np.broadcast_arrays(closest.min(axis=1)[:, None], misfit[:, None], apart[:, None], middle)[:3],
            np.broadcast_to(self._typical, middle.shape),
            opinions.std(axis=0),
        ]
        found: Floats = np.nan_to_num(np.stack(features, axis=-1), posinf=50.0, neginf=-50.0)
        return found
