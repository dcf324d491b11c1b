"""Planted bugs of timers: processes of one cluster that do not go by the same ones."""

from __future__ import annotations

from planting import OTHER_LEADER, OTHER_TIMERS, Patch, planting

from nearcast.core.controller.timers import Agreement
from nearcast.core.model.settings import Timing

MUTATIONS, mutation = planting()


@mutation("invariant 8", OTHER_TIMERS)
def everybody_keeps_the_timers_it_began_with(patch: Patch) -> None:
    patch.setattr(Timing, "within", lambda self, agreed: self)


@mutation("invariant 8", OTHER_LEADER)
def a_new_leader_does_not_wait_for_leases_that_the_one_before_had_promised(patch: Patch) -> None:
    patch.setattr(Agreement, "dead_s", property(lambda self: self._ours.dead_s))
