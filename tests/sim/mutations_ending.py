"""Planted bugs of topics that end: each takes one rule of it out of the system."""

from __future__ import annotations

from typing import Any

from planting import REPEATED, SELDOM, SELDOM_NETWORK, Patch, planting

from nearcast.core.client import upkeep
from nearcast.core.client.machine import Client
from nearcast.core.client.publisher import TopicPublisher
from nearcast.core.client.sending import Packing
from nearcast.core.wire.frames import word_of
from nearcast.core.wire.scripts import KEEP
from nearcast.core.wire.valkey import ValkeyLink
from nearcast.sim.valkey import commands
from nearcast.sim.valkey.replies import bulks

MUTATIONS, mutation = planting()


@mutation("invariant", SELDOM)
def a_record_ends_under_those_who_use_it(patch: Patch) -> None:
    patch.setattr(commands, "_is_held", lambda server, topic: False)


@mutation("invariant", SELDOM)
def a_record_ends_although_the_controller_knows_of_it(patch: Patch) -> None:
    """What was collected for the journal ends on its directory, too."""

    def keep(server: Any, keys: list[bytes], arguments: list[bytes]) -> bytes:
        stored = server.keys.fields(keys[0])
        return bulks(stored.get(topic, record) for topic, record in zip(arguments[::3], arguments[2::3], strict=True))

    patch.setitem(commands.TWINS, KEEP, keep)


@mutation("invariant", SELDOM)
def first_uses_are_not_collected(patch: Patch) -> None:
    """What is in use at the old directory starts over at the new one, beside it."""
    patch.setattr(ValkeyLink, "find_first_uses", lambda self, members, wanted, then: then({}, 0.0))


@mutation("invariant 6", SELDOM)
def numbers_of_a_topic_that_ended_begin_again_at_1(patch: Patch) -> None:
    original = Client.end_topic_publisher

    def end_topic_publisher(self: Client, topic_publisher: TopicPublisher) -> None:
        original(self, topic_publisher)
        self.numbered = 0

    patch.setattr(Client, "end_topic_publisher", end_topic_publisher)


@mutation("guarantee 1", SELDOM)
def nobody_is_told_that_a_line_starts_over(patch: Patch) -> None:
    patch.setattr(Packing, "word", lambda self, sequence, payload: word_of(payload))


@mutation("invariant 7", SELDOM_NETWORK)
def a_client_forgets_what_is_not_acknowledged(patch: Patch) -> None:
    original = TopicPublisher.unused

    def unused(self: TopicPublisher) -> bool:
        original(self)
        return self.sequence > 0

    patch.setattr(TopicPublisher, "unused", unused)


@mutation("invariant 5", REPEATED)
def a_line_is_forgotten_before_its_publisher_stops_repeating(patch: Patch) -> None:
    patch.setattr(upkeep, "LINES_ROUNDS", 1)
    patch.setattr(TopicPublisher, "unused", lambda self: False)
