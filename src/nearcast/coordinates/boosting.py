"""A small boosted model: many shallow trees, each correcting a little of what those before it left over.

The trees are oblivious: all nodes of a level ask the same question, so a tree is a short list of questions and a table.
They are hard to overfit, and quick with arrays. Outliers have no more pull than others, because a step follows the
clipped residual, and a leaf's value is a median.
"""

from __future__ import annotations

import msgspec
import numpy as np

from nearcast.coordinates.probes import Floats, Numbers


class BoostSettings(msgspec.Struct, frozen=True, kw_only=True):
    trees: int = 120
    depth: int = 4
    rate: float = 0.12
    bins: int = 24
    steady: int = 40  # rows that a leaf needs to count half
    row_share: float = 0.6
    feature_share: float = 0.6


class _Tree(msgspec.Struct, frozen=True):
    questions: list[tuple[int, int]]  # feature, bin: is it above?
    values: Floats


class Boosted:
    """A fitted model. `best` says after how many trees it was best on the rows it did not learn from."""

    def __init__(self, features: Floats, target: Floats, settings: BoostSettings, rng: np.random.Generator) -> None:
        self._settings = settings
        quantiles = np.linspace(0, 1, settings.bins + 1)[1:-1]
        self._edges = [np.unique(np.quantile(column, quantiles)) for column in features.T]
        self._trees: list[_Tree] = []
        binned = self.binned(features)
        left = target.copy()
        for _ in range(settings.trees):
            tree = self._grown(binned, left, rng)
            self._trees.append(tree)
            left -= tree.values[_leaves(binned, tree.questions)]

    def binned(self, features: Floats) -> Numbers:
        """By feature and row."""
        return np.array([np.searchsorted(edges, column) for edges, column in zip(self._edges, features.T, strict=True)])

    def predicted(self, binned: Numbers, trees: int) -> Floats:
        total = np.zeros(binned.shape[1])
        for tree in self._trees[:trees]:
            total += tree.values[_leaves(binned, tree.questions)]
        return total

    def course(self, binned: Numbers, target: Floats) -> Floats:
        """The mean absolute error on these rows, after 0, 1, 2, ... trees."""
        left = target.copy()
        errors = [np.abs(left).mean()]
        for tree in self._trees:
            left -= tree.values[_leaves(binned, tree.questions)]
            errors.append(np.abs(left).mean())
        return np.array(errors)

    def _grown(self, binned: Numbers, left: Floats, rng: np.random.Generator) -> _Tree:
        settings = self._settings
        rows = np.flatnonzero(rng.random(len(left)) < settings.row_share)
        features = np.flatnonzero(rng.random(len(binned)) < settings.feature_share)
        scale = np.median(np.abs(left)) + 1e-12
        pull = np.clip(left[rows] / scale, -1.0, 1.0)
        some = np.ascontiguousarray(binned[:, rows])
        leaf = np.zeros(len(rows), dtype=np.int64)
        questions = []
        for level in range(settings.depth):
            question = self._best_question(some, features, pull, leaf, 1 << level)
            questions.append(question)
            leaf = leaf * 2 + (some[question[0]] > question[1])
        return _Tree(questions, self._values(_leaves(binned, questions), left))

    def _best_question(
        self, binned: Numbers, features: Numbers, pull: Floats, leaf: Numbers, leaves: int
    ) -> tuple[int, int]:
        bins, steady = self._settings.bins, self._settings.steady
        best, question = -1.0, (0, 0)
        for feature in features:
            cell = leaf * bins + binned[feature]
            pulls = np.bincount(cell, pull, leaves * bins).reshape(leaves, bins).cumsum(axis=1)
            rows = np.bincount(cell, minlength=leaves * bins).reshape(leaves, bins).cumsum(axis=1)
            above, rows_above = pulls[:, -1:] - pulls, rows[:, -1:] - rows
            gain = (pulls**2 / (rows + steady) + above**2 / (rows_above + steady)).sum(axis=0)[:-1]
            if gain.max() > best:
                best, question = float(gain.max()), (int(feature), int(gain.argmax()))
        return question

    def _values(self, leaf: Numbers, left: Floats) -> Floats:
        """The median of what is left in each leaf, shrunk where rows are few."""
        count = 1 << self._settings.depth
        order = np.argsort(leaf, kind="stable")
        bounds = np.searchsorted(leaf[order], np.arange(count + 1))
        values = np.zeros(count)
        for number in range(count):
            inside = left[order[bounds[number] : bounds[number + 1]]]
            if len(inside):
                values[number] = np.median(inside) * len(inside) / (len(inside) + self._settings.steady)
        return values * self._settings.rate


def _leaves(binned: Numbers, questions: list[tuple[int, int]]) -> Numbers:
    leaf = np.zeros(binned.shape[1], dtype=np.int64)
    for feature, above in questions:
        leaf = leaf * 2 + (binned[feature] > above)
    return leaf
