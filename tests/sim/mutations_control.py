"""Planted bugs of controllers, agents and servers: each takes one rule of the protocol out of the system."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from planting import (
    CONTROL,
    DEPOSED,
    HANDOVERS,
    INTRUDED,
    JOINING,
    LARGE,
    LEAVING,
    MOVES,
    PLANNED,
    RESTARTS,
    Patch,
    planting,
)

from nearcast.core.controller.departures import Departures
from nearcast.core.controller.effects import Leadership
from nearcast.core.controller.handover import Handover
from nearcast.core.controller.machine import Controller, Role
from nearcast.core.controller.members import Members
from nearcast.core.controller.moves import Move, Moves, Stage
from nearcast.core.controller.planner import ProposalExecutor
from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.membership import Membership
from nearcast.core.wire import bus
from nearcast.sim.valkey import commands

MUTATIONS, mutation = planting()


@mutation("invariant 4", MOVES)
def switch_without_waiting_for_subscribers(patch: Patch) -> None:
    patch.setattr(Moves, "_await_ready", lambda self, move, counts, now_s: self._decide(move, forced=False))


@mutation("invariant 3", MOVES)
def settle_before_switch(patch: Patch) -> None:
    def decided(self: Move, entry: Any, now_s: float) -> None:
        self.entry = entry
        self.enter(Stage.SETTLE, now_s)

    patch.setattr(Move, "decided", decided)


@mutation("invariant 1", CONTROL)
def older_records_replace_newer_ones(patch: Patch) -> None:
    patch.setattr(commands, "_is_older", lambda *args: False)


@mutation("guarantee 1", LEAVING)
def a_broker_leaves_before_pattern_subscribers_let_go(patch: Patch) -> None:
    patch.setattr(Departures, "_await_patterns", lambda self, name, entry, now_s: self._leave(name, entry))


@mutation("guarantee 1", JOINING)
def counts_of_an_earlier_join_are_used(patch: Patch) -> None:
    """Numbers of pattern subscribers, of whatever moment, are compared between brokers."""
    counts: dict[tuple[Members, str], int] = {}

    def is_attended(self: Members, name: str, now_s: float) -> bool:
        others = self._roster.carriers()
        for broker in (name, *sorted(others)):

            def done(answer: Any, at_s: float) -> None:
                counts[(self, answer.broker)] = answer.counts[""][0]

            make = partial(bus.Count, term=self._office.term, epochs={"": 0})
            self._office.orders.need(("patterns", broker), broker, make, done, now_s)
        if any((self, broker) not in counts for broker in (name, *others)):
            return False
        return counts[(self, name)] >= max((counts[(self, broker)] for broker in others), default=0)

    patch.setattr(Members, "_is_attended", is_attended)


@mutation("invariant 7", HANDOVERS)
def a_new_leader_leaves_the_ring_closed(patch: Patch) -> None:
    original = Members._drive_ring

    def drive_ring(self: Members, now_s: float) -> None:
        membership = self._office.journal.membership
        if membership.previous_ring is None or membership.term == self._office.term:
            original(self, now_s)

    patch.setattr(Members, "_drive_ring", drive_ring)


@mutation("invariant", HANDOVERS)
def the_ring_opens_before_its_records_are_there(patch: Patch) -> None:
    def drive(self: Handover, membership: Membership, now_s: float) -> None:
        opened = msgspec.structs.replace(membership, version=membership.version + 1, previous_ring=None)
        self._ledger.write({MEMBERSHIP_KEY: opened})

    patch.setattr(Handover, "drive", drive)


@mutation("invariant", LEAVING)
def a_broker_leaves_with_its_topics(patch: Patch) -> None:
    patch.setattr(Departures, "_topics_of", lambda self, name: ([], 0))


@mutation("invariant 7", LARGE)
def a_failed_load_is_not_noticed(patch: Patch) -> None:
    patch.setattr(Controller, "not_loaded", lambda self, term, reason, now_s: None)


@mutation("invariant 7", LARGE)
def the_lead_is_not_renewed_while_the_journal_is_read(patch: Patch) -> None:
    original = Controller.campaigned

    def campaigned(self: Controller, leadership: Leadership, now_s: float) -> None:
        if self.role is Role.LOADING:
            self._campaigns.popleft()
        else:
            original(self, leadership, now_s)

    patch.setattr(Controller, "campaigned", campaigned)


# --- who leads, and who speaks for a broker


@mutation("invariant 8", DEPOSED)
def a_deposed_leader_that_wakes_up_still_grants(patch: Patch) -> None:
    patch.setattr(Controller, "_heed", lambda self, now_s: None)


@mutation("invariant 8", RESTARTS)
def a_late_word_that_an_earlier_run_has_ended_is_believed(patch: Patch) -> None:
    original = Members.hello

    def hello(self: Members, said: bus.Hello, now_s: float) -> None:
        entry = self._office.journal.brokers.get(said.broker)
        if said.dead and entry is not None:
            said = msgspec.structs.replace(said, run_id=entry.run_id)
        original(self, said, now_s)

    patch.setattr(Members, "hello", hello)


@mutation("invariant", INTRUDED)
def an_agent_with_the_server_of_another_broker_is_believed(patch: Patch) -> None:
    patch.setattr(commands, "_is_there", lambda server, key, holder: False)
    patch.setattr(Members, "_refusal", lambda self, hello, entry, now_s: None)


@mutation("guarantee 5", PLANNED)
def a_proposal_is_carried_out_by_halves(patch: Patch) -> None:
    patch.setattr(ProposalExecutor, "problem", lambda self, proposal: "")
