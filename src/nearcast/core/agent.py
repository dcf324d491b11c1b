"""The agent machine: beside one server, it carries out the controller's orders (PROTOCOL "Agent").

It holds no data subscription and no decision of its own: every order is one command or script on the server, and is
answered when the server has answered. While the controller grants it, it keeps the lease key on the server alive; the
key carries an absolute end, so an agent or a server that was stopped for a while cannot prolong a lease by waking up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import msgspec

from nearcast.core import bus
from nearcast.core.agent_load import LoadMeter
from nearcast.core.effects import Effect
from nearcast.core.greeting import Credentials
from nearcast.core.headcount import Headcount
from nearcast.core.link import Link, Reply, is_error
from nearcast.core.links import Ready
from nearcast.core.membership import encode_membership, ring_of
from nearcast.core.names import (
    COUNTERS,
    LEASE_KEY,
    MEMBERS,
    PATTERNS,
    READY_KEY,
    RECORDS,
    decode_topic,
    readiness_channel,
)
from nearcast.core.record import first_use
from nearcast.core.scripts import FIRST_USE, INSTALL, INSTALL_MEMBERS
from nearcast.core.settings import DEFAULT_TIMING, Timing
from nearcast.core.tether import Tether
from nearcast.core.wire import decode_record, encode_record

SCAN_COUNT = 1000


class Identity(msgspec.Struct, frozen=True):
    """Who this agent speaks for."""

    broker: str
    url: str  # where clients reach the server
    site: str = "local"


class Agent:
    """Inputs: connected, received, lost, server_ended, tick. Outputs: outgoing(), effects."""

    def __init__(
        self,
        identity: Identity,
        store_url: str,
        rng: Random,
        *,
        server_url: str = "",  # where the agent reaches the server, if not where clients do
        credentials: Credentials | None = None,
        store_credentials: Credentials | None = None,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        self.identity = identity
        self.timing = timing
        self.effects: list[Effect] = []
        self.wall_offset_s = 0.0
        self.agent_id = rng.getrandbits(63)
        self.server = Tether(
            "server",
            server_url or identity.url,
            credentials or Credentials(),
            self._server_open,
            timing=timing,
            rng=rng,
        )
        self.bus = Tether("bus", store_url, store_credentials or Credentials(), self._bus_open, timing=timing, rng=rng)
        self.meter = LoadMeter(identity.broker)
        self._run_id = ""
        self._ready = False
        self._ended = False  # the server's process was seen to end
        self._term = 0
        self._began_with = 0  # the number of the order that made this broker begin anew
        self._hellos: dict[int, float] = {}
        self._sequence = 0
        self._hello_at_s = -1e9
        self._measure_at_s = -1e9
        self._orders: dict[type, Callable[[bus.Order, Link], None]] = {
            bus.Install: self._install,
            bus.InstallMembers: self._install_members,
            bus.Count: self._count,
            bus.Collect: self._collect,
            bus.Lookup: self._lookup,
            bus.Reset: self._reset,
            bus.MarkReady: self._mark_ready,
        }

    # --- inputs

    def connected(self, name: str, now_s: float) -> None:
        self._tether(name).connected(now_s)

    def received(self, name: str, data: bytes, now_s: float) -> None:
        self._tether(name).received(data, now_s, self.effects)

    def lost(self, name: str, reason: str, now_s: float) -> None:
        self._tether(name).lost(reason, now_s)

    def server_ended(self) -> None:
        """The server's process is gone for certain: whoever watches it says so."""
        self._ended = True
        self._hello_at_s = -1e9

    def tick(self, now_s: float) -> None:
        self.server.tick(now_s, self.effects)
        self.bus.tick(now_s, self.effects)
        if now_s - self._hello_at_s >= self.timing.heartbeat_s / 2 and self.bus.link is not None:
            self._hello_at_s = now_s
            self._say_hello(self.bus.link, now_s)
        if now_s - self._measure_at_s >= 1.0 and self.server.link is not None:
            self._measure_at_s = now_s
            self.server.link.send(self._measured, "INFO")

    def outgoing(self) -> list[tuple[str, bytes]]:
        return [(tether.name, data) for tether in (self.server, self.bus) if (data := tether.take())]

    def _tether(self, name: str) -> Tether:
        return self.server if name == "server" else self.bus

    # --- being there

    def _server_open(self, link: Link, now_s: float) -> None:
        self._ended = False
        self._run_id, self._ready = "", False
        link.control[COUNTERS] = self.meter.client_report
        link.subscribe(COUNTERS)
        link.send(self._identified, "INFO", "server")
        link.send(self._found_ready, "GET", READY_KEY)

    def _identified(self, reply: Reply, now_s: float) -> None:
        if isinstance(reply, bytes):
            lines = reply.decode().splitlines()
            self._run_id = next((line[7:] for line in lines if line.startswith("run_id:")), "")

    def _found_ready(self, reply: Reply, now_s: float) -> None:
        mine = Ready(self.identity.broker, self._run_id)
        self._ready = isinstance(reply, bytes) and reply == msgspec.json.encode(mine)

    def _bus_open(self, link: Link, now_s: float) -> None:
        channel = bus.AGENT_CHANNEL + self.identity.broker.encode()
        link.control[channel] = self._heard
        link.subscribe(channel)

    def _say_hello(self, link: Link, now_s: float) -> None:
        self._sequence += 1
        self._hellos[self._sequence] = now_s
        if len(self._hellos) > 32:
            del self._hellos[next(iter(self._hellos))]
        answering = self.server.link is not None and now_s - self.server.answered_s < 2 * self.timing.heartbeat_s
        identity = self.identity
        hello = bus.Hello(
            broker=identity.broker,
            agent=self.agent_id,
            sequence=self._sequence,
            url=identity.url,
            site=identity.site,
            run_id=self._run_id,
            answering=answering and bool(self._run_id),
            dead=self._ended,
            ready=self._ready,
        )
        link.tell(bus.CONTROLLER_CHANNEL, bus.encode(hello))

    # --- orders

    def _heard(self, payload: bytes, now_s: float) -> None:
        message = bus.decode_for_agent(payload)
        if message is None or message.term < self._term:
            return  # a deposed leader
        if not isinstance(message, bus.Grant) and message.order < self._began_with:
            return  # meant for a former life of this broker
        self._term = message.term
        if isinstance(message, bus.Grant):
            self._granted(message, now_s)
        elif self.server.link is not None:
            self._orders[type(message)](message, self.server.link)

    def _granted(self, grant: bus.Grant, now_s: float) -> None:
        sent_s = self._hellos.get(grant.sequence)
        if sent_s is None or self.server.link is None:
            return
        until_s = sent_s + self.timing.grant_s
        if until_s > now_s:
            until_ms = int((until_s + self.wall_offset_s) * 1000)
            self.server.link.send(None, "SET", LEASE_KEY, grant.term, "PXAT", until_ms)

    def _answer(self, answer: bus.Answer) -> None:
        if self.bus.link is not None:
            self.bus.link.tell(bus.CONTROLLER_CHANNEL, bus.encode(answer))

    def _done(self, order: int, reply: Reply, now_s: float) -> None:
        if not is_error(reply):
            self._answer(bus.Answer(self.identity.broker, order))

    def _install(self, order: bus.Order, link: Link) -> None:
        assert isinstance(order, bus.Install)
        arguments: list[bytes | str | int] = []
        for topic, record in order.records.items():
            arguments += [topic, record.version, encode_record(record)]

        def installed(reply: Reply, now_s: float) -> None:
            if isinstance(reply, list):
                versions = dict(zip(order.records, reply, strict=True))
                self._answer(bus.Answer(self.identity.broker, order.order, versions=versions))

        link.send(installed, "EVAL", INSTALL, 1, RECORDS, order.term, *arguments)

    def _install_members(self, order: bus.Order, link: Link) -> None:
        assert isinstance(order, bus.InstallMembers)
        membership = order.membership

        def installed(reply: Reply, now_s: float) -> None:
            if isinstance(reply, list):
                self._answer(bus.Answer(self.identity.broker, order.order, versions={"": int(reply[0])}))

        document = encode_membership(membership)
        link.send(installed, "EVAL", INSTALL_MEMBERS, 1, MEMBERS, membership.version, document)

    def _count(self, order: bus.Order, link: Link) -> None:
        assert isinstance(order, bus.Count)
        channels: list[bytes] = []
        for topic, epoch in order.epochs.items():
            name = topic.encode()
            channels += (name, readiness_channel(name, epoch)) if name else (PATTERNS, PATTERNS)

        def counted(numbers: list[int]) -> None:
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            counts = dict(zip(order.epochs, pairs, strict=True))
            self._answer(bus.Answer(self.identity.broker, order.order, counts=counts))

        Headcount(link, channels, counted).take()

    def _collect(self, order: bus.Order, link: Link) -> None:
        assert isinstance(order, bus.Collect)
        old, new = ring_of(order.old_ring), ring_of(order.new_ring)
        mine = self.identity.broker
        found: dict[str, bytes] = {}

        def step(reply: Reply, now_s: float) -> None:
            if not isinstance(reply, list):
                return
            cursor, pairs = reply
            for topic, value in zip(pairs[::2], pairs[1::2], strict=True):
                if old.owner(topic) == mine and new.owner(topic) != mine:
                    found[decode_topic(topic)] = value
            if cursor != b"0":
                link.send(step, "HSCAN", RECORDS, cursor, "COUNT", SCAN_COUNT)
                return
            records = {topic: decode_record(value) for topic, value in found.items()}
            self._answer(bus.Answer(mine, order.order, records=records))

        link.send(step, "HSCAN", RECORDS, "0", "COUNT", SCAN_COUNT)

    def _lookup(self, order: bus.Order, link: Link) -> None:
        assert isinstance(order, bus.Lookup)
        version = order.membership.version

        def found(reply: Reply, now_s: float) -> None:
            if isinstance(reply, list) and reply[0] == b"record":
                records = {order.topic: decode_record(reply[1])}
                self._answer(bus.Answer(self.identity.broker, order.order, records=records))

        record = encode_record(first_use(version, self.identity.broker))
        link.send(found, "EVAL", FIRST_USE, 2, RECORDS, MEMBERS, order.topic, version, record)

    def _reset(self, order: bus.Order, link: Link) -> None:
        if order.order == self._began_with:
            return  # the same order heard twice: what was installed since must not be wiped
        self._began_with = order.order

        def listed(reply: Reply, now_s: float) -> None:
            if isinstance(reply, bytes):
                for connection in _nearcast_clients(reply.decode(errors="replace")):
                    link.send(None, "CLIENT", "KILL", "ID", connection)
                link.send(partial(self._done, order.order), "DEL", RECORDS, READY_KEY, LEASE_KEY, MEMBERS)

        self._ready = False
        link.send(None, "DEL", READY_KEY)
        link.send(listed, "CLIENT", "LIST")

    def _mark_ready(self, order: bus.Order, link: Link) -> None:
        assert isinstance(order, bus.MarkReady)
        if order.run_id != self._run_id:
            return  # meant for an earlier run of the server

        def marked(reply: Reply, now_s: float) -> None:
            if not is_error(reply):
                self._ready = True
                self._done(order.order, reply, now_s)

        ready = msgspec.json.encode(Ready(self.identity.broker, order.run_id))
        link.send(marked, "SET", READY_KEY, ready)

    # --- reports

    def _measured(self, reply: Reply, now_s: float) -> None:
        if isinstance(reply, bytes) and self.bus.link is not None:
            report = self.meter.measure(reply.decode(errors="replace"), now_s, self.wall_offset_s)
            if report is not None:
                self.bus.link.tell(bus.CONTROLLER_CHANNEL, bus.encode(report))


def _nearcast_clients(listing: str) -> list[str]:
    """Ids of our clients' connections in a CLIENT LIST, agents excepted."""
    ids = []
    for line in listing.splitlines():
        fields = dict(field.split("=", 1) for field in line.split(" ") if "=" in field)
        if fields.get("name", "").startswith("nearcast-"):
            ids.append(fields["id"])
    return ids
