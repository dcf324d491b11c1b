"""Planted bugs: each takes one rule of the protocol out of the system. The checkers must find every one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nearcast.core.attachment import Attachment
from nearcast.core.client import Client
from nearcast.core.inflow import Inflow
from nearcast.core.lines import Lines
from nearcast.core.links import Links
from nearcast.core.membership import Membership
from nearcast.core.move import Move, Stage
from nearcast.core.orders import Orders
from nearcast.core.outflow import Lane, Outflow
from nearcast.core.reign import Reign
from nearcast.core.wire import publish_command
from nearcast.sim import scripts

Patch = pytest.MonkeyPatch
MUTATIONS: dict[str, tuple[Callable[[Patch], None], str]] = {}


def mutation(caught_by: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTATIONS[plant.__name__] = (plant, caught_by)
        return plant

    return register


@mutation("invariant 2")
def replies_after_a_fence_count(patch: Patch) -> None:
    original = Lane.replied

    def replied(self: Lane, receivers: list[int], now_s: float) -> None:
        if not self.retired:
            original(self, receivers, now_s)
        elif self.outflow._sole is not None:
            self.outflow.count(self.outflow._sole, receivers)

    patch.setattr(Lane, "replied", replied)


@mutation("invariant 2")
def replies_of_two_epochs_count_together(patch: Patch) -> None:
    original = Outflow._adopt

    def adopt(self: Outflow, placement: Any, now_s: float) -> None:
        before = {lane.broker: lane for lane in self.lanes}
        original(self, placement, now_s)
        if len(self.lanes) > 1:
            for lane in self.lanes:
                kept = before.get(lane.broker)
                if kept is not None and kept.counted > lane.counted:
                    lane.receivers.extend([0] * (kept.counted - lane.counted))
                    lane.counted = kept.counted

    patch.setattr(Outflow, "_adopt", adopt)


@mutation("invariant 4")
def switch_without_waiting_for_subscribers(patch: Patch) -> None:
    patch.setattr(Reign, "_await_ready", lambda self, move, counts, now_s: self._decide(move, forced=False))


@mutation("invariant 4")
def ready_before_attached(patch: Patch) -> None:
    def say_ready(self: Inflow) -> None:
        if self.upcoming is not None:
            for attachment in self.attachments.values():
                attachment.say_ready(self.topic, self.upcoming.epoch)

    patch.setattr(Inflow, "_say_ready", say_ready)


@mutation("invariant 6")
def frames_ahead_are_not_held(patch: Patch) -> None:
    patch.setattr(Inflow, "older_open", lambda self, epoch: False)


@mutation("invariant")
def any_epoch_is_admitted_anywhere(patch: Patch) -> None:
    patch.setattr(Attachment, "admits", lambda self, epoch: True)


@mutation("invariant")
def roles_end_before_the_fence(patch: Patch) -> None:
    original = Inflow._tidy

    def tidy(self: Inflow, now_s: float) -> None:
        needed = self._needed()
        for broker, attachment in self.attachments.items():
            if broker not in needed:
                attachment.roles.clear()
        original(self, now_s)

    patch.setattr(Inflow, "_tidy", tidy)


@mutation("invariant 3")
def settle_before_switch(patch: Patch) -> None:
    def decided(self: Move, entry: Any, now_s: float) -> None:
        self.entry = entry
        self.enter(Stage.SETTLE, now_s)

    patch.setattr(Move, "decided", decided)


@mutation("invariant 6")
def joiners_ignore_the_previous_placement(patch: Patch) -> None:
    original = Inflow._adopt

    def adopt(self: Inflow, record: Any, now_s: float) -> None:
        original(self, type(record)(record.version, record.term, record.placement, record.next), now_s)

    patch.setattr(Inflow, "_adopt", adopt)


@mutation("invariant")
def join_without_reading_again(patch: Patch) -> None:
    def check_whole(self: Inflow, now_s: float) -> None:
        needed = self._needed()
        if not self.whole and needed and all(b in self.attachments and self.attachments[b].open for b in needed):
            self._become_whole(now_s)

    patch.setattr(Inflow, "_check_whole", check_whole)


@mutation("invariant 8")
def leases_never_end(patch: Patch) -> None:
    def lease(self: Links, link: Any, sent_s: float, reply: Any, now_s: float) -> None:
        link.proof_sent_s = None
        link.lease_until_s = now_s + 1e6
        self._client.leased(link, now_s)

    patch.setattr(Links, "_lease", lease)


@mutation("invariant")
def cancelled_numbers_leave_a_hole(patch: Patch) -> None:
    original = Outflow._command

    def command(self: Outflow, channel: bytes, sequence: int, payload: bytes | None, time_ns: int) -> bytes:
        if payload is None:
            packer, prefix = publish_command(b"elsewhere", 0)
            return packer.pack(prefix, 0, 0, 0, 0, 0, b"", b"\r\n")
        return original(self, channel, sequence, payload, time_ns)

    patch.setattr(Outflow, "_command", command)


@mutation("invariant 6")
def lost_connections_are_not_reported(patch: Patch) -> None:
    def interrupt(self: Inflow, reason: str, since_s: float, now_s: float) -> None:
        self.whole = False

    patch.setattr(Inflow, "_interrupt", interrupt)


@mutation("invariant 5")
def duplicates_are_delivered(patch: Patch) -> None:
    original = Lines._advance

    def advance(self: Lines, frame: Any, last: int, now_s: float, wall_s: float) -> None:
        if frame.sequence == last:
            self._deliver(frame, wall_s)
        else:
            original(self, frame, last, now_s, wall_s)

    patch.setattr(Lines, "_advance", advance)


@mutation("invariant")
def holes_are_skipped_in_silence(patch: Patch) -> None:
    def give_up(self: Lines, publisher: int, now_s: float, wall_s: float, reason: str) -> None:
        self._deadlines.pop(publisher, None)
        held = self._held.get(publisher)
        end = held.lowest().sequence - 1 if held is not None else self._marks.pop(publisher, 0)
        self.last[publisher] = max(end, self.last.get(publisher, 0))
        self._settle(publisher, now_s, wall_s)

    patch.setattr(Lines, "_give_up", give_up)
    patch.setattr(Outflow, "resync", lambda self, link, wish: None)


@mutation("invariant 7")
def readiness_is_never_given_back(patch: Patch) -> None:
    patch.setattr(Attachment, "stale_readiness", lambda self, topic, before: [])


@mutation("invariant 1")
def older_records_replace_newer_ones(patch: Patch) -> None:
    patch.setattr(scripts, "_is_older", lambda *args: False)


@mutation("invariant")
def a_broker_that_came_back_is_taken_for_the_old_one(patch: Patch) -> None:
    patch.setattr(Membership, "has", lambda self, broker, placement: broker in self.brokers)


@mutation("invariant 6")
def an_empty_memory_is_taken_for_a_record(patch: Patch) -> None:
    patch.setattr(Inflow, "_forgotten", lambda self, attachment: False)


@mutation("")
def answers_to_another_leader_count(patch: Patch) -> None:
    original = Orders.__init__

    def init(self: Orders, term: int, retry_s: float) -> None:
        original(self, 0, retry_s)

    patch.setattr(Orders, "__init__", init)


@mutation("invariant 7")
def publishers_do_not_ask_when_stuck(patch: Patch) -> None:
    original = Client.ask

    def ask(self: Client, topic: bytes, now_s: float) -> None:
        outflow = self.outflows.get(topic)
        if outflow is None or outflow.placement is None:
            original(self, topic, now_s)

    patch.setattr(Client, "ask", ask)
