"""The ACL rules of docs/security.md, and servers and clusters that allow nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from nearcast.agent.process import Agent
from nearcast.core.agent.machine import Identity
from nearcast.errors import ClusterError
from nearcast.runtime.console import Console
from nearcast.runtime.controller import Controller
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.testing.waiting import until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
BROKERS, STORE = "Rights on the servers of brokers", "Rights on the store's server"
PASSWORD = "PASSWORD"  # as the page writes it
FORM_S = 60.0  # on a busy machine

_ADMIN = ("admin", "on", ">admin", "~*", "&*", "+@all")


class Rule(NamedTuple):
    """One `ACL SETUSER`: the first of a user makes it, others add to it."""

    user: str
    parts: tuple[str, ...]


def rules_of(text: str, heading: str) -> list[Rule]:
    """The rules in the blocks of one section, lines that go on joined."""
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    commands = re.split(r"^ACL SETUSER ", "".join(blocks), flags=re.MULTILINE)
    assert not commands[0].strip(), f"not a rule: {commands[0]!r}"
    return [Rule(user, tuple(parts)) for user, *parts in (command.split() for command in commands[1:])]


async def guarded_server(name: str, heading: str) -> LocalServer:
    """A server with the users of one section of the page, and nobody else but an admin."""
    server = await LocalServer.start(name=name)
    requester = Requester(server.url)
    await requester.ask("ACL", "SETUSER", *_ADMIN)
    for rule in rules_of(PAGE.read_text(encoding="utf-8"), heading):
        answer = await requester.ask("ACL", "SETUSER", rule.user, *rule.parts)
        assert answer == b"OK", (rule, answer)
    await requester.ask("ACL", "SETUSER", "default", "off", "resetpass")
    await requester.close()
    return server


class Guarded(NamedTuple):
    brokers: dict[str, LocalServer]
    store: LocalServer
    replicas: tuple[LocalServer, ...] = ()


@contextlib.asynccontextmanager
async def guarded_cluster(*, replicas: bool = False) -> AsyncIterator[Guarded]:
    """Two brokers and a store with the page's rules, a controller and agents; and a replica of each broker's server."""
    store, b1, b2 = await asyncio.gather(
        guarded_server("store", STORE), guarded_server("b1", BROKERS), guarded_server("b2", BROKERS)
    )
    brokers = {"b1": b1, "b2": b2}
    copies = {name: await guarded_server(f"{name}-replica", BROKERS) for name in (brokers if replicas else ())}
    identities = {
        name: Identity(name, server.url, replicas=(copies[name].url,) if replicas else ())
        for name, server in brokers.items()
    }
    agents = [Agent(identities[name], url(server, "agent"), url(store, "agent")) for name, server in brokers.items()]
    parts = [Controller(url(store, "controller")), *agents]
    for part in parts:
        await part.start()
    await until(lambda: _are_members(url(store, "operator"), set(brokers)), "all are members", FORM_S)
    yield Guarded(brokers, store, tuple(copies.values()))
    for part in parts:
        await part.stop()
    await asyncio.gather(*(server.stop() for server in (*brokers.values(), *copies.values(), store)))


async def _are_members(store: str, wanted: set[str]) -> bool:
    with contextlib.suppress(ClusterError):  # nobody leads yet, or has ever led
        async with Console(store) as console:
            brokers = (await console.state(timeout_s=1.0)).brokers
        return {name for name, view in brokers.items() if view.state == "member"} == wanted
    return False


def url(server: LocalServer, user: str, password: str = PASSWORD) -> str:
    return f"redis://{user}:{password}@127.0.0.1:{server.port}"


async def as_admin(server: LocalServer, *parts: str) -> object:
    requester = Requester(url(server, "admin", "admin"))
    try:
        return await requester.ask(*parts)
    finally:
        await requester.close()


async def refusals(server: LocalServer) -> list[str]:
    """What the server has refused to whom, and forgotten now."""
    entries = await as_admin(server, "ACL", "LOG")
    assert isinstance(entries, list)
    await as_admin(server, "ACL", "LOG", "RESET")
    said = [{_text(key): _text(value) for key, value in _pairs(entry)} for entry in entries]
    return [f"{server.name}: {one['username']}: {one['reason']} {one['object']}" for one in said]


def _pairs(entry: object) -> list[tuple[object, object]]:
    if isinstance(entry, dict):
        return list(entry.items())
    assert isinstance(entry, list)
    return list(zip(entry[::2], entry[1::2], strict=True))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
