"""The links of one client: opening, handshake, leases, reconnecting (PROTOCOL, publisher rule 9, agent rule 1).

A link is up when its server speaks RESP3, accepts our credentials and carries the ready key of its own run, which means
its agent has put all records there. At every heartbeat the client asks for the server's lease; `core/wire/lease.py`
explains what that proves, and for how long. On a new link it also asks the agent to hurry, and is notified when to
look.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.client.news import Kind, Note, State, StateChange
from nearcast.core.model.membership import Ready, decode_membership
from nearcast.core.model.names import GRANTS, MEMBERS, WANTED, inbox_channel
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire.backend import (
    CLIENT_NAMES,
    ClientLink,
    Credentials,
    Flow,
    LinkRefused,
    OnPassed,
    Standing,
    unanswered,
)
from nearcast.core.wire.effects import Connect, Disconnect, Rename
from nearcast.core.wire.lease import Lease
from nearcast.core.wire.valkey import ValkeyLink
from nearcast.errors import ClusterError, ConnectFailed, NearcastError, NotACluster, Unsupported

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client


# How many links a client may try to open at once, and how many more per second after that: clients must not all
# reconnect to a returning server at the same moment.
RECONNECT_BURST = 16
RECONNECTS_PER_S = 4.0


class _Peer:
    """The connection to one broker. A seed, known only by its address, is a peer too until it tells us its name."""

    __slots__ = ("attempts", "connecting", "link", "patience_s", "problem", "retry_at_s", "waiting")

    def __init__(self) -> None:
        self.link: ClientLink | None = None
        self.connecting = False
        self.attempts = 0
        self.problem = ""  # why the last attempt produced no link
        self.patience_s = 0.0
        self.retry_at_s: float | None = None
        self.waiting: OrderedDict[Flow, None] = OrderedDict()


class Links:
    """All links of one client."""

    def __init__(self, client: Client, credentials: Credentials) -> None:
        self._client = client
        self._credentials = credentials
        self._peers: dict[str, _Peer] = {}
        self._seeds: dict[str, str] = {}  # peer name -> url
        self._budget = float(RECONNECT_BURST)
        self._reseed_at_s = NEVER_S
        self._ticked_s = 0.0
        self._awake_s = NEVER_S
        self.last_error: NearcastError | None = None
        self._unread = ""  # why a membership could not be read
        self.opened = 0

    # --- asking for links

    def seed(self, url: str, now_s: float) -> None:
        """Open a link to a server whose broker is not known yet."""
        name = f"seed {url}"
        self._seeds[name] = url
        self._open(name, self._peer(name), now_s)

    @property
    def all_tried(self) -> bool:
        """Whether the first attempt has failed for every server we were given."""
        return all(peer.attempts for name, peer in self._peers.items() if name in self._seeds)

    def reach_out(self, now_s: float) -> None:
        """Try a broker; sometimes also an address from the program, because all brokers may have new addresses."""
        rng, brokers = self._client.rng, list(self._client.membership.brokers)
        if brokers:
            self.reach(rng.choice(brokers), now_s)
        if self._seeds and now_s >= self._reseed_at_s:
            self._reseed_at_s = now_s + self._client.timing.reconnect_max_s
            name = rng.choice(list(self._seeds))
            self._open(name, self._peer(name), now_s)

    def up(self, broker: str) -> ClientLink | None:
        peer = self._peers.get(broker)
        return peer.link if peer is not None and peer.link is not None and peer.link.up else None

    def all_up(self) -> list[ClientLink]:
        return [peer.link for peer in self._peers.values() if peer.link is not None and peer.link.up]

    def want(self, broker: str, flow: Flow, now_s: float) -> None:
        """Call `flow.linked` when the link to this broker is up and it is the flow's turn, which may be now."""
        peer, link = self._peer(broker), self.up(broker)
        if link is not None and not peer.waiting and self.has_room(link):
            flow.linked(link, now_s)
            return
        peer.waiting[flow] = None
        self._open(broker, peer, now_s)

    def unwant(self, flow: Flow) -> None:
        """The flow has ended."""
        for peer in self._peers.values():
            peer.waiting.pop(flow, None)

    def has_room(self, link: ClientLink) -> bool:
        """Whether more may be asked. The proof of the lease and all other answers queue behind open questions."""
        return link.unanswered < self._client.limits.attaching

    def _admit(self, peer: _Peer, now_s: float) -> None:
        """Let flows onto the link as long as there is room."""
        link = peer.link
        while peer.waiting and link is not None and link is peer.link and self.has_room(link):
            flow, _ = peer.waiting.popitem(last=False)
            flow.linked(link, now_s)

    def reach(self, broker: str, now_s: float) -> ClientLink | None:
        """The link if it is up. Otherwise it is being opened, and the caller asks again later."""
        link = self.up(broker)
        if link is None:
            self._open(broker, self._peer(broker), now_s)
        return link

    def serves(self, broker: str, now_s: float) -> bool:
        """Whether the link is up and its lease proven, so that anything waiting for an answer there will get it."""
        link = self.up(broker)
        return link is not None and now_s <= link.lease_until_s

    # --- state

    def trouble(self, broker: str, now_s: float) -> str | None:
        """Why a broker is unavailable at the moment; None if no problem is known."""
        if broker not in self._client.membership.brokers:
            return f"{broker} is not a member of the cluster"
        link, peer = self.up(broker), self._peers.get(broker)
        if link is None:
            return f"{broker} is not connected" + (f" ({peer.problem})" if peer is not None and peer.problem else "")
        first_proof_s = link.sound_s + 2 * self._client.timing.heartbeat_s  # a new link needs a moment to prove it
        if now_s > max(link.lease_until_s, first_proof_s):
            return f"{broker} has no lease: check its agent and the controllers"
        return None

    def nobody(self) -> str:
        """Why no broker can be asked for any topic."""
        if self.all_up():
            return "no broker of the cluster carries topics yet"
        return "no server of the cluster is connected" + (f" ({self.last_error})" if self.last_error else "")

    def state(self, now_s: float) -> StateChange:
        """The state of the brokers in use."""
        up = self.all_up()
        if not up:
            return StateChange(State.DISCONNECTED, str(self.last_error or ""))
        used = [link.broker for link in up if link.users]
        used += [name for name, peer in self._peers.items() if peer.waiting and name not in used]
        troubles = [trouble for name in used if (trouble := self.trouble(name, now_s))]
        if not troubles:
            return StateChange(State.CONNECTED)
        more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
        return StateChange(State.DEGRADED, troubles[0] + more)

    def _peer(self, name: str) -> _Peer:
        return self._peers.setdefault(name, _Peer())

    def _url(self, name: str) -> str | None:
        info = self._client.membership.brokers.get(name)
        return info.url if info is not None else self._seeds.get(name)

    def _open(self, name: str, peer: _Peer, now_s: float) -> None:
        if peer.link is not None or peer.connecting or self._client.closed:
            return
        url = self._url(name)
        if url is None or (peer.retry_at_s is not None and now_s < peer.retry_at_s):
            return
        if peer.attempts and self._budget < 1:
            peer.retry_at_s = now_s + self._client.timing.reconnect_max_s * self._client.rng.random()
            return
        if peer.attempts:
            self._budget -= 1
        peer.connecting = True
        self._client.effects.append(Connect(name, url))

    # --- what the driver reports

    def connected(self, name: str, now_s: float) -> None:
        peer = self._peers.get(name)
        if peer is None or not peer.connecting:
            self._client.effects.append(Disconnect(name))
            return
        peer.connecting = False
        peer.link = link = ValkeyLink(name)
        peer.patience_s = self._patience_s()
        link.heard_s = link.sound_s = now_s
        self._greet(name, link, now_s)

    def received(self, name: str, data: bytes, now_s: float) -> None:
        peer = self._peers.get(name)
        if peer is None or peer.link is None:
            return
        try:
            peer.link.feed(data, now_s)
        except LinkRefused as error:
            self.drop(name, ConnectFailed(f"{name}: {error}"), now_s)
        if peer.link is not None and peer.link.up:
            self._admit(peer, now_s)
            self._client.finder.go_on(peer.link, now_s)

    def lost(self, name: str, reason: str, now_s: float) -> None:
        peer = self._peers.get(name)
        if peer is not None:
            problem = unanswered(reason) if peer.link is not None and not peer.link.up else reason
            self._fail(name, peer, ConnectFailed(f"{self._url(name) or name}: {problem}"), now_s)

    def drop(self, name: str, error: NearcastError, now_s: float) -> None:
        """Close a link from our side and reopen it later."""
        peer = self._peers.get(name)
        if peer is not None and (peer.link is not None or peer.connecting):
            self._client.effects.append(Disconnect(name))
            self._fail(name, peer, error, now_s)

    def forget(self, broker: str, now_s: float) -> None:
        """The broker is no longer a member."""
        peer = self._peers.get(broker)
        if peer is not None:
            self.drop(broker, ConnectFailed(f"{broker} left the cluster"), now_s)
            del self._peers[broker]

    def outgoing(self) -> list[tuple[str, bytes]]:
        """Everything to be written now, by link name."""
        return [
            (name, peer.link.take())
            for name, peer in self._peers.items()
            if peer.link is not None and peer.link.waiting
        ]

    def _fail(self, name: str, peer: _Peer, error: NearcastError, now_s: float) -> None:
        link, peer.link = peer.link, None
        peer.connecting = False
        peer.attempts += 1
        timing = self._client.timing
        delay_s = min(timing.reconnect_max_s, timing.reconnect_min_s * 2 ** min(peer.attempts, 16))
        delay_s *= 0.5 + self._client.rng.random() / 2
        peer.retry_at_s = now_s + delay_s
        self.last_error = error
        peer.problem = str(error)
        self._note_failure(name, peer, link, delay_s)
        if link is not None:
            for flow in list(link.users):
                flow.unlinked(link, now_s)
            self._client.link_lost(link, now_s)

    def _note_failure(self, name: str, peer: _Peer, link: ClientLink | None, delay_s: float) -> None:
        again = f"retrying in {delay_s:.2f} s if needed"
        if link is not None and link.up:
            text = f"connection to {name} lost (topics on it: {len(link.users)}): {peer.problem}; {again}"
            self._client.tell(Note(Kind.LOST, text))
        else:
            text = f"no connection to {name}, attempt {peer.attempts}: {peer.problem}; {again}"
            self._client.tell(Note(Kind.RETRIED, text))

    # --- handshake

    def _greet(self, name: str, link: ClientLink, now_s: float) -> None:
        client_id = self._client.client_id
        url, client_name = self._url(name) or name, f"{CLIENT_NAMES}{client_id:016x}"
        link.greet(url, self._credentials, client_name, partial(self._greeting_answered, name))
        link.subscribe(MEMBERS, inbox_channel(client_id), GRANTS)
        link.on_watched = partial(self._client.heard, link)
        link.control[MEMBERS] = partial(self._members_changed, link)
        link.control[GRANTS] = partial(self._granted, link)
        link.control[inbox_channel(client_id)] = partial(self._client.inbox, link)
        link.proof.ask(now_s)
        link.look(partial(self._greeted, name, link))
        link.tell(WANTED, b"")  # sent after the question, so that the next beat proves the lease

    def _greeting_answered(self, name: str, problem: ClusterError | None, now_s: float) -> None:
        if problem is not None:
            self.drop(name, problem, now_s)

    def _greeted(self, name: str, link: ClientLink, standing: Standing, now_s: float) -> None:
        self._lease(link, standing.lease, now_s)
        ready = _parse_ready(standing)
        if ready is None or standing.membership is None:
            problem = "no nearcast agent has marked this server ready: start `nearcast agent` for it, or wait"
            self.drop(name, NotACluster(f"{self._url(name)}: {problem}"), now_s)
            return
        if name in self._seeds:
            if not self._name_seed(name, ready.broker):
                return
        elif ready.broker != name:
            self.drop(name, ConnectFailed(f"the server of {name} now belongs to {ready.broker}"), now_s)
            return
        link.broker, link.run_id = ready.broker, standing.run_id
        link.up = True
        self.opened += 1
        peer = self._peers[ready.broker]
        peer.attempts, peer.retry_at_s, peer.problem = 0, None, ""
        self._client.tell(Note(Kind.OPENED, f"connected to {ready.broker} ({self._url(name)})"))
        self._members(link, standing.membership, now_s)
        if self._client.membership.version < 0 and self._client.leaving is None:
            self.drop(ready.broker, Unsupported(f"{self._url(name)}: {self._unread}"), now_s)
            return
        if self._peers.get(ready.broker) is not peer:
            return  # this is not the broker we knew under this name; a new link is being opened
        self._admit(peer, now_s)
        self._client.link_up(link, now_s)

    def _name_seed(self, name: str, broker: str) -> bool:
        """The seed has told us which broker it is. A second link to the same broker is closed."""
        peer = self._peers[name]
        known = self._peers.get(broker)
        if known is not None and known.link is not None:
            self._client.effects.append(Disconnect(name))
            del self._peers[name]
            return False
        if known is not None:
            peer.waiting |= known.waiting
        del self._peers[name]
        self._peers[broker] = peer
        self._client.effects.append(Rename(name, broker))
        return True

    def look_at_members(self, link: ClientLink, then: OnPassed) -> None:
        """Read the membership there again, and call `then` once we know it: a barrier that also brings the news."""

        def read(document: bytes | None, now_s: float) -> None:
            if document is not None:
                self._members(link, document, now_s)
            then(now_s)

        link.read_members(read)

    def _members_changed(self, link: ClientLink, _: bytes, now_s: float) -> None:
        """Any client may publish this, so it only prompts us to read the membership where no client may write.

        One question at a time: news that arrives before the answer was published before the server answered, so the
        answer includes it.
        """
        if not link.asking_members:
            link.asking_members = True
            link.read_members(partial(self._members_read, link))

    def _members_read(self, link: ClientLink, document: bytes | None, now_s: float) -> None:
        link.asking_members = False
        if document is not None:
            self._members(link, document, now_s)
        if now_s <= link.lease_until_s:  # replies behind the news waited for it: they may be of topics now kept
            self._client.leased(link, now_s)

    def _members(self, link: ClientLink, document: bytes, now_s: float) -> None:
        """A membership that cannot be read, or whose timers break their rules, changes nothing."""
        try:
            membership = decode_membership(document)
        except (msgspec.DecodeError, UnicodeError) as error:
            self._unread = f"the membership cannot be read ({error}): upgrade nearcast here, or check what wrote it"
            self._client.tell(Note(Kind.REFUSED, f"{link.broker}: {self._unread}"))
            return
        link.logs_version = membership.logs_version
        self._client.update_membership(membership, now_s)

    # --- leases

    def _ask_for_lease(self, link: ClientLink, now_s: float) -> None:
        if link.proof.may_ask:
            link.proof.ask(now_s)
            link.read_lease(partial(self._lease, link))

    def _granted(self, link: ClientLink, _: bytes, now_s: float) -> None:
        """Anyone may send this, so it only prompts us to look."""
        self._ask_for_lease(link, now_s)

    def _lease(self, link: ClientLink, lease: Lease, now_s: float) -> None:
        """A lease that arrives while membership news is being read may belong to a new broker under this name."""
        link.proof.found(lease.beat)
        sent_s = link.proof.proven(lease.granted) if not link.asking_members else None
        if sent_s is None:
            return
        link.lease_until_s = sent_s + self._client.timing.lease_s
        link.sound_s = sent_s
        if link.control.pop(GRANTS, None) is not None:
            link.unsubscribe(GRANTS)  # from here on an occasional look is enough
        if now_s <= link.lease_until_s:  # otherwise those waiting for it wait for the next one
            self._client.leased(link, now_s)

    def tick(self, now_s: float) -> None:
        timing = self._client.timing
        self._budget = min(RECONNECT_BURST, self._budget + RECONNECTS_PER_S * (now_s - self._ticked_s))
        if now_s - self._ticked_s > timing.heartbeat_s:
            self._awake_s = now_s  # we were not running: what arrived in that time has not been read yet
        self._ticked_s = now_s
        for name, peer in list(self._peers.items()):
            link = peer.link
            if link is None:
                if peer.waiting or (name in self._seeds and not self.opened):
                    self._open(name, peer, now_s)
            elif self._silent_s(link, now_s) > peer.patience_s:
                self.drop(name, ConnectFailed(f"{name} has not answered for {now_s - link.heard_s:.1f} s"), now_s)
            elif now_s - link.proof.asked_s >= self._lease_pause_s(link, now_s):
                self._ask_for_lease(link, now_s)

    def _lease_pause_s(self, link: ClientLink, now_s: float) -> float:
        """How long to wait between lease questions: shorter after a lease has expired, since it may be renewed soon."""
        heartbeat_s = self._client.timing.heartbeat_s
        return heartbeat_s if now_s <= link.lease_until_s else heartbeat_s / 2

    def _silent_s(self, link: ClientLink, now_s: float) -> float:
        """How long nothing has arrived although a question is open. A link is alive while bytes arrive."""
        open_since_s = link.proof.open_since_s
        return 0.0 if open_since_s is None else now_s - max(open_since_s, link.heard_s, self._awake_s)

    def _patience_s(self) -> float:
        """How long a link may be silent.

        Drawn at random for each link: when a server stalls, its clients must not all reconnect at once.
        """
        return self._client.timing.lease_s * (1 + self._client.rng.random())


def _parse_ready(standing: Standing) -> Ready | None:
    """The ready key, if it belongs to the server's current run."""
    if standing.ready is None:
        return None
    try:
        ready = msgspec.json.decode(standing.ready, type=Ready)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return ready if ready.run_id == standing.run_id else None
