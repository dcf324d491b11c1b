"""Lives: which runs of brokers' servers have ended, as readers of logs must know (PROTOCOL "Logs")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.logs import FormerLife, PartState, quorum_of
from nearcast.core.model.membership import Membership, parted

if TYPE_CHECKING:
    from nearcast.core.controller.ledger import Ledger
    from nearcast.core.controller.office import Roster


class Lives:
    """Notes the lives that end with a membership, and forgets them when nothing would be left of what they kept."""

    def __init__(self, ledger: Ledger, roster: Roster) -> None:
        self._ledger = ledger
        self._roster = roster
        self._since_s: dict[str, float] = {}  # lives that have ended, and since when we know
        self._expired: set[str] = set()

    def after(self, now: Membership, after: Membership) -> Membership:
        """The next membership, with the lives that end with it. Brokers that never carried topics have kept nothing."""
        ended = [
            life_ended(now, name, after.version)
            for name in now.brokers
            if now.life(name) != after.life(name) and self._roster.carries(name)
        ]
        known = tuple(former for former in now.former if former.life not in self._expired)
        return parted(msgspec.structs.replace(now, former=known), after, ended)

    def tick(self, now_s: float) -> None:
        membership = self._ledger.journal.membership
        longest_s = max((log.retain_s for log in membership.logs), default=0.0)
        self._since_s = {former.life: self._since_s.get(former.life, now_s) for former in membership.former}
        self._expired = {life for life, since_s in self._since_s.items() if now_s - since_s > longest_s}


def life_ended(now: Membership, broker: str, version: int) -> FormerLife:
    """A life that ends with a version. What its replicas may have is not lost yet: `replicas.py` finds out."""
    replicas = now.brokers[broker].replicas if quorum_of(now.logs) > 1 else {}
    return FormerLife(now.life(broker), version, PartState.SEALING if replicas else PartState.LOST, replicas=replicas)
