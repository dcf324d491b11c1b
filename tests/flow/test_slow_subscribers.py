"""Slow subscribers: buffers that fill, connections that are dropped, deliveries that are lost."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.core.model.placement import Mode
from nearcast.flow.brokers import Buffered, Connections
from nearcast.flow.model import Demand, FlowSettings, Publications, Subscriptions
from nearcast.flow.traffic import Layout, topic_traffic

SETTINGS = FlowSettings(subscriber_bytes_per_s=1000.0, output_buffer_bytes=5000.0, reconnect_s=2.0, overhead_bytes=0.0)
MESSAGE_BYTES = 100.0


class Steps:
    """One topic with a given number of subscribers and publications per second, step by step."""

    def __init__(self, mode: Mode = Mode.SINGLE, brokers: tuple[int, ...] = (0,), subscribers: int = 1) -> None:
        self._connections = Connections(SETTINGS)
        self._layout = Layout(1)
        self._layout.place(0, mode, brokers)
        self._layout.build()
        self._subscribers = subscribers
        self._at_s = 0.0

    def step(self, publications_per_s: float) -> Buffered:
        client, topic = np.arange(self._subscribers + 1), np.zeros(self._subscribers + 1, dtype=np.int64)
        demand = Demand(
            len(client),
            Subscriptions(client[1:], topic[1:]),
            Publications(client[:1], topic[:1], np.array([publications_per_s])),
            MESSAGE_BYTES,
        )
        traffic = topic_traffic(demand, 1, SETTINGS)
        found = self._connections.step(demand, traffic, self._layout, np.ones(3), self._at_s)
        self._at_s += SETTINGS.step_s
        return found


def test_a_subscriber_that_keeps_up_is_not_noticed() -> None:
    found = Steps().step(10.0)
    assert found.broker_bytes_per_s.tolist() == [0.0, 0.0, 0.0]
    assert (found.topic_wait_s[0], found.lost_per_s, found.dropped) == (0.0, 0.0, 0)


def test_a_buffer_fills_and_messages_wait_in_it() -> None:
    steps = Steps()
    waits_s = [steps.step(20.0).topic_wait_s[0] for _ in range(4)]  # 1000 bytes/s too much
    assert waits_s == pytest.approx([0.5, 1.5, 2.5, 3.5])
    assert steps.step(20.0).broker_bytes_per_s[0] == pytest.approx(-1000.0)


def test_a_full_buffer_costs_the_connection_and_all_it_held() -> None:
    steps = Steps()
    for _ in range(5):
        assert steps.step(20.0).dropped == 0
    dropped = steps.step(20.0)
    assert dropped.dropped == 1
    assert dropped.lost_per_s == pytest.approx(60.0)  # 6000 bytes held
    away = [steps.step(20.0).lost_per_s for _ in range(2)]
    assert away == pytest.approx([20.0, 20.0])
    back = steps.step(20.0)
    assert back.lost_per_s == 0.0
    assert back.topic_wait_s[0] == pytest.approx(0.5)


def test_nothing_is_lost_or_made_up() -> None:
    steps, held = Steps(), 0.0
    for publications_per_s in (20, 35, 20, 0, 5, 20, 20, 20, 20, 20, 20, 20, 0, 0, 0, 0, 0, 0, 0, 0):
        found = steps.step(publications_per_s)
        sent = publications_per_s + found.topic_bytes_per_s[0] / MESSAGE_BYTES
        held += publications_per_s - sent - found.lost_per_s
        assert held >= -1e-9
    assert held == pytest.approx(0.0)


def test_several_brokers_are_several_connections() -> None:
    shared = Steps(Mode.ALL_SUBSCRIBERS, (0, 1, 2))
    assert shared.step(30.0).topic_wait_s[0] == 0.0  # 10 messages each
    found = shared.step(60.0)
    assert found.broker_bytes_per_s.tolist() == pytest.approx([-1000.0] * 3)
    assert found.topic_wait_s[0] == pytest.approx(0.5)


def test_with_all_publishers_a_subscriber_has_one_connection() -> None:
    shared = Steps(Mode.ALL_PUBLISHERS, (0, 1, 2), subscribers=300)
    found = shared.step(20.0)
    assert found.topic_wait_s[0] == pytest.approx(0.5)
    assert found.broker_bytes_per_s.sum() == pytest.approx(-300 * 1000.0)
    assert found.broker_bytes_per_s.max() < -70 * 1000.0  # spread over all three
