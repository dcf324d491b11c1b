"""The estimator: how exact it is on worlds whose round trips are known, and that nothing upsets it."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import numpy as np
import pytest

from nearcast.coordinates.boosting import Boosted, BoostSettings
from nearcast.coordinates.estimator import Estimator, best_blend
from nearcast.coordinates.mixing import mixed
from nearcast.coordinates.probes import Floats, Probes, completed, with_selves
from nearcast.coordinates.worlds import World, cities, noisy
from nearcast.errors import UsageError

NAN = np.nan


def cut(world: World | Floats, brokers: int, probes: int, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """The brokers' matrix, all true round trips of the other nodes to brokers, and those that were probed."""
    matrix = np.array(world)
    truth = matrix[brokers:, :brokers]
    lot = np.random.default_rng(seed).random(truth.shape)
    probed = np.where(lot.argsort(axis=1).argsort(axis=1) < probes, truth, NAN)
    return matrix[:brokers, :brokers], truth, probed


@cache
def small() -> tuple[Estimator, Floats]:
    """An estimator for 12 brokers, and the probes of 28 clients. Nobody may change them."""
    brokers, _, probed = cut(cities(40, seed=1), 12, 5)
    return Estimator(brokers, 5), probed


def median_error(estimate: Floats, truth: Floats, probed: Floats) -> float:
    hidden = np.isnan(probed)
    return float(np.median(np.abs(estimate - truth)[hidden] / np.maximum(truth[hidden], 1e-3)))


# --- how exact it is


@pytest.mark.parametrize(("dimensions", "bound"), [(2, 0.01), (3, 0.02), (5, 0.04)])
def test_cities_with_access_links_are_estimated_exactly(dimensions: int, bound: float) -> None:
    brokers, truth, probed = cut(cities(80, seed=2, dimensions=dimensions), 25, 8)
    assert median_error(Estimator(brokers, 8).estimate(probed), truth, probed) < bound


@pytest.mark.parametrize(("dimensions", "bound"), [(2, 0.02), (5, 0.055), (8, 0.085)])
def test_few_brokers_are_enough_for_cities_with_access_links(dimensions: int, bound: float) -> None:
    errors = []
    for seed in range(6):
        brokers, truth, probed = cut(cities(48, seed=seed, dimensions=dimensions), 12, 6)
        errors.append(median_error(Estimator(brokers, 6).estimate(probed), truth, probed))
    assert np.mean(errors) < bound


def test_a_network_that_is_no_map_is_estimated() -> None:
    """Six regions with arbitrary distances, which violate the triangle inequality, and access links."""
    rng = np.random.default_rng(1)
    region, link = rng.integers(0, 6, 90), rng.exponential(0.005, 90)
    between = rng.uniform(0.02, 0.2, (6, 6))
    between = (between + between.T) / 2
    matrix = between[region[:, None], region] * (region[:, None] != region) + link[:, None] + link
    brokers, truth, probed = cut(matrix, 25, 8)
    assert median_error(Estimator(brokers, 8).estimate(probed), truth, probed) < 0.03


def test_noise_is_not_taken_for_knowledge() -> None:
    """Nothing can be known of random round trips but their middle: about 0.067 for a deviation of a tenth."""
    brokers, truth, probed = cut(noisy(60, 0.1, 0.01, seed=3), 20, 8)
    assert median_error(Estimator(brokers, 8).estimate(probed), truth, probed) < 0.09


def test_more_probes_help() -> None:
    world = np.array(cities(80, seed=4))
    lot = np.random.default_rng(5).lognormal(0.0, 0.1, world.shape)
    world = world * (np.triu(lot, 1) + np.triu(lot, 1).T)
    errors = []
    for probes in (3, 12):
        brokers, truth, probed = cut(world, 25, probes)
        errors.append(median_error(Estimator(brokers, probes).estimate(probed), truth, probed))
    assert errors[1] < 0.85 * errors[0]


def test_equal_round_trips_stay_equal() -> None:
    brokers, truth, probed = cut(0.05 * (1 - np.eye(40)), 12, 6)
    assert np.abs(Estimator(brokers, 6).estimate(probed) - truth).max() < 0.005


# --- what it promises


def test_what_was_measured_is_returned_as_it_is() -> None:
    estimator, probed = small()
    estimate = estimator.estimate(probed)
    assert np.allclose(estimate[~np.isnan(probed)], probed[~np.isnan(probed)], rtol=1e-12)
    assert np.isfinite(estimate).all()
    assert (estimate >= 0).all()


def test_the_same_seed_gives_the_same_estimates() -> None:
    brokers, _, probed = cut(cities(40, seed=1), 12, 5)
    assert (Estimator(brokers, 5).estimate(probed) == small()[0].estimate(probed)).all()


def test_a_client_is_judged_by_its_own_probes_alone() -> None:
    """A lying client cannot harm the others, and it does not matter who is asked about together."""
    estimator, probed = small()
    together = estimator.estimate(probed)
    assert np.allclose(estimator.estimate(probed[3:4]), together[3:4], rtol=1e-9)
    lies = probed.copy()
    lies[0] = 9.9
    assert np.allclose(estimator.estimate(lies)[1:], together[1:], rtol=1e-9)


@pytest.mark.parametrize("lie", [-1.0, np.inf, -np.inf, 11.0, 1e300])
def test_a_probe_that_cannot_be_true_counts_as_none(lie: float) -> None:
    estimator, probed = small()
    first = int(np.flatnonzero(~np.isnan(probed[0]))[0])
    without, lied = probed.copy(), probed.copy()
    without[0, first], lied[0, first] = NAN, lie
    assert np.allclose(estimator.estimate(lied), estimator.estimate(without), rtol=1e-9)


def test_a_client_without_probes_gets_what_is_typical() -> None:
    brokers, _, _ = cut(cities(40, seed=1), 12, 5)
    estimator, probed = small()
    silent = probed.copy()
    silent[2] = NAN
    assert np.allclose(estimator.estimate(silent)[2], np.median(brokers, axis=0))
    assert estimator.estimate(probed[:0]).shape == (0, 12)


@pytest.mark.parametrize("brokers", [1, 2, 3, 4, 7, 8])
def test_few_brokers_are_enough_for_an_answer(brokers: int) -> None:
    matrix, _, probed = cut(cities(20, seed=1), brokers, max(1, brokers // 2))
    assert np.isfinite(Estimator(matrix, max(1, brokers // 2)).estimate(probed)).all()


def test_clients_may_have_any_number_of_probes() -> None:
    _, truth, _ = cut(cities(40, seed=1), 12, 1)
    probed = truth.copy()
    for client, row in enumerate(probed):
        row[client % 13 :] = NAN
    assert np.isfinite(small()[0].estimate(probed)).all()


@pytest.mark.parametrize("matrix", [np.zeros((12, 12)), np.full((12, 12), NAN)], ids=["zero", "unknown"])
def test_a_matrix_that_says_nothing_does_no_harm(matrix: Floats) -> None:
    probed = np.full((3, 12), NAN)
    probed[:, :2] = 0.01
    assert np.isfinite(Estimator(matrix, 2).estimate(probed)).all()


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        (np.zeros((2, 3)), r"the shape \(2, 3\): give a square matrix"),
        (np.zeros((0, 0)), "give a square matrix"),
        (np.zeros(4), "give a square matrix"),
        (np.array([[0.0, -1.0], [1.0, 0.0]]), "between 0 and 10 s"),
        (np.array([[0.0, np.inf], [1.0, 0.0]]), "between 0 and 10 s"),
    ],
)
def test_a_bad_matrix_is_refused(matrix: Floats, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Estimator(matrix, 1)


def test_bad_calls_are_refused() -> None:
    with pytest.raises(UsageError, match="0 probes per client"):
        Estimator(np.zeros((3, 3)), 0)
    with pytest.raises(UsageError, match="one row per client, with 3 brokers each"):
        Estimator(np.zeros((3, 3)), 1).estimate(np.zeros((2, 4)))


# --- its parts


def test_a_hole_takes_the_other_direction_then_triangles_then_the_median() -> None:
    one_way = np.array([[0.0, NAN, 3.0], [5.0, 0.0, 4.0], [3.0, 4.0, 0.0]])
    assert completed(one_way)[0, 1] == 5.0
    neither = np.array([[0.0, NAN, 3.0], [NAN, 0.0, 4.0], [3.0, 4.0, 0.0]])
    assert completed(neither)[0, 1] == completed(neither)[1, 0] == (7.0 + 1.0) / 2
    lonely = np.array([[0.0, 2.0, NAN], [2.0, 0.0, NAN], [NAN, NAN, 0.0]])
    assert completed(lonely)[0, 2] == 2.0


def test_a_client_beside_a_broker_is_not_inside_it() -> None:
    matrix = np.array([[0.0, 10.0, 20.0], [10.0, 0.0, 30.0], [20.0, 30.0, 0.0]])
    assert np.diag(with_selves(matrix)).tolist() == pytest.approx([3.0, 4.0, 5.0])


def test_a_client_halfway_between_brokers_is_their_blend() -> None:
    matrix = np.array(cities(10, seed=1, access_s=0.0)) * 1e3
    client = 0.3 * matrix[2] + 0.7 * matrix[5]
    found = mixed(matrix, Probes(client[None, :]), np.full((1, 10), 0.1), 3000)[0]
    assert found[2] == pytest.approx(0.3, abs=0.02)
    assert found[5] == pytest.approx(0.7, abs=0.02)
    assert (found >= 0).all()


def test_the_best_blend_trusts_who_is_right() -> None:
    rng = np.random.default_rng(1)
    wanted = rng.normal(size=500)
    opinions = np.stack([wanted + rng.normal(size=500), wanted + 0.01 * rng.normal(size=500), wanted + 1.0])
    blend = best_blend(opinions, wanted)
    assert blend.sum() == pytest.approx(1.0)
    assert blend[1] > 0.9


def test_boosted_trees_learn_a_step_and_ignore_outliers() -> None:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(2000, 4))
    target = np.where(features[:, 2] > 0.3, 1.0, -1.0) + 0.1 * rng.normal(size=2000)
    target[::50] += 100.0
    model = Boosted(features, target, BoostSettings(), rng)
    fresh = rng.normal(size=(500, 4))
    predicted = model.predicted(model.binned(fresh), 120)
    wanted = np.where(fresh[:, 2] > 0.3, 1.0, -1.0)
    assert np.median(np.abs(predicted - wanted)) < 0.1
    assert model.course(model.binned(fresh), wanted)[-1] < 0.2
    assert (model.predicted(model.binned(fresh), 0) == 0).all()


def test_coordinates_without_the_estimator_need_no_numpy() -> None:
    program = "import sys; import nearcast.coordinates.worlds; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
