"""The layout: a replicated topic divides as its mode says."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.core.model.placement import Mode
from nearcast.flow.model import Demand, FlowSettings, Publications, Subscriptions
from nearcast.flow.traffic import Layout, topic_traffic, work_of

SETTINGS = FlowSettings(cpu_s_per_delivery=1e-3, cpu_s_per_publication=1e-2, overhead_bytes=50.0)

# Topic 0: 6 subscribers, 30 publications/s of 3 publishers. Topic 1: nobody. Topic 2: 2 subscribers, 1 publisher, 5/s.
DEMAND = Demand(
    12,
    Subscriptions(np.arange(8), np.array([0] * 6 + [2] * 2)),
    Publications(np.arange(8, 12), np.array([0, 0, 0, 2]), np.array([10.0, 10.0, 10.0, 5.0])),
    np.array([100.0, 100.0, 250.0]),
)


def layout_with(mode: Mode, brokers: tuple[int, ...]) -> Layout:
    layout = Layout(3)
    layout.place(0, mode, brokers)
    layout.place(2, Mode.SINGLE, (1,))
    layout.build()
    return layout


def work_with(mode: Mode, brokers: tuple[int, ...]):
    return work_of(topic_traffic(DEMAND, 3, SETTINGS), layout_with(mode, brokers), 3, SETTINGS)


def test_one_broker_carries_a_single_topic_whole() -> None:
    work = work_with(Mode.SINGLE, (0,))
    assert work.deliveries_per_s.tolist() == [180.0, 10.0, 0.0]
    assert work.bytes_per_s.tolist() == [180 * 150.0, 10 * 300.0, 0.0]
    assert work.cpu.tolist() == pytest.approx([30 * (0.01 + 6 * 0.001), 5 * (0.01 + 2 * 0.001), 0.0])
    assert work.publishers.tolist() == [3.0, 1.0, 0.0]


def test_all_subscribers_divides_the_publications() -> None:
    work = work_with(Mode.ALL_SUBSCRIBERS, (0, 1, 2))
    assert work.deliveries_per_s.tolist() == [60.0, 70.0, 60.0]
    assert work.cpu[0] == pytest.approx(10 * (0.01 + 6 * 0.001))  # a third of the publications, all subscribers
    assert work.publishers[0] == 1.0
    assert work.fan_out[0] == 6.0


def test_all_publishers_divides_the_subscribers() -> None:
    work = work_with(Mode.ALL_PUBLISHERS, (0, 1, 2))
    assert work.deliveries_per_s.tolist() == [60.0, 70.0, 60.0]
    assert work.cpu[0] == pytest.approx(30 * (0.01 + 2 * 0.001))  # all publications, a third of the subscribers
    assert work.publishers[0] == 3.0
    assert work.fan_out[0] == 2.0


def test_whatever_the_mode_all_is_delivered_once() -> None:
    for mode in (Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS):
        assert work_with(mode, (2, 0)).deliveries_per_s.sum() == pytest.approx(190.0)


def test_slots_follow_from_placements() -> None:
    layout = layout_with(Mode.ALL_SUBSCRIBERS, (2, 0))
    assert layout.slot_topic.tolist() == [0, 0, 2]
    assert layout.slot_broker.tolist() == [2, 0, 1]
    assert layout.on(0).tolist() == [0]
    chosen = layout.slot_of(np.array([0, 0, 0, 2]), np.array([0, 1, 2, 77]))
    assert layout.slot_broker[chosen].tolist() == [2, 0, 2, 1]


def test_a_topic_that_collapses_or_is_forgotten_leaves_nothing_behind() -> None:
    layout = layout_with(Mode.ALL_PUBLISHERS, (0, 1))
    layout.place(0, Mode.SINGLE, (2,))
    layout.build()
    assert layout.count.tolist() == [1, 0, 1]
    assert layout.subscriber_share.tolist() == [1.0, 1.0, 1.0]
    layout.place(0, Mode.ALL_SUBSCRIBERS, (0, 1))
    layout.forget(np.array([0]))
    layout.build()
    assert layout.count.tolist() == [0, 0, 1]
