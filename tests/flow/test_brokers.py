"""The queues of brokers: short waits below capacity, linear growth above, losses only at the limit."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.flow.brokers import Queues, Service
from nearcast.flow.model import FlowSettings
from nearcast.flow.traffic import Work

SETTINGS = FlowSettings(capacity_bytes_per_s=1e6, fail_ratio=1.0, backlog_max_s=3.0)
SERVICE_S = 1e-3  # of one publication


def work(egress: float, cpu: float = 0.0, publishers: float = 1e9) -> Work:
    """One broker; publications of SERVICE_S each, at rates that make these utilisations."""
    one = np.ones(1)
    return Work(
        fan_out=one,
        slot_deliveries_per_s=one,
        deliveries_per_s=one,
        bytes_per_s=one * egress * 1e6,
        publishers=one * publishers,
        subscribers=one,
        cpu=one * cpu,
        cpu_square=one * cpu * SERVICE_S,
        egress=one * egress,
        egress_square=one * egress * SERVICE_S,
    )


def stepped(queues: Queues, asked: Work, extra_bytes_per_s: float = 0.0) -> Service:
    return queues.send(asked, queues.compute(asked), np.full(1, extra_bytes_per_s))


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.8, 0.95])
def test_below_capacity_the_wait_is_that_of_an_m_d_1_queue(rho: float) -> None:
    queues = Queues(SETTINGS)
    for _ in range(20):
        service = stepped(queues, work(rho))
    assert service.wait_s[0] == pytest.approx(rho * SERVICE_S / (2 * (1 - rho)))
    assert service.sent_share[0] == pytest.approx(1.0)
    assert service.lost_share[0] == 0.0


def test_the_formula_agrees_with_a_simulated_queue() -> None:
    """200,000 publications at random times through one server, wait by wait (Lindley's recursion)."""
    rng, rho = np.random.default_rng(5), 0.8
    gaps_s = rng.exponential(SERVICE_S / rho, 200_000)
    steps = np.cumsum(SERVICE_S - gaps_s)
    waits_s = steps - np.minimum.accumulate(np.minimum(steps, 0.0))
    assert stepped(Queues(SETTINGS), work(rho)).wait_s[0] == pytest.approx(waits_s.mean(), rel=0.05)


def test_one_publisher_does_not_wait_behind_itself() -> None:
    assert stepped(Queues(SETTINGS), work(0.9, publishers=1)).wait_s[0] == 0.0
    half = stepped(Queues(SETTINGS), work(0.9, publishers=2)).wait_s[0]
    assert half == pytest.approx(stepped(Queues(SETTINGS), work(0.9)).wait_s[0] / 2)


def test_above_capacity_the_backlog_grows_by_what_is_too_much() -> None:
    queues = Queues(SETTINGS)
    backlogs_s = [stepped(queues, work(1.5)).backlog_s[0] for _ in range(5)]
    assert backlogs_s == pytest.approx([0.25, 0.75, 1.25, 1.75, 2.25])


def test_a_full_server_loses_the_rest_and_sends_on() -> None:
    queues = Queues(SETTINGS)
    for _ in range(10):
        service = stepped(queues, work(1.5))
    assert service.backlog_s[0] == pytest.approx(3.0)
    assert service.sent_share[0] == pytest.approx(1 / 1.5)
    assert service.lost_share[0] == pytest.approx(0.5 / 1.5)


def test_a_backlog_is_sent_when_the_load_falls() -> None:
    queues = Queues(SETTINGS)
    for _ in range(3):
        stepped(queues, work(1.5))  # 1.5 s too much
    falling = [stepped(queues, work(0.5)) for _ in range(4)]
    assert [service.sent_share[0] for service in falling] == pytest.approx([2.0, 2.0, 2.0, 1.0])
    assert falling[-1].backlog_s[0] == 0.0


def test_what_the_cpu_cannot_copy_does_not_load_the_wire() -> None:
    service = stepped(Queues(SETTINGS), work(egress=1.2, cpu=2.0))
    assert service.sent_share[0] == pytest.approx(0.5)
    assert service.backlog_s[0] == pytest.approx(0.5)  # of the CPU alone: the wire gets 0.6


def test_of_cpu_and_wire_only_the_longer_wait_counts() -> None:
    alone = stepped(Queues(SETTINGS), work(egress=0.8)).wait_s[0]
    assert stepped(Queues(SETTINGS), work(egress=0.8, cpu=0.5)).wait_s[0] == pytest.approx(alone)


def test_other_bytes_use_the_wire_too() -> None:
    queues = Queues(SETTINGS)
    assert stepped(queues, work(0.9), extra_bytes_per_s=0.3e6).backlog_s[0] == pytest.approx(0.1)
    assert stepped(Queues(SETTINGS), work(0.9), extra_bytes_per_s=-2e6).backlog_s[0] == 0.0
