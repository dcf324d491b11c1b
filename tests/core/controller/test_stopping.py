"""A controller that is stopped in good order gives its lead away at once, and says nothing after that."""

from __future__ import annotations

from random import Random
from typing import Any

from nearcast.core.controller.effects import Leadership, Resign
from nearcast.core.controller.machine import Controller, Role
from nearcast.core.model.names import CONTROLLER_CHANNEL
from nearcast.core.model.settings import DEFAULT_TIMING


def candidate() -> Controller:
    controller = Controller("c1", "redis://store", Random(1))
    controller.tick(0.0)
    controller.store.clear()
    return controller


def test_who_waits_leads_at_once_in_a_higher_term(cluster_of: Any) -> None:
    cluster = cluster_of("b1", "b2", controllers=2)
    cluster.run(3.0)
    first = cluster.leader
    before = cluster.store.load_now()
    cluster.retire(first)
    assert first.role is Role.FOLLOWER
    assert first.notes[-1] == f"{first.name} no longer leads: it is shutting down"
    assert cluster.store.load_now() == before, "nothing of the journal changes"
    cluster.run(DEFAULT_TIMING.leader_s / 4 + 0.1)  # the next campaign of who waits
    assert cluster.leader is not first
    assert cluster.leader.leading.term == 2


def test_nothing_is_granted_after_that(cluster: Any) -> None:
    leader = cluster.leader
    leader.outgoing()
    leader.leading.office.outbox.append((CONTROLLER_CHANNEL, b"what it was about to say"))
    leader.retire(cluster.rig.now_s)
    assert leader.outgoing() == []


def test_a_campaign_on_its_way_does_not_win_the_lead_for_nobody() -> None:
    controller = candidate()
    controller.retire(0.1)
    assert controller.store == [Resign("c1.0@1")], "behind the campaign"
    controller.campaigned(Leadership(1, "c1.0@1#1", 0), 0.2)
    assert controller.role is Role.FOLLOWER
    assert controller.store == [Resign("c1.0@1")]
    assert controller.notes == []


def test_who_only_waits_gives_nothing_back() -> None:
    controller = candidate()
    controller.campaigned(Leadership(None, "c2.0@1#1", 0), 0.1)
    controller.retire(0.2)
    assert controller.store == []
