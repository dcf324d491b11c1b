"""Joining in the middle of a move: two rules that chance alone does not put to the test often enough."""

from __future__ import annotations

from typing import Any

from nearcast.core.effects import Done
from nearcast.core.placement import Mode, Placement, single
from nearcast.core.record import prepare, settled, switch

T = b"t"


def places(world: Any) -> tuple[str, list[str]]:
    """The topic's directory, and the other brokers."""
    directory = world.membership.directory(T)
    return directory, [name for name in world.servers if name != directory]


def test_a_joiner_that_meets_a_switch_also_attaches_to_old_members_that_are_not_fenced_yet(rig: Any) -> None:
    world = rig("b1", "b2", "b3", "b4")
    directory, (first, second, third) = places(world)
    old = Placement(6, Mode.ALL_SUBSCRIBERS, (first, second), 1)
    new = single(7, third, 1)
    # The directory is two moves behind: the joiner starts at a place that was fenced before the others.
    world.install(directory, T, settled(single(5, first, 1), term=1))
    world.install(first, T, switch(old, new, term=1, forced=False))
    world.install(second, T, prepare(old, new, term=1))
    subscriber = world.client()
    mailbox = subscriber.subscribe(T)
    world.run(0.2)
    assert Done(mailbox) in subscriber.effects
    assert T in world.channels(second), "an acknowledged message may still run there"
    assert T in world.channels(third)


def test_subscribe_does_not_return_on_records_that_changed_while_it_attached(rig: Any) -> None:
    world = rig("b1", "b2", "b3")
    _, (first, second) = places(world)
    old, new = single(5, first, 1), single(6, second, 1)
    for broker in world.servers:
        world.install(broker, T, settled(old, term=1))
    subscriber = world.client()
    subscriber.deaf.update((first, second))
    mailbox = subscriber.subscribe(T)
    world.install(first, T, prepare(old, new, term=1))  # after it was read, before the answer was heard
    subscriber.deaf.discard(first)
    subscriber.hear()
    assert Done(mailbox) not in subscriber.effects
    subscriber.deaf.discard(second)
    subscriber.hear()
    world.run(0.5)
    assert Done(mailbox) in subscriber.effects
    assert T in world.channels(second)
