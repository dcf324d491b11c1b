"""Leaving a cluster: where ours was is another one, because all of it was started anew.

What a client knows of placements means nothing there. Subscribers are told, and join as if their topics were new to
them; publishers keep what is not acknowledged, and send it again when they know where the topic is now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.core.membership import Membership
from nearcast.core.news import Kind, Note
from nearcast.errors import Unavailable

if TYPE_CHECKING:
    from nearcast.core.client import Client


def leave_cluster(client: Client, now_s: float) -> None:
    """Forget all brokers, and where topics are."""
    gone, client.membership = list(client.membership.brokers), Membership(version=-1, term=0, brokers={})
    client.tell(Note(Kind.LOST, f"the cluster was started anew: {len(gone)} brokers are forgotten"))
    for broker in gone:
        client.links.forget(broker, now_s)
        for pattern in client.patterns.values():
            pattern.forget(broker, now_s)
    for outflow in client.outflows.values():
        outflow.forget_place()
        client.attend(outflow)
    error = Unavailable("the cluster was started anew")
    for inflow in list(client.inflows.values()):
        inflow.refuse(error, now_s)
