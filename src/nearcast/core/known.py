"""What agents and controllers know of the journal, so that a store which has lost some of it is found out.

Whatever a leader has done anywhere follows from a commit, and every word to an agent says how far the journal was then.
So if the store has gone back behind what any agent knows, something has followed from what it lost; from what no agent
knows of nothing has followed, and it is not missed. A controller hears all agents, also while it does not lead, and so
finds out at once when it reads the journal.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from nearcast.core.journal import BEGINNING, Journal, Position

# Numbers of orders are 64 bits long and begin with the term: a word of more is nonsense, and is not heard.
Term: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class Known(msgspec.Struct, frozen=True):
    """How far somebody has seen a cluster come."""

    cluster: str = ""  # empty: it knows of none
    members: int = -1  # the version of the membership
    term: Term = 0  # of the newest leader heard
    journal: Position = BEGINNING
    store: str = ""  # the URL of its store, as the leader calls it

    def merged(self, other: Known) -> Known:
        """What two know who mean the same cluster."""
        return Known(
            self.cluster,
            max(self.members, other.members),
            max(self.term, other.term),
            max(self.journal, other.journal),
            self.store or other.store,
        )


def lost(known: Known, journal: Journal, version: int) -> bool:
    """Whether the journal, at this version, has lost something of what is known of its cluster.

    A blank journal has lost any cluster that somebody knows. So has a young one of another cluster in the same store: a
    broker that knew nothing was heard before those that do.
    """
    membership = journal.membership
    if not known.cluster or not membership.cluster:
        return bool(known.cluster)
    if known.cluster != membership.cluster:
        return known.store == membership.store_url != "" and known.members > membership.version
    return known.members > membership.version or known.journal > journal.position(version)
