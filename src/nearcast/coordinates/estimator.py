"""The estimator: the round trip between any client and any broker, from few probes.

The agents know all round trips between brokers. So a broker can pose as a client: hide all but k of its round trips,
let every method (`opinions.py`) estimate the others, and compare with the truth. That shows whom to believe on this
network, and in which circumstances; a small boosted model learns it. If what it learns does not hold for brokers it has
not seen, it is not used, and the methods' median or their best blend remains.

What is said about a client depends on its own probes alone, never on other clients'. So a lying client harms only
itself. What cannot be true (negative, endless, not a number) counts as not measured.
"""

from __future__ import annotations

import numpy as np

from nearcast.coordinates.boosting import Boosted, BoostSettings
from nearcast.coordinates.opinions import Council
from nearcast.coordinates.probes import (
    Flags,
    Floats,
    Numbers,
    Probes,
    checked_matrix,
    checked_probes,
    completed,
    from_log,
)
from nearcast.errors import UsageError

MS = 1e3
BLOCK = 256  # clients at once: bounds memory
POSES = 480  # of brokers as clients, all told; each pose hides other round trips
POSES_EACH = 16
ROWS_MAX = 24_000  # that a model learns from
FOLDS = 3
BLEND_STEPS = 200
BROKERS_MIN = 8  # with fewer, what is learnt from posing does not hold for others
WORTHWHILE = 0.99  # of the error without trees: what they save at least


class Estimator:
    """What was learnt from one matrix for one number of probes. Clients may have more probes, or fewer."""

    def __init__(self, broker_rtt_s: Floats, probes: int, *, seed: int = 0) -> None:
        if probes < 1:
            raise UsageError(f"{probes} probes per client: at least 1 is needed")
        known = checked_matrix(broker_rtt_s) * MS
        self._brokers = len(known)
        self._measured = ~np.isnan(known) | ~np.isnan(known.T)
        self._matrix = completed(known)
        self._council = Council(self._matrix)
        self._blend: Floats | None = None  # of opinions; without one, their median
        self._models: list[Boosted] = []
        self._trees = 0
        if self._brokers >= BROKERS_MIN:
            self._learn(min(probes, self._brokers - 2), np.random.default_rng(seed))

    def estimate(self, probe_rtt_s: Floats) -> Floats:
        """Round trips in seconds, by client and broker, from rows of probes with NaN where nothing was measured.

        Where a client has probed, its measurement is returned. A client without probes gets what brokers see typically.
        """
        given = checked_probes(probe_rtt_s, self._brokers) * MS
        estimates = np.empty_like(given)
        for begin in range(0, len(given), BLOCK):
            block = given[begin : begin + BLOCK]
            estimates[begin : begin + BLOCK] = self._estimated(block)
        return np.where(np.isnan(given), estimates, given) / MS

    def _estimated(self, given: Floats) -> Floats:
        found = np.tile(np.median(self._matrix, axis=0), (len(given), 1))
        told = np.flatnonzero(~np.isnan(given).all(axis=1))
        if len(told):
            probes = Probes(given[told])
            opinions = self._council.opinions(probes)
            middle = self._middle(opinions)
            found[told] = from_log(np.maximum(middle + self._learnt(probes, opinions, middle), 0.0))
        return found

    def _middle(self, opinions: Floats) -> Floats:
        if self._blend is not None:
            blended: Floats = np.tensordot(self._blend, opinions, axes=1)
            return blended
        middle: Floats = np.median(opinions, axis=0)
        return middle

    def _learnt(self, probes: Probes, opinions: Floats, middle: Floats) -> Floats:
        if not self._trees:
            return np.zeros_like(middle)
        features = self._council.circumstances(probes, opinions, middle)
        rows = features.reshape(-1, features.shape[-1])
        corrections: list[Floats] = [model.predicted(model.binned(rows), self._trees) for model in self._models]
        correction: Floats = np.mean(corrections, axis=0).reshape(middle.shape)
        return correction

    # --- learning

    def _learn(self, probes: int, rng: np.random.Generator) -> None:
        """Let brokers pose as clients, choose the middle, and fit the correction."""
        posed, truth = self._posed(probes, rng)
        if not posed:
            return
        opinions = np.concatenate([self._council.opinions(part) for part in posed], axis=1)
        scored = np.concatenate([~part.known for part in posed]) & ~np.isnan(truth)
        owner = np.concatenate([part.poses_as for part in posed])
        if scored.sum() < 2 * FOLDS:
            return
        group = np.broadcast_to((rng.permutation(self._brokers) % FOLDS)[owner][:, None], scored.shape)[scored]
        wanted = np.log1p(truth[scored])
        self._choose_middle(opinions[:, scored], wanted, group)
        middle = self._middle(opinions)
        features = np.concatenate(
            [
                self._council.circumstances(part, said, centre)
                for part, said, centre in zip(posed, _parts(opinions, posed, 1), _parts(middle, posed, 0), strict=True)
            ]
        )
        self._fit(features[scored], wanted - middle[scored], group, rng)

    def _posed(self, probes: int, rng: np.random.Generator) -> tuple[list[Probes], Floats]:
        count = self._brokers
        each = max(1, min(POSES_EACH, POSES // count))
        owners = np.tile(np.arange(count), each)
        if len(owners) > POSES:
            owners = rng.permutation(count)[:POSES]
        truth = np.where(self._measured, self._matrix, np.nan)[owners]
        truth[np.arange(len(owners)), owners] = np.nan
        lot = rng.random(truth.shape)
        lot[np.isnan(truth)] = 2.0
        probed = (lot.argsort(axis=1).argsort(axis=1) < probes) & ~np.isnan(truth)
        told = probed.any(axis=1)
        owners, truth, probed = owners[told], truth[told], probed[told]
        given = np.where(probed, truth, np.nan)
        parts = [slice(begin, begin + BLOCK) for begin in range(0, len(owners), BLOCK)]
        return [Probes(given[part], owners[part]) for part in parts], truth

    def _choose_middle(self, opinions: Floats, wanted: Floats, group: Numbers) -> None:
        """The median of the opinions, or a blend of them if that is better on brokers that it was not made for."""
        errors = np.abs(np.median(opinions, axis=0) - wanted)
        blended = np.empty_like(errors)
        for fold in np.unique(group):
            rest = group != fold
            if not rest.any():
                return
            blend = best_blend(opinions[:, rest], wanted[rest])
            blended[~rest] = np.abs(blend @ opinions[:, ~rest] - wanted[~rest])
        limit = 3 * np.median(errors) + 1e-12
        if np.minimum(blended, limit).mean() < 0.98 * np.minimum(errors, limit).mean():
            self._blend = best_blend(opinions, wanted)

    def _fit(self, features: Floats, left: Floats, group: Numbers, rng: np.random.Generator) -> None:
        """One model per fold, learnt without it; as many trees as are best there, or none."""
        course = np.zeros(BoostSettings().trees + 1)
        models = []
        for fold in np.unique(group):
            rest, apart = group != fold, group == fold
            learnt = _some(rest, rng)
            if not len(learnt):
                return
            model = Boosted(features[learnt], left[learnt], BoostSettings(), rng)
            course += model.course(model.binned(features[apart]), left[apart])
            models.append(model)
        if course.min() < WORTHWHILE * course[0]:
            self._models, self._trees = models, int(np.argmin(course))


def best_blend(opinions: Floats, wanted: Floats) -> Floats:
    """Weights with the sum 1 whose blend has the least error, where large errors count as if they were medium.

    Exponentiated gradient steps, which keep weights positive.
    """
    blend = np.full(len(opinions), 1 / len(opinions))
    scale = float(np.median(np.abs(np.median(opinions, axis=0) - wanted))) + 1e-9
    least, best = np.inf, blend
    for step in range(BLEND_STEPS):
        missed = blend @ opinions - wanted
        size = np.abs(missed)
        error = float(np.minimum(size, 3 * scale).mean())
        if error < least:
            least, best = error, blend
        slope = opinions @ (np.clip(missed / (0.1 * scale), -1, 1) * (size < 3 * scale)) / (len(wanted) * scale)
        blend = blend * np.exp(np.clip((slope.mean() - slope) * 0.5 / np.sqrt(1 + step / 10), -5, 5))
        blend = blend / blend.sum()
    return best


def _parts(values: Floats, posed: list[Probes], axis: int) -> list[Floats]:
    return np.split(values, np.cumsum([len(part) for part in posed])[:-1], axis=axis)


def _some(rows: Flags, rng: np.random.Generator) -> Numbers:
    numbers = np.flatnonzero(rows)
    return numbers if len(numbers) <= ROWS_MAX else rng.choice(numbers, ROWS_MAX, replace=False)
