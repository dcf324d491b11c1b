"""Planted bugs of logs: each removes one of their rules from the system."""

from __future__ import annotations

from typing import Any

import msgspec
from planting import DRAINED, EXPIRING, KEPT, LOST_LIVES, READ, SHARED, Patch, planting

from nearcast.core.agent.retention import Part
from nearcast.core.client import keeping
from nearcast.core.client.advance import Advance
from nearcast.core.client.keeping import FormerLanes, KeptLane
from nearcast.core.client.log_reader import LogReader
from nearcast.core.client.part_reader import PartReader
from nearcast.core.client.publisher import TopicPublisher
from nearcast.core.client.sending import Lane
from nearcast.core.model.logs import keys_of, life_of
from nearcast.core.model.membership import Membership
from nearcast.core.model.names import RECORDS
from nearcast.sim.valkey import appending, commands

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
        self.doubted = 0

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
    patch.setattr(TopicPublisher, "cover", lambda self: None)


@mutation("invariant 12", EXPIRING)
def of_several_logs_one_keeps_a_message(patch: Patch) -> None:
    patch.setattr(keeping, "keys_of", lambda logs, life: keys_of(logs[:1], life))


# --- readers


@mutation("invariant 13", READ)
def marks_are_ignored(patch: Patch) -> None:
    patch.setattr(LogReader, "_has_read", lambda self, line, now_s: True)


@mutation("invariant 13", READ)
def a_member_that_has_switched_takes_messages_at_once(patch: Patch) -> None:
    """It is a broker of both placements: the others may not have switched, and it has no mark."""

    def epoch(server: Any, topic: bytes) -> bytes:
        record = server.keys.fields(RECORDS).get(topic)
        return b"%d" % msgspec.json.decode(record)["placement"][0] if record is not None else original(server, topic)

    original: Any = appending._epoch
    patch.setattr(appending, "_epoch", epoch)


@mutation("invariant 13", LOST_LIVES)
def lost_lives_are_not_reported(patch: Patch) -> None:
    def end(self: PartReader, former: Any) -> None:
        original(self, former)
        self.lines.clear()

    original: Any = PartReader.end
    patch.setattr(PartReader, "end", end)


@mutation("invariant 13", LOST_LIVES)
def a_server_that_restarts_empty_goes_on_as_it_was(patch: Patch) -> None:
    def life(self: Membership, broker: str) -> str:
        info = self.brokers.get(broker)
        return life_of(broker, info.joined) if info is not None else ""

    patch.setattr(Membership, "life", life)


@mutation("invariant 13", SHARED)
def what_was_delivered_counts_as_taken(patch: Patch) -> None:
    def deliver(self: LogReader, part: PartReader, line: Any) -> None:
        original(self, part, line)
        if line.events:
            part.advance._taken = (line, len(line.events))

    original: Any = LogReader._deliver
    patch.setattr(Advance, "take", lambda self, line, number: None)
    patch.setattr(LogReader, "_deliver", deliver)


@mutation("invariant 13", EXPIRING)
def what_retention_removed_is_passed_in_silence(patch: Patch) -> None:
    def miss(self: PartReader, count: int | None, reason: str) -> None:
        if "retention" not in reason:
            original(self, count, reason)

    original: Any = PartReader._miss
    patch.setattr(PartReader, "_miss", miss)


@mutation("invariant 13", EXPIRING)
def retention_waits_for_nobody(patch: Patch) -> None:
    original: Any = Part.expired
    patch.setattr(Part, "expired", lambda self, now_s, held: original(self, now_s, None))


@mutation("invariant 13", DRAINED)
def a_group_is_told_that_what_it_has_read_is_lost(patch: Patch) -> None:
    patch.setattr(PartReader, "_unread", lambda self, former: None)
