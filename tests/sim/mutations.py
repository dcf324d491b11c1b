"""Planted bugs of clients: each takes one rule of the protocol out of the system. The checkers must find every one."""

from __future__ import annotations

from typing import Any

from planting import (
    ASLEEP,
    BUSY_NETWORK,
    CAME_BACK,
    CANCELS,
    CROWDED,
    CUTS,
    EMPTIED,
    FAR,
    JOINING,
    MANY_TOPICS,
    MOVES,
    NETWORK,
    NEWCOMERS,
    PATTERNS,
    PAUSES,
    READDRESSED,
    REPLICAS,
    RIGHTS,
    SERVERS,
    Patch,
    planting,
)

from nearcast.core.client import subscriber as topic_subscriber
from nearcast.core.client.attachment import Attachment
from nearcast.core.client.finder import Finder
from nearcast.core.client.links import Links
from nearcast.core.client.news import Refusals
from nearcast.core.client.ordering import PublisherOrder
from nearcast.core.client.patterns import PatternFlow
from nearcast.core.client.publisher import TopicPublisher
from nearcast.core.client.repairs import Answers
from nearcast.core.client.sending import Lane, Packing
from nearcast.core.client.subscriber import TopicSubscriber
from nearcast.core.controller.members import Members
from nearcast.core.model.membership import Membership
from nearcast.core.model.names import CONTROL as CONTROL_CHANNEL
from nearcast.core.model.names import INBOX
from nearcast.core.wire.backend import LinkRefused
from nearcast.core.wire.frames import ASK, HEADER, decode_repair, publish_command, word_of
from nearcast.core.wire.lease import Proof
from nearcast.core.wire.link import Link, _Confirm

MUTATIONS, mutation = planting()


@mutation("invariant 2", MOVES)
def replies_after_a_fence_count(patch: Patch) -> None:
    original = Lane.replied

    def replied(self: Lane, receivers: list[int], now_s: float) -> None:
        if not self.retired:
            original(self, receivers, now_s)
        elif (lane := self.topic_publisher._sole) is not None:
            self.topic_publisher.count(lane, receivers[: self.topic_publisher.sequence - lane.counted])

    patch.setattr(Lane, "replied", replied)


@mutation("invariant 2", REPLICAS)
def replies_of_two_epochs_count_together(patch: Patch) -> None:
    original = TopicPublisher._adopt

    def adopt(self: TopicPublisher, placement: Any, now_s: float) -> None:
        before = {lane.broker: lane for lane in self.lanes}
        original(self, placement, now_s)
        if len(self.lanes) > 1:
            for lane in self.lanes:
                kept = before.get(lane.broker)
                if kept is not None and kept.counted > lane.counted:
                    lane.receivers.extend([0] * (kept.counted - lane.counted))
                    lane.counted = kept.counted

    patch.setattr(TopicPublisher, "_adopt", adopt)


@mutation("invariant 4", MOVES)
def ready_before_attached(patch: Patch) -> None:
    def say_ready(flow: TopicSubscriber) -> None:
        if flow.upcoming is not None:
            for attachment in flow.attachments.values():
                attachment.say_ready(flow.topic, flow.upcoming.epoch)

    patch.setattr(topic_subscriber, "say_ready", say_ready)


@mutation("invariant 6", MOVES)
def frames_ahead_are_not_held(patch: Patch) -> None:
    patch.setattr(TopicSubscriber, "older_open", lambda self, publisher, epoch: False)


@mutation("invariant", NEWCOMERS)
def any_epoch_is_admitted_anywhere(patch: Patch) -> None:
    patch.setattr(Attachment, "admits", lambda self, epoch: True)


@mutation("invariant", MOVES)
def roles_end_before_the_fence(patch: Patch) -> None:
    original = TopicSubscriber._tidy

    def tidy(self: TopicSubscriber, now_s: float) -> None:
        needed = self.needed()
        for broker, attachment in self.attachments.items():
            if broker not in needed:
                attachment.roles = ()
        original(self, now_s)

    patch.setattr(TopicSubscriber, "_tidy", tidy)


@mutation("invariant 8", BUSY_NETWORK)
def leases_never_end(patch: Patch) -> None:
    def lease(self: Links, link: Any, found: Any, now_s: float) -> None:
        link.proof.found(found.beat)
        link.lease_until_s = now_s + 1e6
        self._client.leased(link, now_s)

    patch.setattr(Links, "_lease", lease)


@mutation("invariant 8", PAUSES)
def a_grant_counts_from_the_moment_it_is_noted(patch: Patch) -> None:
    """A client that sees a different grant than before takes it for one that came after the last question."""
    seen: dict[Proof, int] = {}

    def proven(self: Proof, granted: int) -> float | None:
        if granted == seen.setdefault(self, granted):
            return None
        seen[self] = granted
        return self._found[-1][0]

    patch.setattr(Proof, "proven", proven)


@mutation("invariant 6", ASLEEP)
def bytes_that_were_read_late_count_as_just_sent(patch: Patch) -> None:
    original = Links.received

    def received(self: Links, name: str, data: bytes, now_s: float) -> None:
        peer = self._peers.get(name)
        if peer is not None and peer.link is not None:
            peer.link.sound_s = now_s
        original(self, name, data, now_s)

    patch.setattr(Links, "received", received)


@mutation("guarantee 1", CANCELS)
def cancelled_numbers_leave_a_hole(patch: Patch) -> None:
    original = Packing._command

    def command(self: Packing, sequence: int, payload: bytes | None, time_ns: int, epoch: int) -> bytes:
        if payload is None:
            packer, prefix = publish_command(b"elsewhere", 0)
            return packer.pack(prefix, 0, 0, 0, 0, 0, b"", b"\r\n")
        return original(self, sequence, payload, time_ns, epoch)

    patch.setattr(Packing, "_command", command)
    patch.setattr(Answers, "ask", lambda self, topic_publisher, link, asker, have, now_s: None)


@mutation("invariant 6", NETWORK)
def lost_connections_are_not_reported(patch: Patch) -> None:
    def interrupt(self: TopicSubscriber, reason: str, since_s: float, now_s: float) -> None:
        self.whole = False

    patch.setattr(TopicSubscriber, "interrupt", interrupt)


@mutation("invariant 5", MOVES)
def duplicates_are_delivered(patch: Patch) -> None:
    original = PublisherOrder._advance

    def advance(self: PublisherOrder, frame: Any, last: int, now_s: float, wall_s: float) -> None:
        if frame.sequence == last:
            self._deliver(frame, wall_s)
        else:
            original(self, frame, last, now_s, wall_s)

    patch.setattr(PublisherOrder, "_advance", advance)


@mutation("invariant", NETWORK)
def holes_are_skipped_in_silence(patch: Patch) -> None:
    def give_up(self: PublisherOrder, publisher: int, now_s: float, wall_s: float) -> None:
        self._deadlines.pop(publisher, None)
        held = self._held.get(publisher)
        end = held.lowest().sequence - 1 if held is not None else self._marks.pop(publisher, 0)
        self.last[publisher] = max(end, self.last.get(publisher, 0))
        self._settle(publisher, now_s, wall_s)

    patch.setattr(PublisherOrder, "_give_up", give_up)
    patch.setattr(Answers, "ask", lambda self, topic_publisher, link, asker, have, now_s: None)


@mutation("invariant 7", MOVES)
def readiness_is_never_given_back(patch: Patch) -> None:
    patch.setattr(Attachment, "stale_readiness", lambda self, topic, before: [])


@mutation("invariant 6", CAME_BACK)
def a_broker_that_came_back_is_taken_for_the_old_one(patch: Patch) -> None:
    patch.setattr(Membership, "has", lambda self, broker, placement: broker in self.brokers)


@mutation("invariant", EMPTIED)
def an_empty_memory_is_taken_for_a_record(patch: Patch) -> None:
    patch.setattr(TopicSubscriber, "_forgotten", lambda self, attachment: False)


@mutation("invariant 7", SERVERS)
def publishers_do_not_ask_when_stuck(patch: Patch) -> None:
    original = Finder.ask

    def ask(self: Finder, topic: bytes, now_s: float) -> None:
        topic_publisher = self._client.topic_publishers.get(topic)
        if topic_publisher is None or topic_publisher.placement is None:
            original(self, topic, now_s)

    patch.setattr(Finder, "ask", ask)


@mutation("invariant 6", PATTERNS)
def patterns_do_not_wait_for_other_brokers(patch: Patch) -> None:
    patch.setattr(PatternFlow, "_ask_others", lambda self, matched, speaker: matched.ask(set()))


@mutation("invariant 6", JOINING)
def a_pattern_subscriber_that_comes_late_to_a_new_broker_is_not_told(patch: Patch) -> None:
    patch.setattr(Members, "_is_attended", lambda self, name, now_s: True)
    patch.setattr(PatternFlow, "_check_missed", lambda self, now_s: None)


# --- refusals


@mutation("guarantee 1", MOVES)
def a_refused_topic_costs_the_connection(patch: Patch) -> None:
    original = Link._reply

    def reply(self: Link, answer: Any, now_s: float) -> None:
        if isinstance(self._head(), _Confirm):
            raise LinkRefused("the server refused a subscription")
        original(self, answer, now_s)

    patch.setattr(Link, "_reply", reply)


@mutation("invariant 2", RIGHTS)
def a_refused_message_counts_as_acknowledged(patch: Patch) -> None:
    patch.setattr(Refusals, "note", lambda self, topic, error, count=1: None)


@mutation("invariant 6", RIGHTS)
def who_loses_a_right_is_not_told(patch: Patch) -> None:
    original = TopicSubscriber.refuse

    def refuse(self: TopicSubscriber, error: Any, now_s: float) -> None:
        mailboxes, self.mailboxes = self.mailboxes, ()
        original(self, error, now_s)
        self._interrupted, self.mailboxes = None, mailboxes

    patch.setattr(TopicSubscriber, "refuse", refuse)


@mutation("invariant 7", PATTERNS)
def a_closed_pattern_comes_back_with_its_link(patch: Patch) -> None:
    original = PatternFlow.close

    def close(self: PatternFlow) -> None:
        original(self)
        self._closed = False

    patch.setattr(PatternFlow, "close", close)
    patch.setattr(Links, "unwant", lambda self, flow: None)


@mutation("invariant 7", READDRESSED)
def addresses_the_program_gave_are_not_tried_again(patch: Patch) -> None:
    original = Links.reach_out

    def reach_out(self: Links, now_s: float) -> None:
        self._reseed_at_s = 1e9
        original(self, now_s)

    patch.setattr(Links, "reach_out", reach_out)


# --- distances


@mutation("invariant 7", FAR)
def a_check_of_the_records_is_not_waited_for(patch: Patch) -> None:
    original = TopicSubscriber.tick
    begun_s: dict[object, float] = {}

    def tick(self: TopicSubscriber, now_s: float) -> bool:
        verification = self.verification
        if verification is not None and now_s - begun_s.setdefault(verification, now_s) > 0.5:
            self.verification = None
        return original(self, now_s)

    patch.setattr(TopicSubscriber, "tick", tick)


# --- repairs


@mutation("invariant 10", CUTS)
def requests_for_repair_reach_everybody(patch: Patch) -> None:
    original = Link.tell

    def tell(self: Link, channel: bytes, payload: bytes) -> None:
        repair = decode_repair(payload) if channel.startswith(INBOX) else None
        if repair is not None and HEADER.unpack_from(repair[1])[0] == ASK:
            channel = CONTROL_CHANNEL + repair[0]
        original(self, channel, payload)

    patch.setattr(Link, "tell", tell)


@mutation("invariant 11", CUTS)
def messages_sent_again_forget_whose_they_are(patch: Patch) -> None:
    patch.setattr(
        "nearcast.core.client.sending.word_of", lambda payload, first=False: word_of(payload and b"x", first=first)
    )


# --- limits


@mutation("invariant 6", CROWDED)
def at_the_limit_a_new_line_begins_in_silence(patch: Patch) -> None:
    original = PublisherOrder._make_room

    def make_room(self: PublisherOrder, publisher: int) -> None:
        if self.last.get(publisher) is None:
            self.last[publisher] = self._held[publisher].lowest().sequence - 1
        else:
            original(self, publisher)

    patch.setattr(PublisherOrder, "_make_room", make_room)


@mutation("invariant 7", MANY_TOPICS)
def many_topics_are_attached_at_once_and_a_link_lives_by_its_proof_alone(patch: Patch) -> None:
    patch.setattr(Links, "has_room", lambda self, link: True)
    patch.setattr(Links, "_silent_s", lambda self, link, now_s: now_s - (link.proof.open_since_s or now_s))
