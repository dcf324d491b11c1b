"""The agreement on timers: the leader's are in the membership, and it waits for those who go by an earlier one.

A client counts on a lease for as long as the newest membership says that it has read. So a leader with other timers
than the one before it must not give a broker up by its own T_dead while clients may still go by the longer lease of
before. The membership tells the next leader as well: its `dead_s` is the longest T_dead that a client's lease may need.

    those of another leader -> ours, with the longer dead_s of the two -> all brokers told, that dead_s over -> ours

Who has told its clients of a membership has done so before any answer that comes later on the same connection; so of a
broker that was told, no question that was sent later is counted with the longer lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.settings import Agreed

if TYPE_CHECKING:
    from nearcast.core.controller.leader import Leader
    from nearcast.core.model.membership import Membership


class Agreement:
    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._ours = leader.timing.agreed
        self._told_since_s: float | None = None  # since when all brokers have the newest membership

    @property
    def dead_s(self) -> float:
        """T_dead, long enough for whatever lease clients may go by."""
        return max(self._ours.dead_s, self._now_in(self._leader.journal.membership).dead_s)

    @property
    def lease_over_s(self) -> float:
        """So long after a grant no client counts on it."""
        settled = self._now_in(self._leader.journal.membership) == self._ours
        return self._ours.lease_over_s if settled else self.dead_s

    def after(self, membership: Membership) -> Agreed:
        """The timers of the membership that follows this one."""
        before = self._now_in(membership)
        return msgspec.structs.replace(self._ours, dead_s=max(self._ours.dead_s, before.dead_s))

    def tick(self, now_s: float) -> None:
        """Write down what is not agreed yet."""
        membership = self._leader.journal.membership
        if membership.version == 0 or self._leader.ledger.pending(MEMBERSHIP_KEY):
            return
        timers = self.after(membership)
        if membership.timers == timers and timers != self._ours and self._all_go_by_ours(membership, now_s):
            timers = self._ours
        if membership.timers != timers:
            self._leader.log(f"the timers are now {_in_words(timers)}")
            self._write(membership, timers)

    def _write(self, membership: Membership, timers: Agreed) -> None:
        changed = self._leader.members.changed(membership, dict(membership.brokers), membership.ring)
        self._leader.ledger.write({MEMBERSHIP_KEY: msgspec.structs.replace(changed, timers=timers)})

    def _all_go_by_ours(self, membership: Membership, now_s: float) -> bool:
        """Whether no lease counts any more that is longer than ours."""
        members = self._leader.members
        if not all(members.told(name) for name in membership.brokers if members.alive(name)):
            self._told_since_s = None
        elif self._told_since_s is None:
            self._told_since_s = now_s
        return self._told_since_s is not None and now_s - self._told_since_s > self.dead_s

    def _now_in(self, membership: Membership) -> Agreed:
        """What those go by who have read it. One without timers is of a leader who had the defaults, as all others."""
        if membership.version == 0:
            return self._ours  # nobody has read it
        return membership.timers or Agreed()


def _in_words(timers: Agreed) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in msgspec.structs.asdict(timers).items())
