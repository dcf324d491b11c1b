"""Planted bugs: each takes one rule of the protocol out of the system. The checkers must find every one of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from nearcast.core import bus, forgetting
from nearcast.core.answers import Answers
from nearcast.core.attachment import Attachment
from nearcast.core.backend import LinkRefused
from nearcast.core.client import Client
from nearcast.core.controller import Controller, Role
from nearcast.core.departures import Departures
from nearcast.core.handover import Handover
from nearcast.core.inflow import Inflow
from nearcast.core.journal import MEMBERSHIP_KEY
from nearcast.core.lane import Lane
from nearcast.core.lines import Lines
from nearcast.core.link import Link, _Confirm
from nearcast.core.links import Links
from nearcast.core.members import Members
from nearcast.core.membership import Membership
from nearcast.core.move import Move, Stage
from nearcast.core.names import CONTROL as CONTROL_CHANNEL
from nearcast.core.names import INBOX
from nearcast.core.outflow import Outflow
from nearcast.core.patterns import PatternFlow
from nearcast.core.placement import Mode
from nearcast.core.proof import Proof
from nearcast.core.refusals import Refusals
from nearcast.core.reign import Reign
from nearcast.core.scripts import KEEP
from nearcast.core.settings import Limits, Timing
from nearcast.core.wire import ASK, HEADER, decode_repair, publish_command, word_of
from nearcast.sim import scripts
from nearcast.sim.faults import Profile
from nearcast.sim.replies import bulks
from nearcast.sim.script import Add
from nearcast.sim.world import Setup

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


class World(msgspec.Struct, frozen=True):
    """Where a planted bug shows soon."""

    setup: Setup
    profile: Profile


MOVES = World(Setup(topics=1, brokers=4, publishers=4, rate_per_s=60, moves_per_s=10), Profile.CALM)
REPLICAS = World(
    Setup(topics=1, brokers=4, publishers=4, rate_per_s=80, moves_per_s=10, modes=(Mode.ALL_PUBLISHERS,)), Profile.CALM
)
CUTS = World(Setup(topics=1, late_subscribers=14, moves_per_s=10, rate_per_s=60), Profile.NETWORK)
PATTERNS = World(Setup(topics=1, brokers=4, pattern_subscribers=4, rate_per_s=60, moves_per_s=10), Profile.CALM)
LEAVING = World(
    Setup(topics=1, brokers=4, pattern_subscribers=4, rate_per_s=120, moves_per_s=4, drains=4), Profile.CALM
)
JOINING = World(
    Setup(
        topics=1,
        pattern_subscribers=3,
        late_pattern_subscribers=1,
        early_subscribers=0,
        late_subscribers=0,
        rate_per_s=60,
        moves_per_s=12,
        script=(Add(7.0, "b3"), Add(8.0, "b4"), Add(9.0, "b5")),
        sites=True,
        slow_connects=0.4,
        start_s=4.0,
        traffic_s=8.0,
    ),
    Profile.CALM,
)
MANY_TOPICS = World(
    Setup(topics=1, brokers=1, publishers=1, early_subscribers=1, late_subscribers=0, moves_per_s=0, many_topics=100),
    Profile.NETWORK,
)
CANCELS = World(Setup(topics=1, brokers=4, cancelled_share=0.5, rate_per_s=60, moves_per_s=10), Profile.CALM)
RESTING = World(Setup(topics=4, brokers=2, moves_per_s=0, drains=2), Profile.SERVERS)
CONTROL = World(Setup(topics=2, controllers=2, moves_per_s=6), Profile.CONTROL)
HANDOVERS = World(
    Setup(topics=8, controllers=2, moves_per_s=0, drains=2, script=(Add(2.5, "b3"), Add(3.5, "b4"))), Profile.CONTROL
)
NETWORK = World(Setup(topics=2), Profile.NETWORK)
BUSY_NETWORK = World(
    Setup(topics=1, brokers=2, publishers=8, moves_per_s=1, rate_per_s=60, traffic_s=8.0), Profile.NETWORK
)
SERVERS = World(Setup(topics=2), Profile.SERVERS)
PAUSES = World(
    Setup(topics=1, brokers=2, publishers=6, early_subscribers=4, moves_per_s=1, rate_per_s=60, traffic_s=8.0),
    Profile.CLOCKS,
)
RIGHTS = World(Setup(topics=1, publishers=4, rate_per_s=60, early_subscribers=4), Profile.RIGHTS)
CROWDED = World(
    Setup(topics=1, brokers=4, publishers=6, rate_per_s=80, moves_per_s=10, limits=Limits(window=256, held=4)),
    Profile.NETWORK,
)
FAR = World(Setup(topics=1, moves_per_s=1, client_distances_s=(0.2, 0.35, 0.45)), Profile.NETWORK)
ALL = World(Setup(topics=2, controllers=2), Profile.ALL)
_SELDOM = Setup(
    topics=8,
    rate_per_s=2.5,
    early_subscribers=4,
    late_subscribers=6,
    hasty_subscribers=4,
    moves_per_s=0,
    drains=2,
    traffic_s=10.0,
    script=(Add(3.0, "b3"), Add(6.0, "b4")),
    timing=Timing(idle_s=1.1),
)
SELDOM = World(_SELDOM, Profile.CALM)
SELDOM_NETWORK = World(_SELDOM, Profile.NETWORK)
STORE = World(Setup(topics=2, controllers=2), Profile.STORE)
LARGE = World(Setup(topics=2, controllers=2, load_s=1.5), Profile.STORE)


class Mutation(msgspec.Struct, frozen=True):
    plant: Plant
    caught_by: str  # what the finding must say
    world: World


MUTATIONS: dict[str, Mutation] = {}


def mutation(caught_by: str, world: World) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        MUTATIONS[plant.__name__] = Mutation(plant, caught_by, world)
        return plant

    return register


@mutation("invariant 2", MOVES)
def replies_after_a_fence_count(patch: Patch) -> None:
    original = Lane.replied

    def replied(self: Lane, receivers: list[int], now_s: float) -> None:
        if not self.retired:
            original(self, receivers, now_s)
        elif (lane := self.outflow._sole) is not None:
            self.outflow.count(lane, receivers[: self.outflow.sequence - lane.counted])

    patch.setattr(Lane, "replied", replied)


@mutation("invariant 2", REPLICAS)
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


@mutation("invariant 4", MOVES)
def switch_without_waiting_for_subscribers(patch: Patch) -> None:
    patch.setattr(Reign, "_await_ready", lambda self, move, counts, now_s: self._decide(move, forced=False))


@mutation("invariant 4", MOVES)
def ready_before_attached(patch: Patch) -> None:
    def say_ready(self: Inflow) -> None:
        if self.upcoming is not None:
            for attachment in self.attachments.values():
                attachment.say_ready(self.topic, self.upcoming.epoch)

    patch.setattr(Inflow, "_say_ready", say_ready)


@mutation("invariant 6", MOVES)
def frames_ahead_are_not_held(patch: Patch) -> None:
    patch.setattr(Inflow, "older_open", lambda self, publisher, epoch: False)


@mutation("invariant", CUTS)
def any_epoch_is_admitted_anywhere(patch: Patch) -> None:
    patch.setattr(Attachment, "admits", lambda self, epoch: True)


@mutation("invariant", MOVES)
def roles_end_before_the_fence(patch: Patch) -> None:
    original = Inflow._tidy

    def tidy(self: Inflow, now_s: float) -> None:
        needed = self.needed()
        for broker, attachment in self.attachments.items():
            if broker not in needed:
                attachment.roles = ()
        original(self, now_s)

    patch.setattr(Inflow, "_tidy", tidy)


@mutation("invariant 3", MOVES)
def settle_before_switch(patch: Patch) -> None:
    def decided(self: Move, entry: Any, now_s: float) -> None:
        self.entry = entry
        self.enter(Stage.SETTLE, now_s)

    patch.setattr(Move, "decided", decided)


@mutation("invariant 8", BUSY_NETWORK)
def leases_never_end(patch: Patch) -> None:
    def lease(self: Links, link: Any, found: Any, now_s: float) -> None:
        link.proof.found(found.beat)
        link.lease_until_s = now_s + 1e6
        self._client.leased(link, now_s)

    patch.setattr(Links, "_lease", lease)


@mutation("invariant 8", PAUSES)
def a_grant_counts_from_the_moment_it_is_noted(patch: Patch) -> None:
    """Whoever sees another grant than before takes it for one that came after the last question."""
    seen: dict[Proof, int] = {}

    def proven(self: Proof, granted: int) -> float | None:
        if granted == seen.setdefault(self, granted):
            return None
        seen[self] = granted
        return self._found[-1][0]

    patch.setattr(Proof, "proven", proven)


@mutation("invariant 6", PAUSES)
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
    original = Outflow._command

    def command(self: Outflow, channel: bytes, sequence: int, payload: bytes | None, time_ns: int) -> bytes:
        if payload is None:
            packer, prefix = publish_command(b"elsewhere", 0)
            return packer.pack(prefix, 0, 0, 0, 0, 0, b"", b"\r\n")
        return original(self, channel, sequence, payload, time_ns)

    patch.setattr(Outflow, "_command", command)
    patch.setattr(Answers, "ask", lambda self, outflow, link, asker, have, now_s: None)


@mutation("invariant 6", NETWORK)
def lost_connections_are_not_reported(patch: Patch) -> None:
    def interrupt(self: Inflow, reason: str, since_s: float, now_s: float) -> None:
        self.whole = False

    patch.setattr(Inflow, "_interrupt", interrupt)


@mutation("invariant 5", MOVES)
def duplicates_are_delivered(patch: Patch) -> None:
    original = Lines._advance

    def advance(self: Lines, frame: Any, last: int, now_s: float, wall_s: float) -> None:
        if frame.sequence == last:
            self._deliver(frame, wall_s)
        else:
            original(self, frame, last, now_s, wall_s)

    patch.setattr(Lines, "_advance", advance)


@mutation("invariant", NETWORK)
def holes_are_skipped_in_silence(patch: Patch) -> None:
    def give_up(self: Lines, publisher: int, now_s: float, wall_s: float) -> None:
        self._deadlines.pop(publisher, None)
        held = self._held.get(publisher)
        end = held.lowest().sequence - 1 if held is not None else self._marks.pop(publisher, 0)
        self.last[publisher] = max(end, self.last.get(publisher, 0))
        self._settle(publisher, now_s, wall_s)

    patch.setattr(Lines, "_give_up", give_up)
    patch.setattr(Answers, "ask", lambda self, outflow, link, asker, have, now_s: None)


@mutation("invariant 7", MOVES)
def readiness_is_never_given_back(patch: Patch) -> None:
    patch.setattr(Attachment, "stale_readiness", lambda self, topic, before: [])


@mutation("invariant 1", CONTROL)
def older_records_replace_newer_ones(patch: Patch) -> None:
    patch.setattr(scripts, "_is_older", lambda *args: False)


@mutation("invariant", ALL)
def a_broker_that_came_back_is_taken_for_the_old_one(patch: Patch) -> None:
    patch.setattr(Membership, "has", lambda self, broker, placement: broker in self.brokers)


@mutation("invariant", RESTING)
def an_empty_memory_is_taken_for_a_record(patch: Patch) -> None:
    patch.setattr(Inflow, "_forgotten", lambda self, attachment: False)


@mutation("invariant 7", SERVERS)
def publishers_do_not_ask_when_stuck(patch: Patch) -> None:
    original = Client.ask

    def ask(self: Client, topic: bytes, now_s: float) -> None:
        outflow = self.outflows.get(topic)
        if outflow is None or outflow.placement is None:
            original(self, topic, now_s)

    patch.setattr(Client, "ask", ask)


@mutation("invariant 6", PATTERNS)
def patterns_do_not_wait_for_other_brokers(patch: Patch) -> None:
    patch.setattr(PatternFlow, "_ask_others", lambda self, matched, speaker: matched.ask(set()))


@mutation("guarantee 1", LEAVING)
def a_broker_leaves_before_pattern_subscribers_let_go(patch: Patch) -> None:
    patch.setattr(Departures, "_await_patterns", lambda self, name, entry, now_s: self._leave(name, entry))


@mutation("guarantee 1", JOINING)
def counts_of_an_earlier_join_are_used(patch: Patch) -> None:
    """Numbers of pattern subscribers, of whatever moment, are compared between brokers."""
    counts: dict[tuple[Members, str], int] = {}

    def is_attended(self: Members, name: str, now_s: float) -> bool:
        others = self.carriers()
        for broker in (name, *sorted(others)):

            def done(answer: Any, at_s: float) -> None:
                counts[(self, answer.broker)] = answer.counts[""][0]

            make = partial(bus.Count, term=self._reign.term, epochs={"": 0})
            self._reign.orders.need(("patterns", broker), broker, make, done, now_s)
        if any((self, broker) not in counts for broker in (name, *others)):
            return False
        return counts[(self, name)] >= max((counts[(self, broker)] for broker in others), default=0)

    patch.setattr(Members, "_is_attended", is_attended)


@mutation("invariant 6", JOINING)
def a_pattern_subscriber_that_comes_late_to_a_new_broker_is_not_told(patch: Patch) -> None:
    patch.setattr(Members, "_is_attended", lambda self, name, now_s: True)
    patch.setattr(PatternFlow, "_check_missed", lambda self, now_s: None)


@mutation("invariant 7", HANDOVERS)
def a_new_leader_leaves_the_ring_closed(patch: Patch) -> None:
    original = Members._drive_ring

    def drive_ring(self: Members, now_s: float) -> None:
        membership = self._reign.journal.membership
        if membership.previous_ring is None or membership.term == self._reign.term:
            original(self, now_s)

    patch.setattr(Members, "_drive_ring", drive_ring)


@mutation("invariant", HANDOVERS)
def the_ring_opens_before_its_records_are_there(patch: Patch) -> None:
    def drive(self: Handover, membership: Membership, now_s: float) -> None:
        opened = msgspec.structs.replace(membership, version=membership.version + 1, previous_ring=None)
        self._reign.ledger.write({MEMBERSHIP_KEY: opened})

    patch.setattr(Handover, "drive", drive)


@mutation("invariant", LEAVING)
def a_broker_leaves_with_its_topics(patch: Patch) -> None:
    patch.setattr(Departures, "_topics_of", lambda self, name: ([], 0))


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
    original = Inflow.refuse

    def refuse(self: Inflow, error: Any, now_s: float) -> None:
        mailboxes, self.mailboxes = self.mailboxes, ()
        original(self, error, now_s)
        self._interrupted, self.mailboxes = None, mailboxes

    patch.setattr(Inflow, "refuse", refuse)


@mutation("invariant 7", PATTERNS)
def a_closed_pattern_comes_back_with_its_link(patch: Patch) -> None:
    original = PatternFlow.close

    def close(self: PatternFlow) -> None:
        original(self)
        self._closed = False

    patch.setattr(PatternFlow, "close", close)
    patch.setattr(Links, "unwant", lambda self, flow: None)


# --- distances


@mutation("invariant 7", FAR)
def a_check_of_the_records_is_not_waited_for(patch: Patch) -> None:
    original = Inflow.tick
    begun_s: dict[object, float] = {}

    def tick(self: Inflow, now_s: float) -> bool:
        verification = self._verification
        if verification is not None and now_s - begun_s.setdefault(verification, now_s) > 0.5:
            self._verification = None
        return original(self, now_s)

    patch.setattr(Inflow, "tick", tick)


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
    patch.setattr("nearcast.core.outflow.word_of", lambda payload, first=False: word_of(payload and b"x", first=first))


# --- limits


@mutation("invariant 6", CROWDED)
def at_the_limit_a_new_line_begins_in_silence(patch: Patch) -> None:
    original = Lines._make_room

    def make_room(self: Lines, publisher: int) -> None:
        if self.last.get(publisher) is None:
            self.last[publisher] = self._held[publisher].lowest().sequence - 1
        else:
            original(self, publisher)

    patch.setattr(Lines, "_make_room", make_room)


@mutation("invariant 7", STORE)
def a_failed_load_is_not_noticed(patch: Patch) -> None:
    patch.setattr(Controller, "not_loaded", lambda self, term, reason, now_s: None)


@mutation("invariant 7", LARGE)
def the_lead_is_not_renewed_while_the_journal_is_read(patch: Patch) -> None:
    original = Controller.campaigned

    def campaigned(self: Controller, term: int | None, held: str, now_s: float) -> None:
        if self.role is Role.LOADING:
            self._campaign = None
        else:
            original(self, term, held, now_s)

    patch.setattr(Controller, "campaigned", campaigned)


@mutation("invariant 7", MANY_TOPICS)
def many_topics_are_attached_at_once_and_a_link_lives_by_its_proof_alone(patch: Patch) -> None:
    patch.setattr(Links, "has_room", lambda self, link: True)
    patch.setattr(Links, "_silent_s", lambda self, link, now_s: now_s - (link.proof.open_since_s or now_s))


# --- topics that end


@mutation("invariant", SELDOM)
def a_record_ends_under_those_who_use_it(patch: Patch) -> None:
    patch.setattr(scripts, "_is_held", lambda server, topic: False)


@mutation("invariant", SELDOM)
def a_record_ends_although_the_controller_knows_of_it(patch: Patch) -> None:
    """What was collected for the journal ends on its directory, too."""

    def keep(server: Any, keys: list[bytes], arguments: list[bytes]) -> bytes:
        stored = server.keys.fields(keys[0])
        return bulks(stored.get(topic, b"") for topic in arguments[1:])

    patch.setitem(scripts.TWINS, KEEP, keep)


@mutation("invariant 6", SELDOM)
def numbers_of_a_topic_that_ended_begin_again_at_1(patch: Patch) -> None:
    original = Client.end_outflow

    def end_outflow(self: Client, outflow: Outflow) -> None:
        original(self, outflow)
        self.numbered = 0

    patch.setattr(Client, "end_outflow", end_outflow)


@mutation("guarantee 1", SELDOM)
def nobody_is_told_that_a_line_begins_anew(patch: Patch) -> None:
    patch.setattr(Outflow, "word", lambda self, sequence, payload: word_of(payload))


@mutation("invariant 7", SELDOM_NETWORK)
def a_client_forgets_what_is_not_acknowledged(patch: Patch) -> None:
    original = Outflow.unused

    def unused(self: Outflow) -> bool:
        original(self)
        return self.sequence > 0

    patch.setattr(Outflow, "unused", unused)


@mutation("invariant 5", SELDOM_NETWORK)
def a_line_is_forgotten_before_its_publisher_stops_repeating(patch: Patch) -> None:
    patch.setattr(forgetting, "LINES_ROUNDS", 1)
    patch.setattr(Outflow, "unused", lambda self: False)
