"""The paper's simulation: its sizes, its skew, and rates that rise and fall."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.errors import UsageError
from nearcast.policies.multistage.policy import nearest
from nearcast.workloads.emergency.flow import PERIODS_S, ScaleSettings, scale_world

SMALL = ScaleSettings(subscribers=2000)


def test_one_seed_gives_one_world() -> None:
    one, again, other = (scale_world(SMALL, seed) for seed in (1, 1, 2))
    assert (one.result_bytes == again.result_bytes).all()
    assert (one.spans.subscription == again.spans.subscription).all()
    assert not (one.result_bytes == other.result_bytes).all()


def test_sizes_are_the_papers() -> None:
    world = scale_world(ScaleSettings(), 3)
    assert (world.brokers, world.subscribers, world.seconds, world.result_bytes.shape[1]) == (10, 10_000, 1800, 1000)
    assert 195_000 < len(world.spans) < 205_000
    counts = np.bincount(world.spans.subscriber)
    assert (counts.min(), counts.max()) == (10, 30)
    pairs = world.spans.subscriber * 1000 + world.spans.subscription
    assert len(np.unique(pairs)) == len(pairs)
    assert world.spans.from_s.max() < 480
    assert np.bincount(world.spans.subscription).min() > 100  # everything is asked for
    clients = np.bincount(nearest(world.positions, world.broker_positions), minlength=10)
    assert clients.max() > 2000  # figure 13
    assert clients.min() < 500


def test_executions_come_with_their_periods() -> None:
    results = scale_world(SMALL, 4).result_bytes
    for channel in range(10):
        period_s = PERIODS_S[channel % 5]
        seconds = np.flatnonzero(results[:, channel * 100 : channel * 100 + 100].any(axis=1))
        assert (seconds % period_s == 0).all()
        assert len(seconds) == (1800 - 1) // period_s


def test_rates_rise_and_fall() -> None:
    world = scale_world(ScaleSettings(subscribers=100, rate_deviation=0.0), 5)
    fast = world.result_bytes[5::5, :100] / 5  # the first channel: every 5 s
    assert set(np.unique(fast.round())) == {20_000.0, 40_000.0}
    risen = fast > 30_000
    assert risen[0].mean() < 0.05
    assert 0.3 < risen[200:].mean() < 0.65
    lengths_s = [run * 5 for column in risen.T for run in _runs(column[:250])]
    assert 235 <= np.median(lengths_s) <= 365
    assert min(lengths_s) >= 235
    assert max(lengths_s) <= 365


def _runs(risen: np.ndarray) -> list[int]:
    """Lengths of the runs of true values that end before the end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], risen.astype(int)])))
    return [int(end - start) for start, end in zip(edges[::2], edges[1::2], strict=False)]


def test_local_interests_are_those_of_the_nearest_broker() -> None:
    world = scale_world(ScaleSettings(subscribers=500, local_share=0.9), 6)
    near = nearest(world.positions, world.broker_positions)
    local = world.spans.subscription % 10 == near[world.spans.subscriber]
    plain = scale_world(ScaleSettings(subscribers=500), 6)
    usual = plain.spans.subscription % 10 == nearest(plain.positions, plain.broker_positions)[plain.spans.subscriber]
    assert usual.mean() < 0.13
    assert local.mean() > 0.7


@pytest.mark.parametrize(
    "wrong", [{"brokers": 0}, {"wanted_min": 0}, {"wanted_max": 2000}, {"local_share": 1.5}, {"chosen_share": -0.1}]
)
def test_wrong_sizes_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        ScaleSettings(**wrong)
