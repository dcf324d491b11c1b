"""Side links: connections of a client beside its first ones to the brokers (`links.py`).

Two kinds are needed for logs with a quorum: a second connection to a broker on which replicas are waited for
(`quorum.py`), and one to the replica that has the parts of a life that has ended (`holders.py`). They have no lease
and no topics. What they have in common is here: they are opened when they are needed, greeted, and opened again when
they are lost.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nearcast.core.client.holders import HolderLink, holder_name
from nearcast.core.client.quorum import NO_REPLICAS, QuorumLink, QuorumUser, quorum_name
from nearcast.core.model.logs import PartState, broker_of
from nearcast.core.wire.backend import CLIENT_NAMES, Credentials, LinkRefused
from nearcast.core.wire.effects import Connect, Disconnect
from nearcast.core.wire.replication import admission_text
from nearcast.core.wire.valkey import ValkeyLink
from nearcast.errors import ClusterError

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client
    from nearcast.core.wire.backend import ClientLink


class SideLinks:
    """All side links of one client, by name."""

    def __init__(self, client: Client, credentials: Credentials) -> None:
        self._client = client
        self._credentials = credentials
        self._links: dict[str, QuorumLink | HolderLink] = {}
        self._now_s = 0.0

    def __contains__(self, name: str) -> bool:
        return name in self._links

    def quorum(self, first: ClientLink) -> QuorumLink:
        """The quorum link beside a link that is up."""
        side = self._links.get(quorum_name(first.broker))
        if isinstance(side, QuorumLink):
            return side
        membership = self._client.membership
        info = membership.brokers.get(first.broker)  # None: the first link will end in a moment
        admission = admission_text(first.run_id, membership.life(first.broker))
        quorum_link = QuorumLink(first, info.url if info is not None else "", admission)
        self._links[quorum_link.name] = quorum_link
        self._open(quorum_link)
        return quorum_link

    def leave(self, first: ClientLink, user: QuorumUser) -> None:
        """The user no longer needs to hear what becomes of the quorum link."""
        side = self._links.get(quorum_name(first.broker))
        if isinstance(side, QuorumLink):
            side.users.pop(user, None)

    def holder(self, life: str) -> HolderLink | None:
        """The link to the replica that has the parts of a life; None if there is none."""
        side, url = self._links.get(holder_name(life)), self._client.membership.holder(life)
        if isinstance(side, HolderLink) or not url:
            return side if isinstance(side, HolderLink) else None
        holder = self._links[holder_name(life)] = HolderLink(self._client, life, url)
        self._open(holder)
        return holder

    def trouble(self, broker: str) -> str | None:
        """What acknowledgements of a broker's replicas wait for; None if no problem is known."""
        side = self._links.get(quorum_name(broker))
        if side is None or not side.problem:
            return None
        before = [
            former.life
            for former in self._client.membership.former
            if broker_of(former.life) == broker and former.state is not PartState.LOST
        ]
        if side.problem == NO_REPLICAS and before:
            held = f"its replicas hold what it kept before ({', '.join(before)})"
            return f"{broker}: {held}: give its agent another one, or use `nearcast log abandon {before[0]}`"
        return f"{broker}: {side.problem}"

    def trouble_with(self, life: str) -> str:
        """What readers and publishers wait for at a life that has ended."""
        side = self._links.get(holder_name(life))
        state = "its replicas are being sealed"
        if self._client.membership.holder(life):
            state = side.problem if side is not None and side.problem else "its holder has not answered"
        return f"{life} has ended, and {state}; if they do not come back, give it up with `nearcast log abandon {life}`"

    def _open(self, side: QuorumLink | HolderLink) -> None:
        side.connecting = True
        self._client.effects.append(Connect(side.name, side.url))

    # --- what the driver reports

    def connected(self, name: str, now_s: float) -> None:
        side = self._links[name]
        side.connecting, side.asked_s = False, now_s
        side.link = link = ValkeyLink(name)
        client_name = f"{CLIENT_NAMES}{self._client.client_id:016x}"
        link.greet(side.url, self._credentials, client_name, partial(self._greeted, side))

    def _greeted(self, side: QuorumLink | HolderLink, problem: ClusterError | None, now_s: float) -> None:
        if problem is not None:
            raise LinkRefused(str(problem))
        side.greeted(now_s)

    def received(self, name: str, data: bytes, now_s: float) -> None:
        self._now_s = now_s
        side = self._links[name]
        try:
            if side.link is not None:
                side.link.feed(data, now_s)
        except LinkRefused as error:
            self._drop(side, str(error), now_s)

    def lost(self, name: str, reason: str, now_s: float) -> None:
        side = self._links[name]
        side.problem = f"the connection {name} was lost ({reason})"
        side.retry_at_s = now_s + self._client.timing.reconnect_min_s * (1 + self._client.rng.random())
        side.connecting, side.asked_s = False, None
        side.lost(now_s)

    def _drop(self, side: QuorumLink | HolderLink, reason: str, now_s: float) -> None:
        self._client.effects.append(Disconnect(side.name))
        if side.name in self._links:
            self.lost(side.name, reason, now_s)

    def first_lost(self, first: ClientLink) -> None:
        """The quorum link ends too. Its users know: they have lost the first link."""
        side = self._links.get(quorum_name(first.broker))
        if isinstance(side, QuorumLink) and side.first is first:
            self._end(side)

    def _end(self, side: QuorumLink | HolderLink) -> None:
        del self._links[side.name]
        self._client.effects.append(Disconnect(side.name))

    def outgoing(self) -> list[tuple[str, bytes]]:
        written = [(name, side.take(self._now_s)) for name, side in self._links.items()]
        return [(name, data) for name, data in written if data]

    def tick(self, now_s: float) -> None:
        self._now_s = now_s
        for side in list(self._links.values()):
            if isinstance(side, HolderLink) and self._client.membership.holder(side.life) != side.url:
                self._end(side)
                side.lost(now_s)
            elif isinstance(side, QuorumLink) and side.is_full:
                self._drop(side, "too much waits for replicas there", now_s)
            elif side.link is None:
                if not side.connecting and now_s >= side.retry_at_s:
                    self._open(side)
            elif side.asked_s is None:
                side.probe(now_s)
            elif now_s - side.asked_s > self._client.timing.lease_s:
                self._drop(side, "no answer", now_s)
