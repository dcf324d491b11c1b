"""A whole cluster on this machine, of real processes: servers, agents, controllers.

For tests, demos, benchmarks and `nearcast up`. Each part can be killed and restarted on its own:

    async with await LocalCluster.start(brokers=3) as cluster:
        client = await nearcast.connect(cluster.urls["b1"])
        await cluster.kill_server("b2")

None of its processes outlives this program, even if the program is killed with SIGKILL: the guardian
(runtime/guardian.py) ends them.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from nearcast.core.model.journal import BrokerState
from nearcast.core.model.names import CLAIM_KEY, READY_KEY, WANTED
from nearcast.errors import ClusterError, ServerFailed, UsageError
from nearcast.runtime.console import Console
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.testing.following import until_follows
from nearcast.testing.process import LocalProcess

DEFAULT_SITE = "local"
_MEMBERS_WAIT_S = 20.0
_MEMBERS_POLL_S = 0.05
_GRANT_POLL_S, _GRANT_POLLS = 0.01, 40
_LOG_LINES_SHOWN = 6


# From a broker's name and the store's URL to the URL that its agent is given: one that leads through an emulated link.
StoreFor = Callable[[str, str], Awaitable[str]]


@dataclass
class _Broker:
    site: str
    server: LocalServer
    agent: LocalProcess
    gateway: str = ""  # host:port
    replicas: tuple[LocalServer, ...] = ()


# --- the cluster


class LocalCluster:
    """One store server, brokers by name, controllers by number. Make one with `await LocalCluster.start()`."""

    def __init__(self, store: LocalServer, folder: Path, capacity_bytes_per_s: float = 0.0) -> None:
        self._store = store
        self._folder = folder
        self._capacity_bytes_per_s = capacity_bytes_per_s
        self._brokers: dict[str, _Broker] = {}
        self._controllers: list[LocalProcess] = []
        self._console = Console(store.url)
        self._gateways = False
        self._replicas = 0
        self._positions: dict[str, tuple[float, float]] = {}
        self._store_for: StoreFor | None = None
        self._emulated = False

    @classmethod
    async def start(
        cls,
        brokers: int | Sequence[str] = 3,
        *,
        sites: Mapping[str, str] | None = None,
        controllers: int = 1,
        controller_options: Sequence[str] = (),
        capacity_bytes_per_s: float = 0.0,
        first_port: int | None = None,
        gateways: bool = False,
        positions: Mapping[str, tuple[float, float]] | None = None,
        replicas: int = 0,
        store_for: StoreFor | None = None,
        emulated: bool = False,
    ) -> Self:
        """Start a cluster and return when all its brokers are members.

        `brokers`: their names, or how many (b1, b2, ...). `sites`: sites by broker; the others are at `local`.
        `controller_options`: for `nearcast controller`, such as a policy. `capacity_bytes_per_s`: of each broker.
        `first_port`: the store's port; brokers get the ports after it. None: any free ports.
        `gateways`: whether each agent runs a gateway, see `gateway_urls`.
        `positions`: latitude and longitude of gateways by broker. `replicas`: of each broker's server.
        `store_for`: how agents reach the store, if not directly. `emulated`: agents measure each other when they are
        placed on an emulated network.
        """
        names = [f"b{number}" for number in range(1, brokers + 1)] if isinstance(brokers, int) else list(brokers)
        if not names or controllers < 1:
            raise UsageError("a cluster needs at least one broker and one controller")
        store = await LocalServer.start(name="store", port=first_port)
        cluster = cls(store, Path(tempfile.mkdtemp(prefix="nearcast-cluster-")), capacity_bytes_per_s)
        cluster._gateways, cluster._replicas = gateways, replicas
        cluster._positions, cluster._store_for, cluster._emulated = dict(positions or {}), store_for, emulated
        try:
            await cluster._start_controllers(controllers, controller_options)
            for number, name in enumerate(names, start=1):
                port = first_port + number if first_port is not None else None
                await cluster.start_broker(name, (sites or {}).get(name, DEFAULT_SITE), port)
            await cluster.until_members()
            await asyncio.gather(*(until_follows(replica.url) for replica in cluster._all_replicas()))
        except BaseException:
            await cluster.stop()
            raise
        return cluster

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End all processes: first controllers, then agents, then servers."""
        try:
            await self._console.close()
            await asyncio.gather(*(controller.stop() for controller in self._controllers))
            await asyncio.gather(*(broker.agent.stop() for broker in self._brokers.values()))
            servers = [self._store, *(broker.server for broker in self._brokers.values()), *self._all_replicas()]
            await asyncio.gather(*(server.stop() for server in servers))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- what there is

    @property
    def urls(self) -> dict[str, str]:
        """The brokers' URLs by name: any of them is enough for `nearcast.connect`."""
        return {name: broker.server.url for name, broker in self._brokers.items()}

    @property
    def gateway_urls(self) -> dict[str, str]:
        """Where subscribers log in, by broker; empty in a cluster without gateways."""
        return {name: f"http://{broker.gateway}" for name, broker in self._brokers.items() if broker.gateway}

    @property
    def store_url(self) -> str:
        return self._store.url

    @property
    def pids(self) -> dict[str, int]:
        """The pid of every process by name: `store`, `server-b1`, `agent-b1`, `controller-0`, ..."""
        return {name: part.pid for name, part in self._parts().items()}

    @property
    def ended(self) -> list[str]:
        """The processes that do not run, by the names of `pids`."""
        return [name for name, part in self._parts().items() if not part.alive]

    async def console(self) -> Console:
        """A console for state and moves. The cluster closes it."""
        return await self._console.__aenter__()

    def _parts(self) -> dict[str, LocalServer | LocalProcess]:
        parts: dict[str, LocalServer | LocalProcess] = {"store": self._store}
        for name, broker in self._brokers.items():
            parts[f"server-{name}"] = broker.server
            parts |= {replica.name: replica for replica in broker.replicas}
        for process in self._processes():
            parts[process.name] = process
        return parts

    def _all_replicas(self) -> list[LocalServer]:
        return [replica for broker in self._brokers.values() for replica in broker.replicas]

    def _processes(self) -> list[LocalProcess]:
        return [*(broker.agent for broker in self._brokers.values()), *self._controllers]

    # --- brokers

    async def add_broker(self, name: str, site: str = DEFAULT_SITE) -> None:
        """Start one more broker and return when it is a member."""
        await self.start_broker(name, site)
        await self.until_members([name])

    async def remove_broker(self, name: str) -> None:
        """End the agent, then the server. If the broker carries topics, drain it first."""
        broker = self._broker(name)
        await broker.agent.stop()
        await asyncio.gather(*(server.stop() for server in (broker.server, *broker.replicas)))
        del self._brokers[name]

    async def kill_server(self, broker: str) -> None:
        """Kill it with SIGKILL, and return when the process has ended."""
        server = self._broker(broker).server
        server.kill()
        await server.wait()

    async def restart_server(self, broker: str) -> None:
        """Start an empty server on the same port, which the agent finds; the old one is killed if it still runs."""
        await self.kill_server(broker)
        before = self._broker(broker).server
        await before.stop()  # removes its files
        self._broker(broker).server = await LocalServer.start(name=before.name, port=before.port)

    async def kill_agent(self, broker: str) -> None:
        await self._broker(broker).agent.kill()

    async def restart_agent(self, broker: str) -> None:
        """Kill and restart the agent. It may not work yet when this returns: `until_members()` waits for that."""
        found = self._broker(broker)
        await found.agent.kill()
        found.agent = await self._start_agent(broker, found.site, found.server, found.gateway, found.replicas)

    async def start_broker(self, name: str, site: str = DEFAULT_SITE, port: int | None = None) -> None:
        """Start a server and its agent, and do not wait until they have joined."""
        if name in self._brokers:
            raise UsageError(f"the cluster already has a broker {name!r}: choose another name")
        server = await LocalServer.start(name=f"server-{name}", port=port)
        gateway = _free_address() if self._gateways else ""
        replicas: list[LocalServer] = []
        try:
            for number in range(1, self._replicas + 1):
                replicas.append(await LocalServer.start(name=f"replica-{name}-{number}"))
            agent = await self._start_agent(name, site, server, gateway, tuple(replicas))
        except BaseException:
            await asyncio.gather(*(each.stop() for each in (server, *replicas)))
            raise
        self._brokers[name] = _Broker(site, server, agent, gateway, tuple(replicas))

    async def _start_agent(
        self, name: str, site: str, server: LocalServer, gateway: str, replicas: tuple[LocalServer, ...]
    ) -> LocalProcess:
        store_url = await self._store_for(name, self.store_url) if self._store_for else self.store_url
        arguments = ["agent", "--broker", name, "--site", site, "--server", server.url, "--store", store_url]
        arguments += ["--server-pid", str(server.pid)]
        if self._emulated:
            arguments += ["--probe-via", str(self.detours(name))]
        for replica in replicas:
            arguments += ["--replica", replica.url]
        if self._capacity_bytes_per_s:
            arguments += ["--capacity", str(self._capacity_bytes_per_s)]
        if gateway:
            arguments += ["--gateway", gateway, "--allow", "publish:*", "--allow", "subscribe:*"]
        if name in self._positions:
            arguments += ["--position", "{},{}".format(*self._positions[name])]
        return await LocalProcess.start(f"agent-{name}", arguments, self._folder)

    def detours(self, broker: str) -> Path:
        """Where its agent looks for the addresses of other agents, if it is to be on an emulated network."""
        return self._folder / f"detours-{broker}.json"

    def _broker(self, name: str) -> _Broker:
        if name not in self._brokers:
            raise UsageError(f"no broker {name!r} in this cluster: it has {', '.join(self._brokers)}")
        return self._brokers[name]

    # --- controllers

    async def kill_controller(self, number: int) -> None:
        await self._controllers[number].kill()

    async def restart_controller(self, number: int) -> None:
        self._controllers[number] = await self._controllers[number].again()

    async def _start_controllers(self, count: int, options: Sequence[str]) -> None:
        for number in range(count):
            arguments = ["controller", "--store", self.store_url, *options]
            self._controllers.append(await LocalProcess.start(f"controller-{number}", arguments, self._folder))

    # --- the store

    async def lose_store(self) -> None:
        """Kill the store's server with SIGKILL, and start an empty one on the same port. Its data was not on disk."""
        before = self._store
        before.kill()
        await before.stop()
        self._store = await LocalServer.start(name=before.name, port=before.port)

    # --- all of them

    def pause(self) -> None:
        """Stop agents and controllers with SIGSTOP. Leases end soon: call `resume()` within a second."""
        for process in self._processes():
            process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        for process in self._processes():
            process.signal(signal.SIGCONT)

    async def until_members(self, brokers: Iterable[str] | None = None, timeout_s: float = _MEMBERS_WAIT_S) -> None:
        """Return when these brokers (default: all) are members with grants; raise, with log lines, if they are not."""
        wanted = set(self._brokers if brokers is None else brokers)
        missing = wanted
        try:
            async with asyncio.timeout(timeout_s):
                while missing := wanted - await self._members():
                    ended = self._ended_but_needed(missing)
                    if ended:
                        raise self._failure(f"{', '.join(ended)} ended")
                    await asyncio.sleep(_MEMBERS_POLL_S)
        except TimeoutError:
            raise self._failure(f"{', '.join(sorted(missing))} did not join within {timeout_s:g} s") from None

    async def _members(self) -> set[str]:
        try:
            state = await self._console.overview(timeout_s=1.0)
        except ClusterError:
            return set()  # no controller leads yet
        members = [name for name, view in state.brokers.items() if view.state == BrokerState.MEMBER and view.alive]
        return {name for name in members if name in self._brokers and await self._serves(name)}

    async def _serves(self, broker: str) -> bool:
        """Whether the server is ready and its beats are granted, and its gateway, if it has one, answers.

        The members that the controller reports are not enough: it may not have noticed a restart yet.
        """
        found = self._broker(broker)
        if found.gateway and not await _answers(found.gateway):
            return False
        requester = Requester(found.server.url)
        try:
            return bool(await requester.ask("EXISTS", READY_KEY)) and await _is_granted(requester)
        except ClusterError:
            return False
        finally:
            await requester.close()

    def _ended_but_needed(self, brokers: set[str]) -> list[str]:
        """Processes that have ended, but which these brokers need to join. One controller of several may be dead."""
        agents = [self._broker(name).agent for name in sorted(brokers)]
        needed = agents if any(controller.alive for controller in self._controllers) else self._processes()
        return [process.name for process in needed if not process.alive]

    def _failure(self, what: str) -> ServerFailed:
        shown = [f"the local cluster: {what}; the last log lines:"]
        for process in self._processes():
            lines = process.last_lines(_LOG_LINES_SHOWN) or ["(none)"]
            shown += [f"  {process.name}: {line}" for line in lines]
        return ServerFailed("\n".join(shown))


async def _is_granted(requester: Requester) -> bool:
    """Whether the leader grants a beat that the agent makes after this question."""
    beat = await _number(requester, "beat")
    await requester.ask("PUBLISH", WANTED, "")
    for _ in range(_GRANT_POLLS):
        if await _number(requester, "granted") > beat:
            return True
        await asyncio.sleep(_GRANT_POLL_S)
    return False


async def _number(requester: Requester, field: str) -> int:
    found = await requester.ask("HGET", CLAIM_KEY, field)
    return int(found) if isinstance(found, bytes) else 0


async def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


def _free_address() -> str:
    """A free address for a gateway, which keeps it when its agent is restarted."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
