"""Brokers that join under traffic: pattern subscribers are there before topics are, or are told that they were not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

import pytest

from nearcast.core.agent import records
from nearcast.core.controller.office import Orders
from nearcast.core.model.message import Interrupted
from nearcast.core.model.placement import Mode
from nearcast.core.wire import bus
from nearcast.sim.checkers import CHECKERS
from nearcast.sim.faults import FaultPlan, Profile
from nearcast.sim.network import LinkModel
from nearcast.sim.script import Add, Place
from nearcast.sim.store import StoreTrouble
from nearcast.sim.world import Setup, World

NEAR = LinkModel(0.001, 0.001, 0.0)
FAR = LinkModel(0.1, 0.001, 0.0)
START_S = 4.0  # the cluster has formed, and has counted no pattern subscribers
JOIN_S = 5.0


def joining(seed: int, away_s: float) -> World:
    """A broker near to the store joins others that are far from it, and a pattern subscriber comes to it late."""
    setup = Setup(
        brokers=2,
        topics=1,
        publishers=4,
        early_subscribers=0,
        late_subscribers=0,
        pattern_subscribers=1,
        start_s=START_S,
        traffic_s=JOIN_S - START_S + away_s + 1.5,
        moves_per_s=0.0,
        cancelled_share=0.0,
        rate_per_s=50,
        script=(Add(JOIN_S, "b2"), Place(JOIN_S, {"topic-0": (Mode.SINGLE, ("b2",))})),
    )
    world = World(seed, setup, FaultPlan(Profile.CALM))
    for process in ("controller 0", "agent b2"):
        world.network.place(process, "store", NEAR)
    for process in ("agent b0", "agent b1"):
        world.network.place(process, "store", FAR)
    world.timeline.after(JOIN_S, world.network.partition, "subscriber 0", "b2", away_s)
    world.run()
    return world


@pytest.mark.parametrize("seed", range(6))
def test_pattern_subscribers_are_counted_again_for_every_join(seed: int) -> None:
    world = joining(seed, away_s=2.5)
    assert [wrong for check in CHECKERS.values() for wrong in check(world)] == []
    assert world.history.moves >= 1, "the topic went to the new broker"


@pytest.mark.parametrize("seed", range(3))
def test_a_pattern_subscriber_that_comes_too_late_to_a_new_broker_is_told(seed: int) -> None:
    world = joining(seed, away_s=8.0)
    told = [event for _, event in world.subscribers[0].events if isinstance(event, Interrupted)]
    assert told, "messages ran on a broker it was not attached to"
    owed = [wrong for name, check in CHECKERS.items() if name != "unseen" for wrong in check(world)]
    assert owed == []


def test_records_are_asked_for_once_although_it_takes_long_to_write_them_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order is repeated when its answer is late, but not while a batch is written down."""
    asked: Counter[Hashable] = Counter()
    answered: set[Hashable] = set()
    again: list[Hashable] = []
    original_need, original_answered = Orders.need, Orders.answered

    def need(self: Orders, key: Any, *arguments: Any) -> None:
        before = len(self.outgoing)
        original_need(self, key, *arguments)
        if key[0] == "collect" and len(self.outgoing) > before:
            asked[key] += 1
            again.extend([key] if key in answered else [])

    def note_answered(self: Orders, answer: bus.Answer, now_s: float) -> None:
        if answer.order in self._waiting:
            answered.add(self._waiting[answer.order][0])
        original_answered(self, answer, now_s)

    monkeypatch.setattr(Orders, "need", need)
    monkeypatch.setattr(Orders, "answered", note_answered)
    monkeypatch.setattr(records, "BATCH", 1)
    setup = Setup(topics=40, moves_per_s=0.0, traffic_s=6.0, script=(Add(3.0, "b3"),))
    world = World(1, setup, FaultPlan(Profile.CALM))
    world.faults.store_trouble = StoreTrouble(slow_s=0.2)
    world.run()
    assert [wrong for check in CHECKERS.values() for wrong in check(world)] == []
    assert len(asked) > 8, "there were several batches"
    assert again == []
