"""The flow simulation of gateways: loads by the paper's equations, moves by its policy, people who come and go."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from nearcast.errors import UsageError
from nearcast.flow.gateways import GatewaySettings, GatewaySimulation, GatewayWorld, Spans
from nearcast.policies.multistage import Multistage, MultistageConfig

SECONDS = 120


def world(rows: list[tuple[int, int, int, int]], rates: list[float], subscribers: int, brokers: int) -> GatewayWorld:
    """Rows are (subscriber, subscription, from, until). Every second brings results at the given rates."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return GatewayWorld(
        broker_positions=np.zeros((brokers, 2)),
        positions=np.zeros((subscribers, 2)),
        arrival_s=np.zeros(subscribers),
        spans=Spans(*columns),
        result_bytes=np.tile(np.array(rates), (SECONDS, 1)),
    )


def random_world(seed: int, subscribers: int = 40, subscriptions: int = 12, brokers: int = 3) -> GatewayWorld:
    dice = np.random.default_rng(seed)
    rows = []
    for subscriber in range(subscribers):
        for subscription in dice.choice(subscriptions, size=4, replace=False).tolist():
            middle = int(dice.integers(5, SECONDS - 5))
            rows.append((subscriber, subscription, int(dice.integers(0, middle)), middle))
            rows.append((subscriber, subscription, middle + int(dice.integers(0, 4)), SECONDS))
    return world(rows, dice.uniform(50, 150, size=subscriptions).tolist(), subscribers, brokers)


def policy(alpha: float = 0.05, gamma: float = inf) -> Multistage:
    return Multistage(MultistageConfig(alpha=alpha, gamma=gamma, beta_bytes_per_s=0.0, theta_bytes_per_s=0.0))


def homes(*brokers: int) -> np.ndarray:
    return np.array(brokers, dtype=np.int32)


def test_loads_are_those_of_the_equations() -> None:
    made, home = random_world(1), np.random.default_rng(2).integers(3, size=40, dtype=np.int32)
    series = GatewaySimulation(made, home, None).run()
    rates, spans = made.result_bytes[0], made.spans
    for second in (0, 3, 17, 60, 119):
        incoming, outgoing = [0.0] * 3, [0.0] * 3
        held: set[tuple[int, int]] = set()
        clients: list[set[int]] = [set(), set(), set()]
        rows = zip(*(column.tolist() for column in (spans.subscriber, spans.subscription)), strict=True)
        active = (spans.from_s <= second) & (second < spans.until_s)
        for (subscriber, subscription), counts in zip(rows, active.tolist(), strict=True):
            if counts:
                broker = int(home[subscriber])
                outgoing[broker] += rates[subscription]
                incoming[broker] += 0.0 if (broker, subscription) in held else rates[subscription]
                held.add((broker, subscription))
                clients[broker].add(subscriber)
        assert series.incoming[second] == pytest.approx(incoming)
        assert series.loads[second] == pytest.approx(np.add(incoming, outgoing))
        assert series.clients[second].tolist() == [len(each) for each in clients]
        assert series.frontend[second] == active.sum()
        assert series.backend[second] == len({subscription for _, subscription in held})


def test_rates_are_moving_averages_and_executions_do_not_show() -> None:
    made = world([(0, 0, 0, SECONDS)], [0.0], 1, 2)
    made.result_bytes[30::30, 0] = 3000.0  # every 30 s: 100 bytes per second
    rates = made.rates(60)[:, 0]
    assert rates[:30].max() == 0
    assert rates[60:] == pytest.approx(np.full(60, 100.0))
    series = GatewaySimulation(made, homes(1), None).run()
    assert series.loads[-1].tolist() == pytest.approx([0.0, 200.0])  # in, and out to one


def test_moves_take_effect_after_their_time_and_balance() -> None:
    made = world([(user, user, 0, SECONDS) for user in range(4)], [100.0] * 4, 4, 2)
    series = GatewaySimulation(made, homes(0, 0, 0, 0), policy()).run()
    assert [each.at_s for each in series.rebalanced] == [10]
    assert (series.rebalanced[0].moves, series.rebalanced[0].shuffled) == (2, False)
    assert (series.rebalanced[0].cov_before, series.rebalanced[0].cov_after) == (1.0, 0.0)
    assert series.loads[11].tolist() == [800.0, 0.0]  # make before break: until then all is as it was
    assert series.loads[12].tolist() == [400.0, 400.0]
    assert (series.moves[11], series.moves[12], series.moves[-1]) == (0, 2, 2)
    assert series.clients[-1].tolist() == [2, 2]
    assert series.cov[-1] == 0
    assert series.highest[11] == 800


def test_a_shuffle_is_counted() -> None:
    made = world([(user, user, 0, SECONDS) for user in range(6)], [100.0] * 6, 6, 3)
    series = GatewaySimulation(made, homes(0, 0, 0, 0, 0, 0), policy(gamma=0.5)).run()
    assert series.shuffles == 1
    assert series.clients[-1].tolist() == [2, 2, 2]


def test_moves_keep_the_counters_true() -> None:
    """After any moves, loads are those of a fresh simulation that begins with the homes they ended in."""
    made, home = random_world(3), np.zeros(40, dtype=np.int32)
    moved = GatewaySimulation(made, home, policy())
    series = moved.run()
    assert series.moves[-1] > 10
    fresh = GatewaySimulation(made, moved._home.astype(np.int32), None).run()
    assert series.loads[-1] == pytest.approx(fresh.loads[-1])
    assert series.clients[-1].tolist() == fresh.clients[-1].tolist()
    assert series.cov[30:].mean() < GatewaySimulation(made, home, None).run().cov[30:].mean() / 4


def test_who_is_offline_does_not_count_and_keeps_its_new_broker() -> None:
    rows = [(0, 0, 0, SECONDS), (1, 1, 0, 11), (1, 1, 50, SECONDS)]  # 1 leaves between decision and effect
    series = GatewaySimulation(world(rows, [100.0, 100.0], 2, 2), homes(0, 0), policy()).run()
    assert series.rebalanced[0].at_s == 10
    assert series.clients[30].sum() == 1
    assert sorted(series.loads[30].tolist()) == [0.0, 200.0]
    assert series.clients[60].tolist() == [1, 1]  # back, on the other broker


def test_nobody_subscribed_is_no_load() -> None:
    series = GatewaySimulation(world([], [5.0], 3, 2), homes(0, 1, 0), policy()).run()
    assert series.loads.sum() == 0
    assert series.cov.max() == 0
    assert series.rebalanced == ()


def test_one_world_gives_one_series() -> None:
    made, home = random_world(4), np.zeros(40, dtype=np.int32)
    one, again = (GatewaySimulation(made, home, policy()).run() for _ in range(2))
    assert (one.loads == again.loads).all()
    assert one.rebalanced == again.rebalanced
    assert (home == 0).all()  # what was given is not changed


@pytest.mark.parametrize("wrong", [{"look_s": 2}, {"move_s": 0}, {"average_s": 0}])
def test_wrong_times_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        GatewaySettings(**wrong)


def test_homes_and_spans_must_exist() -> None:
    made = world([(0, 0, 0, 9)], [1.0], 1, 2)
    with pytest.raises(UsageError, match="broker from 0 to 1"):
        GatewaySimulation(made, homes(2), None)
    with pytest.raises(UsageError, match="a subscriber or a subscription"):
        world([(0, 1, 0, 9)], [1.0], 1, 2)
    with pytest.raises(UsageError, match="arrival"):
        GatewayWorld(
            broker_positions=np.zeros((2, 2)),
            positions=np.zeros((3, 2)),
            arrival_s=np.zeros(2),
            spans=made.spans,
            result_bytes=made.result_bytes,
        )
    with pytest.raises(UsageError, match="each span needs"):
        Spans(made.spans.subscriber, made.spans.subscription, made.spans.from_s, np.zeros(4, dtype=np.int64))
