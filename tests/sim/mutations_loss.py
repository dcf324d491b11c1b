"""Planted bugs of a recovery after the store has lost data: each takes one of its rules out of the system."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from planting import LOST, LOST_WITH_A_BROKER, LOST_WITH_A_LIFE, UNHEARD, WENT_BACK, Patch, planting

from nearcast.core.agent.machine import Agent
from nearcast.core.controller import leader as leader
from nearcast.core.controller import machine, members, recovery
from nearcast.core.controller.members import Members
from nearcast.core.controller.office import Roster
from nearcast.core.controller.recovery import Recovery
from nearcast.core.model.journal import Journal
from nearcast.core.model.logs import FormerLife
from nearcast.core.model.placement import Record

MUTATIONS, mutation = planting()


@mutation("invariant", LOST)
def a_lost_journal_is_taken_for_a_new_one(patch: Patch) -> None:
    patch.setattr(machine, "lost", lambda known, journal, version: False)
    patch.setattr(leader, "lost", lambda known, journal, version: False)


@mutation("invariant", WENT_BACK)
def nobody_notes_how_far_the_journal_was(patch: Patch) -> None:
    patch.setattr(Agent, "_rest_on", lambda self, message: None)
    patch.setattr(machine.Controller, "_remember", lambda self, known: None)


@mutation("invariant", LOST_WITH_A_BROKER)
def topics_of_a_missing_broker_get_the_next_epoch_that_is_known(patch: Patch) -> None:
    patch.setattr(Roster, "_unused", lambda self, epoch: epoch)


@mutation("invariant", LOST_WITH_A_BROKER)
def a_missing_broker_is_not_waited_for(patch: Patch) -> None:
    def over(self: Recovery, now_s: float) -> bool:
        return any(recalled.complete for recalled in self._recalled.values())

    patch.setattr(Recovery, "_over", over)


@mutation("invariant", WENT_BACK)
def a_new_leader_decides_before_it_has_heard_all_brokers(patch: Patch) -> None:
    def all_heard(self: Members, now_s: float) -> bool:
        return True

    patch.setattr(Members, "all_heard", all_heard)


@mutation("invariant", LOST)
def the_oldest_record_wins(patch: Patch) -> None:
    original: Any = recovery._topics

    def topics(journal: Journal, found: Iterable[tuple[str, Record]], there: tuple[str, ...]) -> Any:
        oldest: dict[str, Record] = {}
        for topic, record in found:
            oldest[topic] = min(record, oldest.get(topic, record), key=lambda one: one.version)
        return original(journal, oldest.items(), there)

    patch.setattr(recovery, "_topics", topics)


@mutation("invariant 1", UNHEARD)
def a_broker_that_was_never_heard_is_given_up_in_the_next_version(patch: Patch) -> None:
    patch.setattr(members, "UNHEARD_STEP", 1)


@mutation("invariant 7", LOST_WITH_A_BROKER)
def brokers_are_not_told_that_a_move_was_lost_with_the_store(patch: Patch) -> None:
    patch.setattr(Roster, "may_know_more", lambda self, placement: ())


@mutation("invariant 12", LOST_WITH_A_LIFE)
def replicas_of_a_missing_broker_are_forgotten(patch: Patch) -> None:
    patch.setattr(recovery, "life_ended", lambda now, broker, version: FormerLife(now.life(broker), version))
