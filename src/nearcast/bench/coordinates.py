"""The benchmark of latency estimates: how well is a round trip known that nobody measured?

The round trips come from a file, and are cut eight times at random into brokers and clients:

- a quarter of the nodes are brokers, and know all round trips between them; the others are clients;
- 30 % of the pairs of client and broker are held out: nobody probes them, and all errors are of these pairs;
- each client probes k of the others, at random.

Vivaldi, with Serf's constants, and the estimator get the same measurements. An error is relative to the true round
trip, or to 1 ms if that is shorter. All figures are means over the eight cuts.

A decision is the choice of a broker for a topic of eight random clients, four publishers and four subscribers: the
broker with the least estimated worst latency. It is good if its true worst latency is within 5 % of the best broker's.
In the second figure the clients measure the eight brokers with the best estimates before one is chosen, as before a
move.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from nearcast.bench.matrix_file import read_round_trips
from nearcast.coordinates.coordinate import distance_s
from nearcast.coordinates.estimator import Estimator
from nearcast.coordinates.probes import Flags, Floats
from nearcast.coordinates.topics import BEST, worst_one_way_s
from nearcast.coordinates.vivaldi import SERF, Vivaldi
from nearcast.errors import UsageError

NODES_MIN = 8  # two brokers, of which a client probes one
BROKER_SHARE = 0.25
HELD_OUT_SHARE = 0.3
SPLITS = 8
PROBES = 8
CYCLES = 1000  # of Vivaldi: measurements per node, as many as in the tests of Serf
TOPICS = 400  # per split
TOPIC_CLIENTS = 8
PUBLISHERS = 4  # of them; the others subscribe
GOOD = 1.05
MS = 1e-3

Progress = Callable[[int, int, str], None]  # steps done, steps in all, what is next


class CoordinatesBench(msgspec.Struct, frozen=True):
    """The figures of one run. Errors are relative; shares are between 0 and 1."""

    nodes: int
    brokers: int
    clients: int
    probes: int  # per client
    splits: int
    missing_share: float  # of the pairs of nodes
    vivaldi_median_rel_error: float
    vivaldi_p90_rel_error: float
    estimator_median_rel_error: float
    estimator_p90_rel_error: float
    ratio: float | None  # of the medians; nothing if the estimator makes no error at all
    decision_within_5pct: float | None  # nothing if there are too few clients for a topic
    decision_within_5pct_measured8: float | None
    worst_predicted_over_true: float | None  # the median, over topics and brokers
    vivaldi_s: float  # per split
    estimator_s: float


class Split(msgspec.Struct, frozen=True):
    """One cut of the matrix. Times in seconds, NaN where unknown."""

    broker_rtt_s: Floats
    truth_s: Floats  # client, broker
    probed: Flags
    held_out: Flags

    @property
    def probes_s(self) -> Floats:
        return np.where(self.probed, self.truth_s, np.nan)


class _Scores(msgspec.Struct):
    vivaldi: Floats  # median, 90th percentile
    estimator: Floats
    decisions: Floats  # good, good after measuring, predicted over true
    seconds: Floats  # Vivaldi, estimator


def measure_coordinates(
    path: Path, probes: int = PROBES, *, splits: int = SPLITS, progress: Progress = lambda *_: None
) -> CoordinatesBench:
    matrix_s = read_round_trips(path) * MS
    nodes = len(matrix_s)
    if nodes < NODES_MIN:
        raise UsageError(f"{path}: {nodes} nodes are too few: at least {NODES_MIN} are needed, a quarter as brokers")
    apart = ~np.eye(nodes, dtype=bool)
    if np.isnan(matrix_s[apart]).all():
        raise UsageError(f"{path}: the matrix has no round trips between different nodes")
    scores = []
    for number in range(splits):
        cut = split_of(matrix_s, probes, number)
        if cut.held_out.any():
            scores.append(_scored(cut, number, partial(progress, number, splits)))
    progress(splits, splits, "done")
    if not scores:
        raise UsageError(f"{path}: too few round trips are there: no pair could be held out and scored")
    return _summary(matrix_s, probes, scores, float(np.isnan(matrix_s[apart]).mean()))


def _summary(matrix_s: Floats, probes: int, scores: list[_Scores], missing_share: float) -> CoordinatesBench:
    brokers = broker_count(len(matrix_s))
    vivaldi = np.mean([score.vivaldi for score in scores], axis=0)
    estimator = np.mean([score.estimator for score in scores], axis=0)
    seconds = np.mean([score.seconds for score in scores], axis=0)
    good, measured, predicted = (_mean(np.array([score.decisions[column] for score in scores])) for column in range(3))
    return CoordinatesBench(
        nodes=len(matrix_s),
        brokers=brokers,
        clients=len(matrix_s) - brokers,
        probes=probe_count(probes, brokers),
        splits=len(scores),
        missing_share=missing_share,
        vivaldi_median_rel_error=float(vivaldi[0]),
        vivaldi_p90_rel_error=float(vivaldi[1]),
        estimator_median_rel_error=float(estimator[0]),
        estimator_p90_rel_error=float(estimator[1]),
        ratio=float(vivaldi[0] / estimator[0]) if estimator[0] > 0 else None,
        decision_within_5pct=good,
        decision_within_5pct_measured8=measured,
        worst_predicted_over_true=predicted,
        vivaldi_s=float(seconds[0]),
        estimator_s=float(seconds[1]),
    )


def _mean(values: Floats) -> float | None:
    """Of those that are there."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else None


# --- cutting


def broker_count(nodes: int) -> int:
    return max(2, round(nodes * BROKER_SHARE))


def probe_count(probes: int, brokers: int) -> int:
    return max(1, min(probes, brokers // 2))


def split_of(matrix_s: Floats, probes: int, seed: int) -> Split:
    rng = np.random.default_rng(seed)
    nodes = len(matrix_s)
    order = rng.permutation(nodes)
    brokers, clients = np.split(order, [broker_count(nodes)])
    truth_s = matrix_s[np.ix_(clients, brokers)]
    known = ~np.isnan(truth_s)
    held_out = (rng.random(truth_s.shape) < HELD_OUT_SHARE) & known
    lot = np.where(known & ~held_out, rng.random(truth_s.shape), 2.0)
    first = lot.argsort(axis=1).argsort(axis=1) < probe_count(probes, len(brokers))
    return Split(matrix_s[np.ix_(brokers, brokers)], truth_s, first & known & ~held_out, held_out)


# --- scoring


def _scored(cut: Split, seed: int, progress: Callable[[str], None]) -> _Scores:
    progress("Vivaldi")
    began_s = time.perf_counter()
    by_vivaldi_s = vivaldi_estimates(cut, seed)
    then_s = time.perf_counter()
    progress("estimator")
    estimator = Estimator(cut.broker_rtt_s, max(1, int(cut.probed.sum(axis=1).max())), seed=seed)
    estimated_s = estimator.estimate(cut.probes_s)
    seconds = np.array([then_s - began_s, time.perf_counter() - then_s])
    return _Scores(_errors(by_vivaldi_s, cut), _errors(estimated_s, cut), _decisions(estimated_s, cut, seed), seconds)


def _errors(estimated_s: Floats, cut: Split) -> Floats:
    true_s = cut.truth_s[cut.held_out]
    return np.percentile(np.abs(estimated_s[cut.held_out] - true_s) / np.maximum(true_s, MS), [50, 90])


def _decisions(estimated_s: Floats, cut: Split, seed: int) -> Floats:
    """Brokers that a client of the topic has no true round trip to are no candidates."""
    clients = len(estimated_s)
    if clients < TOPIC_CLIENTS:
        return np.full(3, np.nan)
    rng = np.random.default_rng([seed, 1])
    good, measured, predicted = [], [], []
    for _ in range(TOPICS):
        members = rng.choice(clients, TOPIC_CLIENTS, replace=False)
        known = ~np.isnan(cut.truth_s[members]).any(axis=0)
        if not known.any():
            continue
        truth, guess = cut.truth_s[members][:, known], estimated_s[members][:, known]
        true_s, guessed_s = (worst_one_way_s(rtt_s[:PUBLISHERS], rtt_s[PUBLISHERS:]) for rtt_s in (truth, guess))
        limit_s = GOOD * true_s.min()
        ranked = np.argsort(guessed_s, kind="stable")
        good.append(true_s[ranked[0]] <= limit_s)
        measured.append(true_s[ranked[:BEST]].min() <= limit_s)
        predicted.append(np.maximum(guessed_s, MS / 10) / np.maximum(true_s, MS / 10))
    if not good:
        return np.full(3, np.nan)
    return np.array([np.mean(good), np.mean(measured), np.median(np.concatenate(predicted))])


# --- Vivaldi


def vivaldi_estimates(cut: Split, seed: int, cycles: int = CYCLES) -> Floats:
    """By client and broker, after each node has measured as often as there are cycles.

    Brokers settle first, among themselves. Then clients settle among brokers that stay where they are, which suits
    Vivaldi better than when all move at once.
    """
    rng = Random(seed)
    truth_s = cut.broker_rtt_s.tolist()
    peers = [np.flatnonzero(~np.isnan(row) & (np.arange(len(row)) != own)) for own, row in enumerate(cut.broker_rtt_s)]
    brokers = [Vivaldi(SERF, seed=rng.getrandbits(32)) for _ in truth_s]
    lists = [row.tolist() for row in peers]
    for _ in range(cycles):
        for own, node in enumerate(brokers):
            if lists[own]:
                peer = rng.choice(lists[own])
                node.observed(str(peer), brokers[peer].coordinate, truth_s[own][peer])
    places = [node.coordinate for node in brokers]
    estimates = np.empty_like(cut.truth_s)
    for number, row in enumerate(cut.probes_s):
        node = Vivaldi(SERF, seed=rng.getrandbits(32))
        probed = np.flatnonzero(~np.isnan(row)).tolist()
        values = row.tolist()
        for _ in range(cycles if probed else 0):
            peer = rng.choice(probed)
            node.observed(str(peer), places[peer], values[peer])
        estimates[number] = [distance_s(node.coordinate, place) for place in places]
    return estimates
