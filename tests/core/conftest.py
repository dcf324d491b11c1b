"""A rig: machines of the core wired to simulated servers, without delays and with a clock that tests set.

The brokers of a rig are prepared as their agents would: ready key, membership, and beats that a leader grants at
once. A test sends records itself, and may hold back what a server says to see the protocol between two steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest
from hiredis import Reader

from nearcast.core.agent.machine import Agent, Identity
from nearcast.core.client.machine import Client
from nearcast.core.client.mailbox import Mailbox, Overflow
from nearcast.core.controller.effects import Campaign, Commit, LoadJournal, Resign
from nearcast.core.controller.machine import Controller, Role
from nearcast.core.controller.planner import PlanningSettings
from nearcast.core.controller.subscribers import CoordinationSettings
from nearcast.core.model.journal import BrokerState, Pace
from nearcast.core.model.membership import BrokerInfo, Membership, Ready, encode_membership
from nearcast.core.model.names import CLAIM_KEY, FIRST_USES, GRANTS, MEMBERS, READY_KEY, RECORDS, TOTALS, WANTED
from nearcast.core.model.placement import Mode, Record
from nearcast.core.model.settings import DEFAULT_TIMING, Timing
from nearcast.core.wire import bus
from nearcast.core.wire.effects import Connect, Disconnect, Rename
from nearcast.core.wire.frames import encode_record
from nearcast.core.wire.link import command
from nearcast.core.wire.scripts import INSTALL, INSTALL_MEMBERS
from nearcast.runtime.store import MemoryStore
from nearcast.sim.valkey.server import Session, SimServer

STEP_S = 0.05
BEAT_S = 0.25


class Wired:
    """One machine and its connections."""

    def __init__(self, rig: Rig, machine: Any) -> None:
        self.rig = rig
        self.machine = machine
        self.effects: list[Any] = []  # those that were not about connections
        self.sessions: dict[str, Session] = {}
        self.deaf: set[str] = set()  # servers whose words are held back from this machine
        self._arrived: deque[tuple[Session, bytes]] = deque()
        self._held: list[tuple[Session, bytes]] = []

    def settle(self) -> bool:
        """Carry out effects, write and read until nothing is left to do. Returns whether there was something."""
        busy = False
        while True:
            effects, self.machine.effects[:] = list(self.machine.effects), []
            writes = self.machine.outgoing()
            if not effects and not writes and not self._arrived:
                return busy
            busy = True
            for effect in effects:
                self._carry_out(effect)
            for link, data in writes:
                if link in self.sessions:
                    self.sessions[link].feed(data)
            if self._arrived:
                session, data = self._arrived.popleft()
                self._read(session, data)

    def _read(self, session: Session, data: bytes) -> None:
        if session.server.name in self.rig.silent | self.deaf:
            self._held.append((session, data))
            return
        for link, known in list(self.sessions.items()):
            if known is session:
                self.machine.received(link, data, self.rig.now_s)

    def hear(self) -> None:
        """Read what was held back while a server was silent."""
        held, self._held = self._held, []
        self._arrived.extend(held)
        self.rig.settle()

    def _carry_out(self, effect: object) -> None:
        if isinstance(effect, Connect):
            server = self.rig.servers.get(effect.url.removeprefix("redis://"))
            if server is None or server.name in self.rig.down:
                self.machine.lost(effect.link, "refused", self.rig.now_s)
                return
            session = server.connect(lambda data: self._arrived.append((session, data)))
            self.sessions[effect.link] = session
            self.machine.connected(effect.link, self.rig.now_s)
        elif isinstance(effect, Disconnect):
            if effect.link in self.sessions:
                self.sessions.pop(effect.link).close()
        elif isinstance(effect, Rename):
            self.sessions[effect.name] = self.sessions.pop(effect.link)
        else:
            self.effects.append(effect)

    def cut(self, link: str) -> None:
        """Lose a connection."""
        session = self.sessions.pop(link)
        session.close()
        self._held = [(other, data) for other, data in self._held if other is not session]
        self.machine.lost(link, "cut", self.rig.now_s)
        self.rig.settle()


class Program(Wired):
    """A client machine, as a program uses it."""

    machine: Client

    def publish(self, topic: bytes, *payloads: bytes) -> None:
        for payload in payloads:
            self.machine.publish(topic, payload, 0, payload, self.rig.now_s)
        self.rig.settle()

    def subscribe(self, topic: bytes, **options: Any) -> Mailbox:
        mailbox = Mailbox(1000, 1 << 20, Overflow.DROP_OLDEST, accept_foreign=options.get("accept_foreign", False))
        self.machine.subscribe(topic, mailbox, mailbox, self.rig.now_s)
        self.rig.settle()
        return mailbox

    @property
    def acked(self) -> list[object]:
        """Tokens of the acknowledged messages, here their payloads."""
        return [token for token, _ in self.machine.acks]


class _Wanted:
    """Hears at which servers a client waits for a grant."""

    def __init__(self) -> None:
        self._servers: list[SimServer] = []

    def take(self) -> list[SimServer]:
        servers, self._servers = self._servers, []
        return servers

    def published(self, server: SimServer, channel: bytes, payload: bytes, receivers: Any) -> None:
        if channel == WANTED:
            self._servers.append(server)

    def appended(self, stream: bytes, topic: bytes, batch: bytes) -> None:
        pass

    def installed(self, server: SimServer, topic: bytes, record: bytes) -> None:
        pass

    def wiped(self, server: SimServer) -> None:
        pass


class Rig:
    def __init__(self, *brokers: str) -> None:
        self.now_s = 100.0
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.servers = {name: SimServer(name, lambda: self.now_s, f"run-{name}", later=self._later) for name in brokers}
        self.silent: set[str] = set()  # servers whose words are held back
        self.down: set[str] = set()  # servers that take no connection
        self.unleased: set[str] = set()  # servers whose agent has no grant
        self.leased = set(brokers)  # those that the rig beats for; the others have agents of their own
        self.wired: list[Wired] = []
        self._wanted = _Wanted()
        for server in self.servers.values():
            server.observers.append(self._wanted)
        self._beat_at_s = 0.0
        self.membership = Membership(
            version=1, term=1, brokers={name: BrokerInfo(f"redis://{name}") for name in brokers}, ring=brokers
        )
        for name in brokers:
            self.prepare(name)

    def prepare(self, broker: str) -> None:
        """What an agent puts on its server."""
        ready = msgspec.json.encode(Ready(broker, self.servers[broker].run_id))
        self.ask(broker, "SET", READY_KEY, ready)
        self.unleased.discard(broker)
        document = encode_membership(self.membership)
        self.ask(
            broker, "EVAL", INSTALL_MEMBERS, 1, MEMBERS, self.membership.version, document, self.membership.logs_version
        )

    def ask(self, broker: str, *parts: bytes | str | int) -> Any:
        """Run one command as somebody else."""
        said: list[bytes] = []
        session = self.servers[broker].connect(said.append)
        session.feed(command(*parts))
        session.close()
        reader = Reader()
        reader.feed(b"".join(said))
        self.settle()
        return reader.gets()

    def install(self, broker: str, topic: bytes, record: Record) -> None:
        arguments = (record.term, topic, record.version, encode_record(record))
        self.ask(broker, "EVAL", INSTALL, 3, RECORDS, FIRST_USES, TOTALS, *arguments)

    def client(self, client_id: int = 1, **options: Any) -> Program:
        machine = Client(client_id, Random(client_id), **options)
        program = Program(self, machine)
        self.wired.append(program)
        machine.links.seed(f"redis://{next(iter(self.servers))}", self.now_s)
        self.settle()
        return program

    def wire(self, machine: Any) -> Wired:
        wired = Wired(self, machine)
        self.wired.append(wired)
        return wired

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._timers.append((self.now_s + delay_s, action))

    def _run_timers(self) -> None:
        due = [timer for timer in self._timers if timer[0] <= self.now_s]
        self._timers = [timer for timer in self._timers if timer[0] > self.now_s]
        for _, action in due:
            action()

    def settle(self) -> None:
        while any(wired.settle() for wired in self.wired) or self._grant(self._wanted.take()):
            pass

    def _grant(self, servers: list[SimServer]) -> bool:
        """A beat on each server, as its agent would, granted unless the broker has no lease. Returns whether so."""
        granted = [server for server in servers if server.name in self.leased - self.unleased]
        for server in granted:
            beat = b"%d" % (int(server.keys.fields(CLAIM_KEY).get(b"beat", b"0")) + 1)
            server.keys.set_fields(CLAIM_KEY, {b"beat": beat, b"granted": beat})
            server.publish(GRANTS, beat)
            server.flush()
        return bool(granted)

    def speak(self, broker: str) -> None:
        """A silent server is heard again."""
        self.silent.discard(broker)
        for wired in self.wired:
            wired.hear()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            if self.now_s - self._beat_at_s >= BEAT_S:
                self._beat_at_s = self.now_s
                self._grant(list(self.servers.values()))
            self._run_timers()
            for wired in self.wired:
                wired.machine.tick(self.now_s)
            self.settle()

    def channels(self, broker: str) -> set[bytes]:
        """What is subscribed to at a server."""
        return set(self.servers[broker].channels)


class Cluster:
    """Controllers and agents on a rig, with a store that answers at once."""

    def __init__(
        self,
        *brokers: str,
        controllers: int = 1,
        planning: PlanningSettings | None = None,
        coordinating: CoordinationSettings | None = None,
        leaders: Sequence[Timing] = (DEFAULT_TIMING,),  # of the controllers, in turn
    ) -> None:
        self.rig = Rig(*brokers, "store")
        self.rig.leased.clear()
        self.rig.membership = msgspec.structs.replace(self.rig.membership, version=0)
        self.store = MemoryStore()
        self.answers: dict[str, bus.State] = {}
        self.controllers = [
            Controller(
                f"c{number}",
                "redis://store",
                Random(number),
                planning=planning,
                coordinating=coordinating,
                timing=leaders[(number - 1) % len(leaders)],
            )
            for number in range(1, controllers + 1)
        ]
        self.agents = {
            name: Agent(Identity(name, f"redis://{name}"), "redis://store", Random(name)) for name in brokers
        }
        for machine in (*self.controllers, *self.agents.values()):
            self.rig.wire(machine)
        for name in brokers:
            self.rig.servers[name].keys.clear()
        self.stopped: set[object] = set()

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            self.rig.run(0.05)
            self._serve_store()

    def _serve_store(self) -> None:
        for controller in self.controllers:
            while controller.store and controller not in self.stopped:
                effects, controller.store[:] = list(controller.store), []
                for effect in effects:
                    self._serve(controller, effect)
            self.rig.settle()

    def _serve(self, controller: Controller, effect: object) -> None:
        now_s = self.rig.now_s
        if isinstance(effect, Campaign):
            controller.campaigned(self.store.campaign_now(effect.candidate, effect.stale, effect.above), now_s)
        elif isinstance(effect, Resign):
            self.store.resign_now(effect.candidate)
        elif isinstance(effect, LoadJournal):
            version, entries = self.store.load_now()
            controller.read(effect.term, entries, now_s)
            controller.loaded(effect.term, version, now_s)
        elif isinstance(effect, Commit):
            ok = self.store.commit_now(effect.version, effect.term, effect.changes)
            controller.committed(effect.term, ok, now_s)

    @property
    def leader(self) -> Controller:
        (leading,) = (c for c in self.controllers if c.role is Role.LEADER and c not in self.stopped)
        return leading

    @property
    def journal(self) -> Any:
        assert self.leader.leading is not None
        return self.leader.leading.journal

    def states(self) -> dict[str, BrokerState]:
        return {name: entry.state for name, entry in self.journal.brokers.items()}

    def ask(self, make: Any) -> bus.State:
        """Ask the leader, and wait for its answer."""
        leader = self.leader.leading
        assert leader is not None
        heard: list[bus.State] = []
        told = leader.requests._send
        leader.requests._send = heard.append  # type: ignore[method-assign]
        leader.heard(make, self.rig.now_s)
        for _ in range(40):
            if heard:
                break
            self.run(0.05)
        leader.requests._send = told  # type: ignore[method-assign]
        return heard[0]

    def move(self, topic: str, mode: Mode, *brokers: str, pace: Pace = Pace.EAGER) -> bus.State:
        return self.ask(bus.MoveTopics("me.1", {topic: (mode, brokers)}, pace))

    def retire(self, controller: Controller) -> None:
        """Stop a controller in good order."""
        controller.retire(self.rig.now_s)
        self._serve_store()
        self.stopped.add(controller)
        self.rig.wired = [wired for wired in self.rig.wired if wired.machine is not controller]

    def kill(self, broker: str) -> None:
        self.rig.down.add(broker)
        for wired in self.rig.wired:
            for link in [link for link, session in wired.sessions.items() if session.server.name == broker]:
                wired.cut(link)
        self.agents[broker].server_ended()


@pytest.fixture
def rig() -> Any:
    """Makes rigs."""
    return partial(Rig)


@pytest.fixture
def cluster_of() -> Any:
    """Makes clusters."""
    return partial(Cluster)


@pytest.fixture
def cluster() -> Cluster:
    """Three brokers that have joined."""
    cluster = Cluster("b1", "b2", "b3")
    cluster.run(3.0)
    return cluster
