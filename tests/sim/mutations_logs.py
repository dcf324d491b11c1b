"""Planted bugs of logs: each removes one of their rules from the system."""

from __future__ import annotations

from typing import Any

from planting import KEPT, Patch, planting

from nearcast.core.client.keeping import FormerLanes, KeptLane
from nearcast.core.client.publisher import TopicPublisher
from nearcast.core.client.sending import Lane
from nearcast.sim.valkey import commands

MUTATIONS, mutation = planting()


@mutation("invariant 12", KEPT)
def messages_are_kept_again_at_the_fence(patch: Patch) -> None:
    patch.setattr(FormerLanes, "__bool__", lambda self: False)


@mutation("invariant 12", KEPT)
def replies_behind_the_creation_of_a_log_count(patch: Patch) -> None:
    def replied(self: Lane, receivers: list[int], now_s: float) -> None:
        if self.link is None:
            return original(self, receivers, now_s)
        asking, self.link.asking_members = self.link.asking_members, False
        try:
            return original(self, receivers, now_s)
        finally:
            self.link.asking_members = asking

    original: Any = Lane.replied
    patch.setattr(Lane, "replied", replied)


@mutation("invariant 12", KEPT)
def a_lost_connection_has_kept_nothing(patch: Patch) -> None:
    def reset(self: KeptLane) -> None:
        original(self)
        self.uncertain = False

    original: Any = KeptLane.reset
    patch.setattr(KeptLane, "reset", reset)


@mutation("invariant 12", KEPT)
def a_server_keeps_whatever_the_number(patch: Patch) -> None:
    def append(session: Any, keys: list[bytes], arguments: list[bytes]) -> bytes:
        changed = list(arguments)
        for at in range(2, len(changed), 6):
            session.server.keys.delete_fields(keys[0], [changed[at] + b":" + changed[1]])
            changed[at + 2] = changed[at + 3]
        return original(session, keys, changed)

    original: Any = commands.append
    patch.setattr(commands, "append", append)


@mutation("invariant 12", KEPT)
def a_topic_publisher_does_not_hear_of_logs(patch: Patch) -> None:
    patch.setattr(TopicPublisher, "cover", lambda self, logs, now_s: None)
