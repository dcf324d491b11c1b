"""Demand: who hears its own updates."""

from __future__ import annotations

import numpy as np

from nearcast.flow.model import Demand, Publications, Subscriptions, summed


def test_a_publisher_hears_itself_where_it_is_subscribed() -> None:
    demand = Demand(
        clients=3,
        subscriptions=Subscriptions(np.array([0, 1, 2]), np.array([0, 1, 1])),
        publications=Publications(np.array([0, 1, 2, 2]), np.array([0, 0, 1, 0]), np.ones(4)),
        message_bytes=100.0,
    )
    assert not demand.all_hear_themselves
    assert demand.heard_by_themselves().tolist() == [True, False, True, False]


def test_the_same_arrays_mean_that_all_hear_themselves() -> None:
    client, topic = np.arange(4), np.zeros(4, dtype=np.int64)
    demand = Demand(4, Subscriptions(client, topic), Publications(client, topic, np.ones(4)), 1.0)
    assert demand.all_hear_themselves
    assert demand.heard_by_themselves().all()


def test_weights_are_summed_by_number() -> None:
    assert summed(np.array([2, 0, 2]), np.array([1.0, 2.0, 4.0]), 4).tolist() == [2.0, 0.0, 5.0, 0.0]
