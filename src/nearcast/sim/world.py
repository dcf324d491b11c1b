"""A world: the servers, agents, controllers, publishers and subscribers of one simulated run."""

from __future__ import annotations

from itertools import count
from random import Random

import msgspec

from nearcast.core.agent.machine import Agent, Identity
from nearcast.core.client.machine import Client
from nearcast.core.client.subscriber import TopicSubscriber
from nearcast.core.controller.machine import Controller
from nearcast.core.model.journal import MEMBERSHIP_KEY, BrokerEntry, BrokerState, broker_key, decode_entry
from nearcast.core.model.membership import Membership
from nearcast.core.model.names import CONTROL, FIRST_USES, READINESS
from nearcast.core.model.placement import Mode
from nearcast.core.model.settings import Limits, Timing
from nearcast.core.wire.backend import Credentials
from nearcast.sim.faults import FaultPlan, Faults, Profile
from nearcast.sim.history import History
from nearcast.sim.logs import Logs
from nearcast.sim.network import Host, HostClock, LinkModel, Network, Timeline, far_link
from nearcast.sim.process import PLANNING, ControllerProcess, ManyTopics, Process
from nearcast.sim.programs import SECRET, Operator, Publisher, Subscriber
from nearcast.sim.readers import Read, Readers
from nearcast.sim.replicas import Replicas
from nearcast.sim.script import Remove, Step
from nearcast.sim.store import SimStore
from nearcast.sim.valkey.replies import User, deny
from nearcast.sim.valkey.server import SimServer

APP = Credentials("app", "secret")
FRONT = "front"  # a host name given to programs
START_S = 1.5  # the cluster has formed by then
QUIET_S = 1.0
DRIFT_MAX = 0.01  # of monotonic clocks; NTP corrects by 0.0005 at most (adjtimex, "maximum frequency tolerance")
DRAIN_MAX_S = 60.0  # long enough for a client with 200,000 topics to start over after the last fault


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a world, and what happens in it."""

    brokers: int = 3
    controllers: int = 1
    topics: int = 2
    publishers: int = 3
    early_subscribers: int = 2
    late_subscribers: int = 2
    pattern_subscribers: int = 0
    client_distances_s: tuple[float, ...] = ()  # one way, from programs to servers; drawn from short ones if empty
    hasty_subscribers: int = 2  # they leave before they are attached, or just after
    late_pattern_subscribers: int = 0
    sites: bool = False  # agents are at very different distances from the store
    slow_connects: float = 0.0  # share of connections whose first packet is lost
    start_s: float = START_S  # when clients begin
    traffic_s: float = 4.0
    moves_per_s: float = 8.0
    load_s: float = 0.0  # how long it takes to read the journal, as if it had many more topics
    many_topics: int = 0  # topics of one client, whose work takes time
    many_topics_scale: int = 2000  # each of them stands for this many
    drains: int = 0  # brokers that are drained and stopped, and come back
    script: tuple[Step, ...] = ()
    broker_names: tuple[str, ...] = ()  # instead of b0, b1, ...
    topic_names: tuple[str, ...] = ()  # instead of topic-0, topic-1, ...
    rate_per_s: float = 30.0
    cancelled_share: float = 0.02  # of publish calls
    echoed_share: float = 0.03  # of messages on the bus, in profiles that repeat messages
    echoes_s: tuple[float, ...] = (0.001, 0.1, 2.0)  # how much later a message is repeated
    front: bool = False  # programs get a name that leads to the first broker, wherever it is
    policy: bool = False  # controllers have a policy, which proposes the impossible
    unwaited_share: float = 0.3  # of publish calls: published without waiting
    forbidden_share: float = 0.02  # of publish calls: on a topic the user may not use
    modes: tuple[Mode, ...] = (Mode.SINGLE, Mode.SINGLE, Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS)  # of moves
    readers: int = 0  # programs that read the log alone
    members: int = 0  # of a group that reads it too; one of them crashes and is replaced
    reads: tuple[Read, ...] = ()  # more readers
    payload_bytes: int = 0  # payloads are filled up to this
    quorum: int = 1  # of the log
    replicas: int = 0  # of each broker's server, and how far they are behind; drawn from short times if 0
    replica_lag_s: float = 0.0
    timing: Timing = Timing()
    leaders: tuple[Timing, ...] = ()  # timers of the controllers, in turn, if they differ from the initial ones
    limits: Limits = Limits(window=256)


class World:
    """One simulated run. One seed gives one run."""

    def __init__(self, seed: int, setup: Setup, plan: FaultPlan) -> None:
        # One generator seeds all others, so that more faults do not change the traffic.
        root = Random(seed)
        self.seed = seed
        self.setup = setup
        self.rng = Random(root.getrandbits(64))
        self.timeline = Timeline()
        self.network = Network(self.timeline, Random(root.getrandbits(64)))
        self._clock_rng = Random(root.getrandbits(64))
        self.clocks: dict[str, HostClock] = {}  # of the servers' hosts; an agent runs on its server's host
        self.network.slow_connects = setup.slow_connects
        self.history = History(self.timeline, self)
        self.publishers, self.subscribers = list[Publisher](), list[Subscriber]()
        self.many_topics, self.readers, self.logs = list[ManyTopics](), Readers(self), Logs(self)
        self.controls: dict[str, Process] = {}  # agents and controllers
        self.intruders: list[Process] = []  # agents that do not belong here
        self._addresses: dict[str, str] = {}  # of brokers whose address does not follow from their name
        self.hosts: dict[str, Host] = {}
        self.brokers = list(setup.broker_names) or [f"b{index}" for index in range(setup.brokers)]
        self.topics = [name.encode() for name in setup.topic_names] or [b"topic-%d" % n for n in range(setup.topics)]
        self.users: dict[str, User] = {}  # on each broker's server, the user of all programs
        self.forbidden = root.choice(((SECRET,), (CONTROL + SECRET,), (SECRET, CONTROL + SECRET)))
        self.plan = plan
        self._leaders = setup.leaders or (setup.timing,)
        for name in ["store", *self.brokers]:
            self.clocks[name] = self.new_clock()
        self.store = SimStore()
        self.faults = Faults(self, plan, Random(root.getrandbits(64)))
        self._end_s = setup.start_s + setup.traffic_s
        self.operator = Operator(self, self._end_s)
        self._sites_rng = Random(root.getrandbits(64))
        for name in ["store", *self.brokers]:
            self._start_server(name)
        self.replicas = Replicas(self, setup.replicas, setup.replica_lag_s)
        for name in self.brokers:
            self._start_control(f"agent {name}")
        for index in range(setup.controllers):
            self._start_control(f"controller {index}")

    # --- parts

    def _start_server(self, name: str) -> None:
        clock = self.clocks.setdefault(name, HostClock(self.timeline))
        server = SimServer(name, clock.wall_s, run_id=f"{name}-1", later=self.timeline.after)
        self.hosts[name] = self.network.add(_url(name), server)
        if self.setup.front and name == self.brokers[0]:
            self.network.hosts[_url(FRONT)] = self.hosts[name]
        if name != "store":
            server.observers.append(self.history)
            user = self.users[name] = server.users[APP.username.encode()] = User(APP.password.encode())
            user.denied.update(self.forbidden)

    def _start_control(self, name: str) -> None:
        kind, _, which = name.partition(" ")
        if self.setup.sites and kind == "agent":
            self.network.place(name, "store", far_link(self._sites_rng))
        rng = Random(self.rng.getrandbits(64))
        if kind == "agent":
            url, replicas = self._addresses.get(which, _url(which)), self.replicas.urls_of(which)
            agent = Agent(Identity(which, url, replicas=replicas), _url("store"), rng, timing=self.setup.timing)
            self.controls[name] = Process(self, name, agent, self.clocks[which])
        else:
            planning = PLANNING if self.setup.policy else None
            timing = self._leaders[int(which) % len(self._leaders)]
            controller = Controller(
                f"{name}.{rng.getrandbits(16)}", _url("store"), rng, timing=timing, planning=planning
            )
            self.controls[name] = ControllerProcess(self, name, controller, self.new_clock())

    def new_clock(self) -> HostClock:
        drifting = self.plan.profile in (Profile.CLOCKS, Profile.ALL)
        return HostClock(self.timeline, self._clock_rng.uniform(-DRIFT_MAX, DRIFT_MAX) if drifting else 0.0)

    def new_client(self, name: str, scale: int = 1) -> Client:
        """`scale`: how many topics each topic stands for."""
        rng, setup = Random(self.rng.getrandbits(64)), self.setup
        if setup.client_distances_s:
            for broker in self.brokers:
                self.network.place(name, broker, LinkModel(rng.choice(setup.client_distances_s), 0.01))
        parts = {name: max(1, getattr(setup.limits, name) // scale) for name in ("attaching", "attended")}
        limits = msgspec.structs.replace(setup.limits, **parts)
        return Client(rng.getrandbits(64), rng, credentials=APP, timing=setup.timing, limits=limits)

    def seed_client(self, client: Client, now_s: float) -> None:
        """Give the client the address of one broker, if possible one that the script does not remove."""
        if self.setup.front:
            client.links.seed(_url(FRONT), now_s)
            return
        removed = {step.broker for step in self.setup.script if isinstance(step, Remove)}
        staying = [broker for broker in self.brokers if broker not in removed]
        client.links.seed(_url(self.rng.choice(staying or self.brokers)), now_s)

    # --- faults

    def crash_control(self, name: str, down_s: float) -> None:
        process = self.controls.get(name)
        if process is not None and process.alive:
            process.crash()
            self.timeline.after(down_s, self._control_up, name)

    def stop_controller(self, name: str, down_s: float) -> None:
        """Shut it down properly, as SIGTERM would; a paused controller stops when it wakes."""
        process = self.controls[name]
        assert isinstance(process, ControllerProcess)
        process.serve(self._stopped, process, down_s)

    def _stopped(self, process: ControllerProcess, down_s: float) -> None:
        process.retire()
        process.crash()
        self.timeline.after(down_s, self._control_up, process.name)

    def kill_server(self, broker: str, *, silent: bool, down_s: float, told: bool | None = None) -> None:
        """`told`: whether the agent learns that the server's process has ended; drawn if None."""
        host = self.hosts[broker]
        if not host.up:
            return
        host.crash(f"{broker}-{self.rng.getrandbits(32):x}", silent=silent)
        self.history.restarted(broker)
        agent = self.controls[f"agent {broker}"].machine
        if told is None:
            told = not silent and self.rng.random() < 0.5
        if isinstance(agent, Agent) and told:
            agent.server_ended()
        self.timeline.after(down_s, self._server_up, host)

    def _server_up(self, host: Host) -> None:
        host.up = True

    def withdraw(self, broker: str, channels: tuple[bytes, ...], for_s: float) -> None:
        """Forbid programs to use these channels for a while; those that hold one there are cut off."""
        host, user = self.hosts[broker], self.users[broker]
        deny(host.server, user, *channels)
        host.hang_up()
        self.timeline.after(for_s, user.denied.difference_update, channels)

    def stop_broker(self, broker: str, away_s: float) -> None:
        """End the agent, then the server, and restart both after a while."""
        agent = self.controls[f"agent {broker}"]
        if agent.alive:
            agent.crash()
        self.kill_server(broker, silent=False, down_s=away_s)
        self.timeline.after(away_s, self._control_up, f"agent {broker}")

    def lose_store(self, commits: int | None, down_s: float) -> None:
        """The store's server ends, and comes back as it was this many commits ago; empty if None."""
        host = self.hosts["store"]
        host.crash(f"store-{self.rng.getrandbits(32):x}", silent=False)
        self.store.lose(commits)
        self.history.store_lost()
        self.timeline.after(down_s, self._server_up, host)

    def readdress(self, broker: str) -> None:
        """The broker's server and agent end; both start again at once, at another address."""
        host = self.hosts[broker]
        self.controls[f"agent {broker}"].crash()
        self.kill_server(broker, silent=False, down_s=0.0, told=False)
        self._addresses[broker] = _url(f"{broker}-moved")
        self.network.move(_url(broker), self._addresses[broker])
        self._server_up(host)
        self._start_control(f"agent {broker}")

    def intrude(self, broker: str, server: str) -> None:
        """Start one more agent for this broker, at another broker's server."""
        rng, timing = Random(self.rng.getrandbits(64)), self.setup.timing
        agent = Agent(Identity(broker, _url(server)), _url("store"), rng, timing=timing)
        self.intruders.append(Process(self, f"intruder at {server}", agent, self.clocks[server]))

    def add_broker(self, broker: str) -> None:
        """One more server with its agent, on the same network."""
        self._start_server(broker)
        self.replicas.start(broker)
        self._start_control(f"agent {broker}")
        self.brokers.append(broker)

    def end_broker(self, broker: str) -> None:
        """Stop for good a broker that has left."""
        self.brokers.remove(broker)
        self.controls.pop(f"agent {broker}").crash()
        self.network.remove(_url(broker))

    def _control_up(self, name: str) -> None:
        process = self.controls.get(name)
        if process is not None and not process.alive:
            self._start_control(name)

    # --- what happens

    def run(self) -> None:
        timeline, setup, rng = self.timeline, self.setup, self.rng
        timeline.run_until(setup.start_s)
        index = count()
        for _ in range(setup.early_subscribers):
            self._subscribe(next(index))
        for _ in range(setup.pattern_subscribers):
            self._subscribe_pattern(next(index))
        for number in range(setup.hasty_subscribers):
            pattern = b"t*" if number % 2 else b""
            timeline.after(rng.random() * setup.traffic_s, self._subscribe_in_haste, next(index), pattern)
        for _ in range(setup.late_subscribers):
            timeline.after(rng.random() * setup.traffic_s, self._subscribe, next(index))
        for _ in range(setup.late_pattern_subscribers):
            timeline.after(rng.random() * setup.traffic_s, self._subscribe_pattern, next(index))
        if setup.many_topics:
            self.many_topics.append(ManyTopics(self, setup.many_topics, setup.many_topics_scale))
        self.readers.begin(setup)
        for number in range(setup.publishers):
            timeline.after(rng.random() * 0.8 * (number % 2) * setup.traffic_s, self._publish, number)
        self.operator.begin()
        self.faults.schedule(setup.start_s + 0.3, self._end_s)
        timeline.run_until(self._end_s)
        self.faults.calm()
        self._drain()

    def _subscribe(self, index: int) -> None:
        leave_s = self.rng.random() * self.setup.traffic_s if index % 5 == 4 else None
        self.subscribers.append(Subscriber(self, index, self.rng.choice(self.topics), leave_s=leave_s))

    def _subscribe_in_haste(self, index: int, pattern: bytes) -> None:
        topic, leave_s = self.rng.choice(self.topics), self.rng.random() * 0.1
        self.subscribers.append(Subscriber(self, index, topic, pattern=pattern, leave_s=leave_s))

    def _subscribe_pattern(self, index: int) -> None:
        self.subscribers.append(Subscriber(self, index, b"", pattern=b"t*"))

    def _publish(self, index: int) -> None:
        publisher = Publisher(self, index, self.topics, until_s=self._end_s, rate_per_s=self.setup.rate_per_s)
        self.publishers.append(publisher)

    def _drain(self) -> None:
        """Let everything in progress finish, for a limited time."""
        limit_s = self.timeline.now_s + DRAIN_MAX_S
        quiet_s = 0.0
        while self.timeline.now_s < limit_s and quiet_s < QUIET_S:
            self.timeline.run_until(self.timeline.now_s + 0.25)
            quiet_s = quiet_s + 0.25 if not self.unfinished() else 0.0

    # --- reading the state

    def leader(self) -> str | None:
        """A controller that believes it leads; a deposed one may not have noticed yet."""
        for name, process in self.controls.items():
            if process.alive and isinstance(process.machine, Controller) and process.machine.leading is not None:
                return name
        return None

    def clients(self) -> list[Process]:
        programs: list[Publisher | Subscriber | ManyTopics] = [*self.publishers, *self.subscribers, *self.many_topics]
        return [*(program.process for program in programs), *(reader.process for reader in self.readers.all)]

    def holds(self, client: int, broker: str, topic: bytes) -> bool:
        """Whether a client's connection is subscribed to the topic at this broker's server."""
        name = f"nearcast-{client:016x}"
        sessions = self.hosts[broker].server.channels.get(topic, {})
        return any(session.name == name for session in sessions)

    def _cut_off(self, client: int, flow: TopicSubscriber) -> list[str]:
        """Servers that have lost a subscriber's connection, where the subscriber has not noticed yet."""
        readers = flow.placement.readers(client) if flow.whole and flow.placement is not None else ()
        return [
            f"{client:016x} has not noticed that {broker} has cut it off from {flow.topic!r}"
            for broker in readers
            if not self.holds(client, broker, flow.topic)
        ]

    def _left_over(self, subscriber: Subscriber) -> list[str]:
        """What the servers still hold for a subscriber that has left."""
        name = f"nearcast-{subscriber.machine.client_id:016x}"
        wanted = subscriber.pattern or subscriber.topic
        return [
            f"{broker} still has {wanted!r} of {subscriber.name}, which has left"
            for broker in self.brokers
            for session in self.hosts[broker].server.sessions
            if session.name == name and (wanted in session.channels.names or wanted in session.patterns.names)
        ]

    def numbers(self, topic: str, publisher: int) -> set[int]:
        """The numbers a publisher used, except those given up or refused, which may have become SKIPs."""
        return {
            publication.sequence
            for program in self.publishers
            if program.machine.client_id == publisher
            for publication in program.publications
            if not publication.given_up and publication.failed is None and publication.topic == topic.encode()
        }

    def unfinished(self) -> list[str]:
        """What has not finished."""
        found = ["a fault still lasts"] if self.network.troubled or self.faults.lasts else []
        _, entries = self.store.load_now()
        found += [f"{key} is still moving" for key, value in entries.items() if key[0] == "t" and b'"phase"' in value]
        found += [f"{step} of the script was not carried out" for step in self.operator.steps]
        found += self.unfinished_members()
        for publisher in self.publishers:
            for topic, topic_publisher in publisher.machine.topic_publishers.items():
                if topic_publisher.unacknowledged:
                    found.append(f"{publisher.process.name} waits for {topic_publisher.unacknowledged} of {topic!r}")
            found += publisher.untold()
        if all(timing.idle_s < self.setup.traffic_s for timing in self._leaders):
            found += self._not_ended()
        for subscriber in self.subscribers:
            found += self._unfinished_subscriber(subscriber)
        for program in self.many_topics:
            found += program.unfinished()
        for name in self.brokers:
            channels = self.hosts[name].server.channels
            found += [f"{name} has a leftover {channel!r}" for channel in channels if channel.startswith(READINESS)]
        return found

    def _not_ended(self) -> list[str]:
        """What is no longer used, but still there."""
        found = [
            f"{publisher.process.name} still has {topic!r}"
            for publisher in self.publishers
            for topic in publisher.machine.topic_publishers
        ]
        for broker in self.brokers:
            server = self.hosts[broker].server
            for topic in server.keys.fields(FIRST_USES):
                if not server.channels.get(topic) and not server.channels.get(CONTROL + topic):
                    found.append(f"{broker} still has a first use of {topic!r}, which is not in use")
        return found

    def unfinished_members(self) -> list[str]:
        """Brokers that are still leaving, or up but not members, and a ring that is not open."""
        _, values = self.store.load_now()
        entries = {key: decode_entry(key, value) for key, value in values.items()}
        found = [f"{key} is still leaving" for key, value in values.items() if b'"state":"leaving"' in value]
        for name in self.brokers:
            entry = entries.get(broker_key(name))
            inside = isinstance(entry, BrokerEntry) and entry.state not in (BrokerState.JOINING, BrokerState.DEAD)
            if self.hosts[name].up and not inside:
                found.append(f"broker {name} has not joined: {entry}")
        membership = entries.get(MEMBERSHIP_KEY)
        if not isinstance(membership, Membership) or membership.previous_ring is not None:
            return [*found, f"the ring is not open: {membership}"]
        return found + self.readers.unread(membership)

    def _unfinished_subscriber(self, subscriber: Subscriber) -> list[str]:
        if subscriber.tries_forbidden and subscriber.failed is None:
            return [f"{subscriber.name} got no answer for a forbidden topic"]
        if subscriber.left_s is not None:
            return self._left_over(subscriber)
        if subscriber.joined_s is None:
            return [f"{subscriber.name} never joined"]
        found = []
        for topic_subscriber in subscriber.machine.topic_subscribers.values():
            if topic_subscriber.reception is not None and topic_subscriber.reception.lines.unsettled:
                found.append(f"{subscriber.name} holds frames back")
            if not topic_subscriber.whole:
                found.append(f"{subscriber.name} is not whole")
            found += self._cut_off(subscriber.machine.client_id, topic_subscriber)
        found += [
            f"{subscriber.name} holds frames back" for flow in subscriber.machine.patterns.values() if flow.unsettled
        ]
        return found


def _url(name: str) -> str:
    return f"redis://{name}:6379"
