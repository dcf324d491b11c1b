"""Giving a broker its records back costs as many orders as there are batches, however slow its agent is."""

from __future__ import annotations

from collections import deque

import pytest

from nearcast.core.controller.handover import Restoring
from nearcast.core.controller.office import INSTALL_BATCH, Orders
from nearcast.core.model.placement import settled, single
from nearcast.core.wire import bus

RETRY_S = 0.3


@pytest.mark.parametrize("topics", [5_000, 20_000, 80_000])
def test_orders_grow_with_the_number_of_records(topics: int) -> None:
    records = {f"t{number}": settled(single(6, "b1", 5), term=1) for number in range(topics)}
    orders, sent, now_s = Orders(1, RETRY_S), 0, 0.0
    done: list[bool] = []
    restoring = Restoring(orders, term=1)
    agent: deque[tuple[float, int]] = deque()  # when each order is done: one after the other, 10 ms each
    while not done:
        now_s += 0.05
        restoring.drive("records", "b1", lambda: iter(records.items()), lambda: done.append(True), now_s)
        while agent and agent[0][0] <= now_s:
            orders.answered(bus.Answer("b1", agent.popleft()[1]), now_s)
        for _, order in orders.outgoing:
            sent += 1
            agent.append((max(now_s, agent[-1][0] if agent else 0.0) + 0.01, order.order))
        orders.outgoing.clear()
    assert sent == -(-topics // INSTALL_BATCH)


def test_a_batch_without_an_answer_is_sent_again() -> None:
    orders = Orders(1, RETRY_S)
    restoring = Restoring(orders, term=1)
    done: list[bool] = []
    record = settled(single(6, "b1", 5), term=1)
    for now_s in (0.0, 0.1, 0.4):
        restoring.drive("k", "b1", lambda: iter([("t", record)]), lambda: done.append(True), now_s)
    (_, first), (_, second) = orders.outgoing
    assert (first.records, done) == (second.records, [])
    orders.answered(bus.Answer("b1", second.order), 0.5)
    orders.answered(bus.Answer("b1", first.order), 0.5)
    assert done == [True]
