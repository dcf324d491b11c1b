"""Simulated replicas: servers that follow another one over the network, some time behind it.

What a server has written reaches its replicas in order, each after a delay of its own, and so do the acknowledgements
on their way back. A replica whose connection breaks tries again, and takes over everything that the server has then.
That it may be nothing at all is the point of admitting replicas by a user per run.

Beside the replicas that an agent is given, there is a stray one for each broker: it attaches as soon as it is let in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.sim.network import Host, LinkModel, Network, any_link
from nearcast.sim.valkey.replies import User
from nearcast.sim.valkey.server import SimServer

if TYPE_CHECKING:
    from nearcast.sim.valkey.keys import Changes
    from nearcast.sim.world import World

PORT = 6379
RETRY_S = 1.0  # as a real replica
_TINY_S = 1e-9


class Replicas:
    """The replicas of all brokers of a world."""

    def __init__(self, world: World, count: int, lag_s: float) -> None:
        """`count`: of each broker."""
        self._world = world
        self._count = count
        self._lag_s = lag_s
        for broker in world.brokers:
            self.start(broker)

    def start(self, broker: str) -> None:
        """Start the replicas of a broker, and the stray one."""
        for url in self.urls_of(broker):
            self._start(self._world, url, self._lag_s)
        if self._count:
            stray = self._start(self._world, f"redis://{broker}-stray:{PORT}", 0.0)
            stray.following.follow((broker.encode(), PORT))

    def urls_of(self, broker: str) -> tuple[str, ...]:
        """The URLs that the broker's agent is given."""
        return tuple(f"redis://{broker}-replica-{number}:{PORT}" for number in range(self._count))

    def _start(self, world: World, url: str, lag_s: float) -> SimServer:
        name = url.removeprefix("redis://").removesuffix(f":{PORT}")
        clock = world.clocks[name] = world.new_clock()
        server = SimServer(name, clock.wall_s, f"{name}-1", later=world.timeline.after)
        world.hosts[name] = world.network.add(url, server)
        users = world.hosts[world.brokers[0]].server.users
        server.users |= {user: User(known.password) for user, known in users.items()}
        Replica(world.network, world.hosts[name], lag_s)
        return server


class Replica:
    """Lets one server follow whomever it is told to follow."""

    def __init__(self, network: Network, host: Host, lag_s: float) -> None:
        self.host = host
        self.lag_s = lag_s
        self.network = network
        self._connection: _Connection | None = None
        self._attempt = 0
        host.server.following.changed = self._retarget

    def _retarget(self) -> None:
        self._drop()
        if self.host.server.following.address is not None:
            self._try_after(self.network.rng.random() * 0.05)

    def _drop(self) -> None:
        self._attempt += 1
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _try_after(self, delay_s: float) -> None:
        self._attempt += 1
        attempt = self._attempt
        self.network.timeline.after(delay_s, lambda: self._try() if attempt == self._attempt else None)

    def _try(self) -> None:
        following = self.host.server.following
        if following.address is None:
            return
        host, port = following.address
        primary = self.network.hosts.get(f"redis://{host.decode()}:{port}")
        reachable = primary is not None and primary.up and not primary.stopped and self.host.up
        if primary is None or not reachable or not may_follow(primary.server, following.user, following.password):
            self._try_after(RETRY_S)
            return
        self._connection = _Connection(self, primary)

    def ended(self, connection: _Connection) -> None:
        """The server that it follows has closed the connection."""
        if self._connection is connection:
            self._connection = None
            self.host.server.following.in_step = False
            self._try_after(self.network.rng.random() * RETRY_S)


class _Connection:
    """One connection of a replica: first everything, then what changes."""

    def __init__(self, replica: Replica, primary: Host) -> None:
        self._replica = replica
        self._primary = primary
        self._timeline = replica.network.timeline
        self._rng = replica.network.rng
        self._model = LinkModel(replica.lag_s, replica.lag_s) if replica.lag_s else any_link(self._rng)
        self._arrives_s = self._returns_s = 0.0
        self._open = True
        primary.server.keys.follow_changes()
        primary.server.replication.attach(self)
        self._send(primary.server.replication.offset, primary.server.keys.snapshot(), whole=True)

    def changed(self, offset: int, changes: Changes) -> None:
        self._send(offset, changes)

    def _send(self, offset: int, changes: Changes, *, whole: bool = False) -> None:
        now_s = self._timeline.now_s
        self._arrives_s = max(self._arrives_s + _TINY_S, now_s + self._model.draw(self._rng))
        host = self._replica.host
        self._timeline.after(self._arrives_s - now_s, lambda: host.run(lambda: self._arrive(offset, changes, whole)))

    def _arrive(self, offset: int, changes: Changes, whole: bool) -> None:
        if not self._open:
            return
        server = self._replica.host.server
        if whole:
            server.keys.clear()
        server.keys.apply(changes)
        server.following.offset, server.following.in_step = offset, True
        now_s = self._timeline.now_s
        self._returns_s = max(self._returns_s + _TINY_S, now_s + self._model.draw(self._rng))
        self._timeline.after(self._returns_s - now_s, lambda: self._primary.run(lambda: self._acknowledge(offset)))

    def _acknowledge(self, offset: int) -> None:
        self._primary.server.replication.acknowledge(self, offset)

    def close(self) -> None:
        """The replica closes it. The server counts it until it notices."""
        self._open = False
        self._timeline.after(self._model.draw(self._rng), lambda: self._primary.server.replication.detach(self))

    def ended(self) -> None:
        self._open = False
        self._replica.ended(self)


def may_follow(server: SimServer, user: bytes, password: bytes) -> bool:
    """Whether a server lets somebody attach as a replica."""
    known = server.users.get(user)
    if known is None:
        return server.default_replicates and not user
    return known.replicates and known.password == password
