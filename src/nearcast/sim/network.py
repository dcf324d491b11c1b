"""The simulated network, its virtual time, and the clocks of its hosts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol

import msgspec

from nearcast.sim.valkey.server import Session, SimServer

# --- virtual time


class Timeline:
    """Virtual time: events in order of (time, sequence), so that ties are broken the same way in every run."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def clock(self) -> float:
        return self.now_s

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heappush(self._events, (self.now_s + delay_s, self._sequence, action, arguments))

    def run_until(self, end_s: float) -> None:
        events = self._events
        while events and events[0][0] <= end_s:
            self.now_s, _, action, arguments = heappop(events)
            action(*arguments)
        self.now_s = end_s


# --- network


_TINY_S = 1e-9  # keeps the order of bytes sent at the same moment


class LinkModel(msgspec.Struct, frozen=True):
    """How long bytes take on one connection, one way."""

    base_s: float
    jitter_s: float
    spike_share: float = 0.01  # share of writes that a lost and resent packet delays
    spike_s: float = 0.4

    def draw(self, rng: Random) -> float:
        delay_s = self.base_s + rng.random() * self.jitter_s
        if rng.random() < self.spike_share:
            delay_s += rng.random() * self.spike_s
        return delay_s


LOCAL = LinkModel(base_s=0.0002, jitter_s=0.0005, spike_share=0.0)
_BASES_S = (0.001, 0.005, 0.02, 0.06)
_FAR_BASES_S = (0.001, 0.05, 0.12)  # a hello and its grant take twice as long, and must stay within the time for grants
_LOST_FIRST_PACKET_S = (1.0, 3.0)  # RFC 6298: it is sent again after 1 s, then after 2 s more
_JITTERS_S = (0.001, 0.01, 0.05)


def any_link(rng: Random) -> LinkModel:
    return LinkModel(rng.choice(_BASES_S), rng.choice(_JITTERS_S))


def far_link(rng: Random) -> LinkModel:
    """Between sites, from near to the other side of the world."""
    return LinkModel(rng.choice(_FAR_BASES_S), rng.choice(_JITTERS_S[:2]))


class Endpoint(Protocol):
    """The process's end of a pipe."""

    name: str

    def arrived(self, pipe: Pipe, data: bytes) -> None: ...

    def ended(self, pipe: Pipe, reason: str) -> None: ...


class Host:
    """One server and its state as a process: running, stopped (SIGSTOP) or dead."""

    def __init__(self, server: SimServer) -> None:
        self.server = server
        self.up = True
        self.stopped = False
        self.pipes: list[Pipe] = []
        self._backlog: deque[Callable[[], None]] = deque()

    def run(self, work: Callable[[], None]) -> None:
        """Do the work now, or when the server resumes."""
        if self.stopped:
            self._backlog.append(work)
        elif self.up:
            work()

    def stop(self) -> None:
        self.stopped = True

    def go_on(self) -> None:
        self.stopped = False
        while self._backlog:
            self._backlog.popleft()()

    def hang_up(self) -> None:
        """Close the connections whose sessions the server has ended."""
        killed, self.server.killed = self.server.killed, []
        for pipe in [pipe for pipe in self.pipes if pipe.session in killed]:
            self.pipes.remove(pipe)
            pipe.server_gone(silent=False)

    def crash(self, run_id: str, *, silent: bool) -> None:
        """The process dies with all its memory. A silent death sends no resets."""
        self.up = self.stopped = False
        self._backlog.clear()
        pipes, self.pipes = self.pipes, []
        for pipe in pipes:
            pipe.server_gone(silent=silent)
        self.server.restart(run_id)


class Pipe:
    """One connection. A cut loses everything in flight to the process, and part of what is in flight to the server."""

    def __init__(self, network: Network, endpoint: Endpoint, link: str, host: Host) -> None:
        self.link = link
        self.host = host
        self._network = network
        self._endpoint = endpoint
        self._model = network.model(endpoint.name, host.server.name)
        self._up_s = self._down_s = 0.0
        self._alive = True  # for the process
        self._served = True  # for the server
        self._held_up: list[bytes] = []
        self._held_down: list[bytes] = []
        self._session: Session = host.server.connect(self._reply)
        host.pipes.append(self)

    @property
    def session(self) -> Session:
        return self._session

    def write(self, data: bytes) -> None:
        """The process sends bytes to the server."""
        timeline = self._network.timeline
        self._up_s = max(self._up_s + _TINY_S, timeline.now_s + self._model.draw(self._network.rng))
        timeline.after(self._up_s - timeline.now_s, self._reach_server, data)

    def _reach_server(self, data: bytes) -> None:
        if self._network.is_cut(self._endpoint.name, self.host.server.name):
            self._held_up.append(data)
        elif self._served:
            self.host.run(lambda: self._feed(data))

    def _feed(self, data: bytes) -> None:
        if self._served:
            self._session.feed(data)
            if self.host.server.killed:
                self.host.hang_up()

    def _reply(self, data: bytes) -> None:
        timeline = self._network.timeline
        self._down_s = max(self._down_s + _TINY_S, timeline.now_s + self._model.draw(self._network.rng))
        timeline.after(self._down_s - timeline.now_s, self._reach_process, data)

    def _reach_process(self, data: bytes) -> None:
        if self._network.is_cut(self._endpoint.name, self.host.server.name):
            self._held_down.append(data)
        elif self._alive:
            self._endpoint.arrived(self, data)

    def healed(self) -> None:
        """The partition is over: what was held back arrives, in order."""
        up, self._held_up = self._held_up, []
        down, self._held_down = self._held_down, []
        for data in up:
            self._reach_server(data)
        for data in down:
            self._reach_process(data)

    def close(self) -> None:
        """The process closes the connection, or dies."""
        if not self._alive:
            return
        self._alive = False
        self._network.timeline.after(self._model.draw(self._network.rng), self._close_session)

    def cut(self) -> None:
        """The connection breaks: the process notices now, the server some time later."""
        if not self._alive:
            return
        self._alive = False
        self._network.timeline.after(self._network.rng.random() * 0.3, self._close_session)
        self._endpoint.ended(self, "reset")

    def server_gone(self, *, silent: bool) -> None:
        self._served = False
        self._session.close()
        if self._alive and not silent:
            self._network.timeline.after(self._model.draw(self._network.rng), self._see_end)

    def _see_end(self) -> None:
        if self._alive:
            self._alive = False
            self._endpoint.ended(self, "closed by the server")

    def _close_session(self) -> None:
        if self._served:
            self._served = False
            self._session.close()
            if self in self.host.pipes:
                self.host.pipes.remove(self)


class Network:
    """Connects processes and servers: FIFO byte streams with delays, cuts, partitions and stopped servers."""

    def __init__(self, timeline: Timeline, rng: Random) -> None:
        self.timeline = timeline
        self.rng = rng
        self.hosts: dict[str, Host] = {}  # by URL
        self._pipes: list[Pipe] = []
        self._cuts: dict[tuple[str, str], int] = {}
        self._models: dict[tuple[str, str], LinkModel] = {}
        self.slow_connects = 0.0  # share of connections whose first packet is lost

    def add(self, url: str, server: SimServer) -> Host:
        host = self.hosts[url] = Host(server)
        return host

    def remove(self, url: str) -> None:
        """The server ends for good."""
        host = self.hosts.pop(url)
        host.crash(f"{host.server.run_id} gone", silent=False)

    def move(self, url: str, to_url: str) -> None:
        """The server has another address from now on; its other names stay valid."""
        self.hosts[to_url] = self.hosts.pop(url)

    def model(self, process: str, server: str) -> LinkModel:
        """The delays between the two, the same for all their connections; an agent is next to its server."""
        key = (process, server)
        if key not in self._models:
            self._models[key] = LOCAL if process == f"agent {server}" else any_link(self.rng)
        return self._models[key]

    def place(self, process: str, server: str, model: LinkModel) -> None:
        """Set the delays between the two, instead of drawing them."""
        self._models[(process, server)] = model

    def connect(self, endpoint: Endpoint, link: str, url: str, then: Callable[[Pipe | None], None]) -> None:
        """Open a connection; `then` gets the pipe, or None if no server answers there."""
        host = self.hosts.get(url)
        delay_s = self.rng.random() * 0.01
        if self.slow_connects and self.rng.random() < self.slow_connects:
            delay_s += self.rng.choice(_LOST_FIRST_PACKET_S)

        def arrive() -> None:
            reachable = host is not None and host.up and not host.stopped
            if host is None or not reachable or self.is_cut(endpoint.name, host.server.name):
                then(None)
                return
            pipe = Pipe(self, endpoint, link, host)
            self._pipes.append(pipe)
            then(pipe)

        self.timeline.after(delay_s, arrive)

    @property
    def troubled(self) -> bool:
        """Whether a partition lasts, or a server is stopped or dead."""
        return bool(self._cuts) or any(host.stopped or not host.up for host in self.hosts.values())

    # --- partitions

    def is_cut(self, process: str, server: str) -> bool:
        return bool(self._cuts) and (process, server) in self._cuts

    def partition(self, process: str, server: str, for_s: float) -> None:
        key = (process, server)
        self._cuts[key] = self._cuts.get(key, 0) + 1
        self.timeline.after(for_s, self._heal, key)

    def _heal(self, key: tuple[str, str]) -> None:
        self._cuts[key] -= 1
        if self._cuts[key]:
            return
        del self._cuts[key]
        for pipe in self._pipes:
            if (pipe._endpoint.name, pipe.host.server.name) == key:
                pipe.healed()


# --- clocks


WALL_BEGINS_S = 1_600_000_000.0  # Unix time at the beginning of a run: a clock may be set back, but not before 1970


class HostClock:
    """The two clocks of a simulated host: a monotonic one, and a wall clock that people set.

    Machines use the monotonic one, which may run a little fast or slow. Servers expire keys by the wall clock, as
    Valkey does. It may be stepped in either direction at any moment (NTP, a resumed virtual machine, an administrator).
    """

    def __init__(self, timeline: Timeline, drift: float = 0.0) -> None:
        """`drift`: how much the monotonic clock runs fast, as a share of the time."""
        self._timeline = timeline
        self._speed = 1.0 + drift
        self._stepped_s = 0.0

    @property
    def now_s(self) -> float:
        return self._timeline.now_s * self._speed

    def wall_s(self) -> float:
        return WALL_BEGINS_S + self._timeline.now_s + self._stepped_s

    def step(self, by_s: float) -> None:
        self._stepped_s += by_s
