"""The agreement on timers: the leader puts its own into the membership, and waits until earlier ones are out of use.

A client trusts a lease for as long as the newest membership it has read says. So a leader whose timers differ from its
predecessor's must not give up a broker by its own T_dead while clients may still use the previous, longer lease. The
membership informs the next leader as well: its `dead_s` is the longest T_dead that a client's lease may need.

    another leader's -> ours, with the longer dead_s of the two -> all brokers informed, that dead_s over -> ours

A broker announces a membership to its clients before any later answer on the same connection. So at a broker with the
new membership, no question sent later is counted with the longer lease.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.settings import Agreed

if TYPE_CHECKING:
    from nearcast.core.controller.office import Office
    from nearcast.core.model.membership import Membership


class Agreement:
    """Which timers the cluster uses now, and when the leader may write its own."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._ledger = office.ledger
        self._ours = office.timing.agreed
        self._informed_since_s: float | None = None  # since when all brokers have had the newest membership

    @property
    def dead_s(self) -> float:
        """T_dead, long enough for any lease that clients may use."""
        return max(self._ours.dead_s, self._now_in(self._ledger.journal.membership).dead_s)

    @property
    def lease_over_s(self) -> float:
        """How long after a grant no client relies on it any more."""
        settled = self._now_in(self._ledger.journal.membership) == self._ours
        return self._ours.lease_over_s if settled else self.dead_s

    def after(self, membership: Membership) -> Agreed:
        """The timers of the membership that follows this one."""
        before = self._now_in(membership)
        return msgspec.structs.replace(self._ours, dead_s=max(self._ours.dead_s, before.dead_s))

    def due(self, informed: Callable[[], bool], now_s: float) -> Agreed | None:
        """The timers to write now; None if there is nothing to write.

        `informed` says whether every live broker has the newest membership.
        """
        membership = self._ledger.journal.membership
        if membership.version == 0 or self._ledger.pending(MEMBERSHIP_KEY):
            return None
        timers = self.after(membership)
        if membership.timers == timers and timers != self._ours and self._all_go_by_ours(informed(), now_s):
            timers = self._ours
        if membership.timers == timers:
            return None
        self._office.log(f"the timers are now {_in_words(timers)}")
        return timers

    def _all_go_by_ours(self, informed: bool, now_s: float) -> bool:
        """Whether no lease longer than ours counts any more."""
        if not informed:
            self._informed_since_s = None
        elif self._informed_since_s is None:
            self._informed_since_s = now_s
        return self._informed_since_s is not None and now_s - self._informed_since_s > self.dead_s

    def _now_in(self, membership: Membership) -> Agreed:
        """What its readers use. A membership without timers is from a leader that had the defaults, like all."""
        if membership.version == 0:
            return self._ours  # no client has read it
        return membership.timers or Agreed()


def _in_words(timers: Agreed) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in msgspec.structs.asdict(timers).items())
