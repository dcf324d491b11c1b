"""The agent machine: next to one server, it carries out the controller's orders (PROTOCOL "Agent").

It holds no data subscription and decides nothing itself: every order is one command or script on the server, and is
answered when the server has answered. Each of its beats on the server is reported to the leader, and noted on the
server once the leader has granted it. What that proves is for clients to work out (`core/wire/lease.py`), so noting
it late does no harm. Before it has the claim on a server (`claim.py`), it does nothing there and says nothing about it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from nearcast.core.agent.claim import Claim
from nearcast.core.agent.marks import Marking
from nearcast.core.agent.records import Collection, Ending, Recollection, look_up
from nearcast.core.agent.replicas import Replicas
from nearcast.core.agent.reporting import Reporting
from nearcast.core.agent.retention import Retention, count_unread
from nearcast.core.model.distances import BrokerDistances
from nearcast.core.model.journal import BEGINNING, Known, Position
from nearcast.core.model.logs import PartLoad
from nearcast.core.model.membership import Membership, Ready, read_membership
from nearcast.core.model.names import (
    CONTROLLER_CHANNEL,
    COUNTERS,
    PATTERNS,
    WANTED,
    agent_channel,
    pattern_readiness,
    readiness_channel,
)
from nearcast.core.model.settings import DEFAULT_TIMING, NEVER_S, RateLimit, Timing
from nearcast.core.wire import bus
from nearcast.core.wire.backend import AgentLink, Credentials, ServerLink, Standing
from nearcast.core.wire.effects import Disconnect, Effect
from nearcast.core.wire.uplink import Uplink

# Beats for clients that wait for a grant: how many at once, and how many per second after that, however many clients
# there are.
HURRY_BURST = 20
HURRIES_PER_S = 20.0


class Identity(msgspec.Struct, frozen=True):
    """The broker and server this agent speaks for."""

    broker: str
    url: str  # where clients reach the server
    site: str = "local"
    capacity_bytes_per_s: float = 0.0  # outgoing bandwidth of the server, if known
    replicas: tuple[str, ...] = ()  # URLs of the server's replicas


class Agent:
    """Inputs: connected, received, lost, server_ended, tick. Outputs: outgoing(), effects."""

    def __init__(
        self,
        identity: Identity,
        store_url: str,
        rng: Random,
        *,
        server_url: str = "",  # where the agent reaches the server, if not at the clients' address
        credentials: Credentials | None = None,
        store_credentials: Credentials | None = None,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        self.identity = identity
        self._own_timing = timing
        self.timing = timing  # our own until the membership says what everyone uses
        self._membership = Membership(version=-1, term=0, brokers={})  # the one we use
        self.effects: list[Effect] = []
        self.wall_offset_s = 0.0
        self.agent_id = rng.getrandbits(63)
        self.server = Uplink(
            "server",
            server_url or identity.url,
            credentials or Credentials(),
            self._server_open,
            timing=timing,
            rng=rng,
        )
        self.bus = Uplink("bus", store_url, store_credentials or Credentials(), self._bus_open, timing=timing, rng=rng)
        self.replicas = Replicas(identity, credentials or Credentials(), timing, rng)
        self.reporting = Reporting(identity.broker, self.agent_id, self.bus)
        self.probes = ""  # where this agent answers probes, if it does
        self.broker_distances = BrokerDistances(0, {})  # between all brokers, as the leader says
        self.refused = ""  # why this agent must not work, in words; if set, it has stopped
        self._claim = Claim(identity.broker, self.agent_id, server_url or identity.url, timing)
        self._inside = False  # the claim was confirmed on this connection
        self._refusal = ""  # the controller's, since the last grant
        self._refused_since_s = 0.0  # since when refused without a break, while the other agent was heard
        self._refused_s = NEVER_S
        self._run_id = ""
        self._ready = False
        self._ended = False  # the server's process was seen to end
        self._term = 0
        self._known = Known()  # about the cluster; kept when the server loses its memory
        self._noted = BEGINNING  # position of the journal noted on the server
        self._began_with = 0  # the number of the order that reset this broker
        self._resetting = False  # it takes two steps on the server, and would wipe what is done in between
        self._beat = 0  # the newest on this connection to the server
        self._granted_beat = 0
        self._beating = False  # the server has not answered the last one yet
        self._hurry = False  # a client is waiting for a grant
        self._hurries = RateLimit(HURRIES_PER_S, HURRY_BURST)
        self._collection = Collection(identity.broker, self._answer)
        self._recollection = Recollection(identity.broker, self._answer)
        self._ending = Ending(timing)
        self._retention = Retention(identity.broker, timing)
        self._beat_at_s = NEVER_S
        self._hello_at_s = NEVER_S
        self._unanswered_s: float | None = None  # since when our hellos have not been answered
        self._orders: dict[type, Callable[[bus.Order, AgentLink], None]] = {
            bus.Install: self._install,
            bus.InstallMembers: self._install_members,
            bus.Count: self._count,
            bus.Collect: self._collect,
            bus.Lookup: self._lookup,
            bus.Recall: self._recall,
            bus.CountParts: self._count_parts,
            bus.Reset: self._reset,
            bus.MarkReady: self._mark_ready,
        }

    # --- inputs

    def connected(self, name: str, now_s: float) -> None:
        self._uplink(name).connected(now_s)

    def received(self, name: str, data: bytes, now_s: float) -> None:
        self._uplink(name).received(data, now_s, self.effects)

    def lost(self, name: str, reason: str, now_s: float) -> None:
        self._uplink(name).lost(reason, now_s)

    def server_ended(self) -> None:
        """The server's process is gone for certain, according to whatever watches it."""
        self._ended = True
        self._hello_at_s = NEVER_S

    def tick(self, now_s: float) -> None:
        if self.refused:
            return
        self.server.tick(now_s, self.effects)
        self.bus.tick(now_s, self.effects)
        if now_s - self._beat_at_s >= self.timing.heartbeat_s / 2 and self.server.link is not None:
            self._ask_for_claim(self.server.link, now_s)
        if now_s - self._hello_at_s >= self.timing.heartbeat_s and self._claim.held:
            self._say_hello(now_s)  # the server does not answer
        self._hurry_up(now_s)
        self.reporting.tick(self._workplace, now_s, self.wall_offset_s)
        if self._workplace is not None:
            self._ending.tick(self._workplace, now_s)
            self._retention.tick(self._workplace, now_s)
        self.replicas.tick(self._workplace, self._run_id, self._membership, now_s, self.effects)

    def outgoing(self) -> list[tuple[str, bytes]]:
        uplinks = (self.server, self.bus, *self.replicas.uplinks.values())
        return [(uplink.name, data) for uplink in uplinks if (data := uplink.take())]

    def _uplink(self, name: str) -> Uplink:
        return self.server if name == "server" else self.replicas.uplinks.get(name, self.bus)

    @property
    def _workplace(self) -> AgentLink | None:
        """The link to the server, while we have the claim on it."""
        return self.server.link if self._inside else None

    @property
    def membership(self) -> Membership:
        return self._membership

    @property
    def problem(self) -> str:
        """What keeps the agent from working, in words; empty if nothing does."""
        for uplink in (self.server, self.bus):
            if uplink.link is None and uplink.problem:
                return f"{uplink.name} {uplink.url}: {uplink.problem}"
        return self.refused or self._claim.problem or self._refusal or self._no_leader or self.replicas.problem

    @property
    def _no_leader(self) -> str:
        """Says that no controller leads where we say hello; empty if one does, or may take over at any moment."""
        since_s = self._unanswered_s
        if since_s is None or self._hello_at_s - since_s < 2 * self.timing.dead_s:
            return ""
        return f"no controller answers at {self.bus.url}: is one running with this store?"

    # --- presence

    def _ask_for_claim(self, link: AgentLink, now_s: float) -> None:
        def answered(holder: str, beat: int, at_s: float) -> None:
            if link is not self.server.link:
                return
            self._beating = False
            self._claim.answered(holder, beat, at_s)
            if self._claim.wrong:
                self._stop(self._claim.problem)
            elif not self._claim.held:
                self._leave()
            else:
                self._beat = beat
                if not self._inside:
                    self._enter(link)
                self._say_hello(at_s)

        self._beat_at_s, self._beating = now_s, True
        self._claim.ask(link, now_s, answered)

    def _server_open(self, link: AgentLink, now_s: float) -> None:
        self._ended = False
        self._leave()
        link.broker = self.identity.broker  # whose first uses are on it
        self._claim.attend(link)
        self.reporting.reopened(link)
        self._ask_for_claim(link, now_s)

    def _leave(self) -> None:
        """From here on, we no longer speak for what is on the server, or for its lease."""
        self._inside = self._resetting = False
        self._run_id, self._ready, self._noted = "", False, BEGINNING
        self._beat = self._granted_beat = 0

    def _stop(self, why: str) -> None:
        """Release everything for good, including the claim."""
        self.refused = why
        self._inside = False
        for uplink in (self.server, self.bus):
            self.effects.append(Disconnect(uplink.name))

    def _enter(self, link: AgentLink) -> None:
        self._inside = True
        self._collection.clear()
        self._recollection.clear()
        self._ending.clear()
        self._retention.clear()
        self.reporting.entered(link)
        link.control[WANTED] = self._wanted
        link.subscribe(COUNTERS, WANTED)
        link.read_heard(self._heard_before)
        link.look(self._looked)

    def _heard_before(self, journal: Position) -> None:
        """What the previous agent, or this one on another connection, had heard from the leader."""
        self._noted = journal

    def _looked(self, standing: Standing, now_s: float) -> None:
        self._run_id = standing.run_id
        self._ready = standing.ready == msgspec.json.encode(Ready(self.identity.broker, standing.run_id))
        membership = read_membership(standing.membership)
        if membership is not None:
            self._go_by(membership)
            self._learn(
                Known(membership.cluster, membership.version, membership.term, self._noted, membership.store_url)
            )

    def _learn(self, known: Known) -> None:
        self._known = known.merged(self._known) if known.cluster == self._known.cluster else known

    def _go_by(self, membership: Membership) -> None:
        """Adopt the timers of the cluster."""
        if membership.version < self._membership.version:
            return
        self._membership = self._retention.membership = membership
        self.timing = self._own_timing.within(membership.timers) if membership.timers else self._own_timing
        for part in (self.server, self.bus, self._claim, self._ending, self._retention, self.replicas):
            part.timing = self.timing

    def _bus_open(self, link: ServerLink, now_s: float) -> None:
        channel = agent_channel(self.identity.broker, self.agent_id)
        link.control[channel] = self._heard
        link.subscribe(channel)

    def _say_hello(self, now_s: float) -> None:
        if self.bus.link is None:
            return
        self._hello_at_s = now_s
        if self._unanswered_s is None:
            self._unanswered_s = now_s
        answering = self.server.link is not None and now_s - self.server.answered_s < 2 * self.timing.heartbeat_s
        identity = self.identity
        hello = bus.Hello(
            broker=identity.broker,
            agent=self.agent_id,
            beat=self._beat,
            url=identity.url,
            site=identity.site,
            run_id=self._run_id,
            answering=answering and bool(self._run_id),
            dead=self._ended,
            ready=self._ready,
            capacity_bytes_per_s=identity.capacity_bytes_per_s,
            known=msgspec.structs.replace(self._known, term=max(self._term, self._known.term)),
            replicas=self.replicas.runs,
            probes=self.probes,
        )
        self.bus.link.tell(CONTROLLER_CHANNEL, bus.encode(hello))

    # --- orders

    def _heard(self, payload: bytes, now_s: float) -> None:
        message = bus.decode_for_agent(payload)
        if message is None or message.term < self._term:
            return  # a deposed leader
        self._term, self._unanswered_s = message.term, None
        if isinstance(message, bus.Refusal):
            self._turned_away(message, now_s)
            return
        self._rest_on(message)
        if isinstance(message, bus.Grant):
            self._granted(message, now_s)
        elif isinstance(message, BrokerDistances):
            self.broker_distances = message
        elif isinstance(message, bus.Seal):  # it is not about our server
            self.replicas.seal(message, self._answer, now_s)
        elif message.order < self._began_with or self._workplace is None or self._resetting:
            return  # it is older than the reset, or will be repeated
        elif self._run_id:  # otherwise we do not know the membership yet, and records would be installed unmarked
            self._orders[type(message)](message, self._workplace)

    def _rest_on(self, message: bus.Grant | BrokerDistances | bus.Order) -> None:
        """What follows depends on this journal position: remember it, so that a journal with less counts as a loss."""
        self._learn(Known(self._known.cluster, term=message.term, journal=message.journal))
        if self._workplace is not None and message.journal > self._noted:
            self._noted = message.journal
            self._workplace.note_heard(message.journal)

    def _granted(self, grant: bus.Grant, now_s: float) -> None:
        """Note a grant, if it is for this run of the server: beats start over with each run."""
        self._refusal = ""
        if self._workplace is not None and grant.run_id == self._run_id and grant.beat > self._granted_beat:
            self._granted_beat = grant.beat
            self._workplace.note_grant(grant.beat)

    def _wanted(self, payload: bytes, now_s: float) -> None:
        """A client needs a grant of a later beat than now; a beat that is not answered yet qualifies."""
        self._hurry = self._hurry or not self._beating
        self._hurry_up(now_s)

    def _hurry_up(self, now_s: float) -> None:
        if self._hurry and self._workplace is not None and self._hurries.room(now_s) >= 1:
            self._hurry = False
            self._hurries.spend(1)
            self._ask_for_claim(self._workplace, now_s)

    def _turned_away(self, refusal: bus.Refusal, now_s: float) -> None:
        """Stop if the refusal is final, or the other agent was heard throughout T_dead; else wait: it may be gone."""
        if not refusal.other_heard or now_s - self._refused_s > 2 * self.timing.heartbeat_s:
            self._refused_since_s = now_s
        self._refusal, self._refused_s = refusal.reason, now_s
        if refusal.final or now_s - self._refused_since_s > self.timing.dead_s:
            self._stop(refusal.reason)

    def _answer(self, answer: bus.Answer) -> None:
        if self.bus.link is not None:
            self.bus.link.tell(CONTROLLER_CHANNEL, bus.encode(answer))

    def _done(self, order: int, now_s: float) -> None:
        self._answer(bus.Answer(self.identity.broker, order))

    def _install(self, order: bus.Order, link: AgentLink) -> None:
        assert isinstance(order, bus.Install)

        marking = Marking(self._membership, self.identity.broker, order)

        def installed(versions: Sequence[int], ends: Sequence[str], now_s: float) -> None:
            self._answer(marking.answer(versions, ends))

        link.install(order.term, order.records, marking.parts, installed)

    def _install_members(self, order: bus.Order, link: AgentLink) -> None:
        assert isinstance(order, bus.InstallMembers)
        self._go_by(order.membership)

        def installed(versions: Sequence[int], now_s: float) -> None:
            self._answer(bus.Answer(self.identity.broker, order.order, versions={"": versions[0]}))

        membership = order.membership
        self._learn(Known(membership.cluster, membership.version, order.term, order.journal, membership.store_url))
        link.install_members(order.membership, installed)

    def _count(self, order: bus.Order, link: AgentLink) -> None:
        assert isinstance(order, bus.Count)
        channels: list[bytes] = []
        for topic, epoch in order.epochs.items():
            name = topic.encode()
            channels += (name, readiness_channel(name, epoch)) if name else (PATTERNS, pattern_readiness(epoch))

        def counted(numbers: list[int]) -> None:
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            counts = dict(zip(order.epochs, pairs, strict=True))
            self._answer(bus.Answer(self.identity.broker, order.order, counts=counts))

        link.count(channels, counted)

    def _collect(self, order: bus.Order, link: AgentLink) -> None:
        assert isinstance(order, bus.Collect)
        self._collection.order(order, link)

    def _lookup(self, order: bus.Order, link: AgentLink) -> None:
        assert isinstance(order, bus.Lookup)
        look_up(self.identity.broker, order, link, self._answer)

    def _recall(self, order: bus.Order, link: AgentLink) -> None:
        assert isinstance(order, bus.Recall)
        self._recollection.order(order, link)

    def _count_parts(self, order: bus.Order, link: AgentLink) -> None:
        broker, membership = self.identity.broker, self._membership
        life = membership.life(broker)

        def counted(parts: dict[str, PartLoad]) -> None:
            self._answer(bus.Answer(broker, order.order, life=life, parts=parts))

        count_unread(link, membership.logs, life, counted)

    def _reset(self, order: bus.Order, link: AgentLink) -> None:
        if order.order == self._began_with:
            return  # the same order received twice: what was installed since must not be wiped
        self._began_with, self._resetting = order.order, True
        self._ready, self._known = False, Known()
        self._membership = self._retention.membership = Membership(version=-1, term=0, brokers={})

        def begun(now_s: float) -> None:
            self._resetting = False
            self._done(order.order, now_s)

        link.begin_anew(begun)

    def _mark_ready(self, order: bus.Order, link: AgentLink) -> None:
        assert isinstance(order, bus.MarkReady)
        if order.run_id != self._run_id:
            return  # meant for an earlier run of the server

        def marked(now_s: float) -> None:
            self._ready = True
            self._done(order.order, now_s)

        link.mark_ready(msgspec.json.encode(Ready(self.identity.broker, order.run_id)), marked)
