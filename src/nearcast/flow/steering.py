"""Steering: when the policy is asked, and what is done with its proposals. The controller's planner does it the same
way.

The policy is asked every second, but not while topics move, and not within `wait_s` (T_wait) of the last proposal
with changes, unless a broker has joined since. A broker to be removed gets nothing new, and is released when it
carries nothing: topics with load are moved by the policy, idle ones are forgotten here and go to the ring on their
next use.
"""

from __future__ import annotations

from nearcast.core.planner import Planning
from nearcast.core.proposal import AddBroker, KeepBroker, Policy, Proposal, ProposedChange, RemoveBroker
from nearcast.errors import UsageError
from nearcast.flow.fleet import Fleet
from nearcast.flow.moves import Moves
from nearcast.flow.observer import Observer
from nearcast.flow.placements import Placements
from nearcast.flow.series import ChangeKind, PlanChange, Rebalancing, Series
from nearcast.flow.settings import FlowSettings

CHECK_S = Planning().check_s


class Steering:
    def __init__(
        self,
        policy: Policy,
        fleet: Fleet,
        placements: Placements,
        moves: Moves,
        observer: Observer,
        settings: FlowSettings,
    ) -> None:
        self._policy = policy
        self._fleet = fleet
        self._placements = placements
        self._moves = moves
        self._observer = observer
        self._settings = settings
        self._known = frozenset(fleet.rows)  # brokers the policy has seen
        self._asked_s = -1e9
        self._changed_s = -1e9

    def step(self, now_s: float, series: Series) -> None:
        if not self._is_due(now_s):
            return
        snapshot = self._observer.snapshot(now_s, self._fleet, self._known)
        proposal = self._policy.propose(snapshot, self._placements.plan)
        self._asked_s = now_s
        self._known = frozenset(self._fleet.rows)
        if proposal.changes:
            self._changed_s = now_s
            series.rebalancings.append(Rebalancing(now_s, proposal))
            series.changes += self._carry_out(proposal, now_s)

    def _is_due(self, now_s: float) -> bool:
        if self._moves or now_s - self._asked_s < CHECK_S:
            return False
        return now_s - self._changed_s >= self._settings.wait_s or not self._known.issuperset(self._fleet.rows)

    def _carry_out(self, proposal: Proposal, now_s: float) -> list[PlanChange]:
        for place in proposal.placements:
            if place.topic not in self._placements.plan.topics or not self._fleet.rows.keys() >= set(place.brokers):
                raise UsageError(f"policy {proposal.policy} proposes {place}: the plan has no such topic or broker")
        self._moves.begin(proposal.placements, now_s)
        carried_out = (self._change(change, now_s) for change in proposal.changes)
        return [change for change in carried_out if change is not None]

    def _change(self, change: ProposedChange, now_s: float) -> PlanChange | None:
        if isinstance(change, AddBroker):
            self._fleet.rent(change.count, now_s)
        elif isinstance(change, RemoveBroker) and self._fleet.drain(change.broker):
            return PlanChange(at_s=now_s, kind=ChangeKind.DRAINING, broker=change.broker)
        elif isinstance(change, KeepBroker) and change.broker in self._fleet.draining:
            self._fleet.keep(change.broker)
            return PlanChange(at_s=now_s, kind=ChangeKind.KEPT, broker=change.broker)
        return None

    def release_drained(self, now_s: float) -> list[PlanChange]:
        """Brokers that carry nothing any more are gone."""
        if not self._fleet.draining:
            return []
        loaded, released = self._observer.loaded(), []
        for name in sorted(self._fleet.draining):
            carried = self._placements.layout.on(self._fleet.rows[name])
            idle = ~loaded[carried] & ~self._moves.moving(len(loaded))[carried]
            if idle.any():
                self._placements.forget(carried[idle])
            if idle.all() and not self._moves.involve(name):
                self._fleet.release(name)
                released.append(PlanChange(at_s=now_s, kind=ChangeKind.RELEASED, broker=name))
        return released
