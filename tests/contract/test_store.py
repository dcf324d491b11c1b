"""The contract of a store: a leader's term, and a map that changes as a whole or not at all. Every store keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

import pytest

from nearcast.errors import ClusterError, ConnectFailed
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.runtime.store import Store
from nearcast.runtime.store.memory import MemoryStore
from nearcast.runtime.store.valkey import ValkeyStore

LEASE_S = 0.15


class Bench(Protocol):
    """One empty store, as several processes see it."""

    def run(self, scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None: ...

    def open(self) -> Store: ...

    async def wait(self, seconds: float) -> None: ...


class MemoryBench:
    def __init__(self) -> None:
        self._now_s = 100.0
        self._store = MemoryStore(lambda: self._now_s)

    def run(self, scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(scenario(self))

    def open(self) -> Store:
        return self._store

    async def wait(self, seconds: float) -> None:
        self._now_s += seconds


class ValkeyBench:
    def __init__(self, runner: asyncio.Runner, server: LocalServer) -> None:
        self._runner = runner
        self._server = server
        self._opened: list[Store] = []

    def run(self, scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
        self._runner.run(self._run(scenario))

    async def _run(self, scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
        requester = Requester(self._server.url)
        await requester.ask("FLUSHALL")
        await requester.close()
        try:
            await scenario(self)
        finally:
            await asyncio.gather(*(store.close() for store in self._opened))

    def open(self) -> Store:
        store = ValkeyStore(self._server.url)
        self._opened.append(store)
        return store

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[asyncio.Runner, LocalServer]]:
    with asyncio.Runner() as runner:
        server = runner.run(LocalServer.start(name="store"))
        yield runner, server
        runner.run(server.stop())


@pytest.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.live)])
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param == "memory":
        return MemoryBench()
    return ValkeyBench(*request.getfixturevalue("server"))


# --- leading


def test_the_first_candidate_leads_and_stays_so_while_it_renews(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        terms = [await store.campaign("c1", LEASE_S)]
        for _ in range(4):
            await bench.wait(LEASE_S / 2)
            terms.append(await store.campaign("c1", LEASE_S))
        assert terms[0] is not None
        assert terms == terms[:1] * 5

    bench.run(scenario)


def test_another_candidate_waits_until_the_lease_has_run_out(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        one, two = bench.open(), bench.open()
        first = await one.campaign("c1", LEASE_S)
        assert await two.campaign("c2", LEASE_S) is None
        await bench.wait(LEASE_S * 1.2)
        second = await two.campaign("c2", LEASE_S)
        assert first is not None
        assert second is not None
        assert second > first
        assert await one.campaign("c1", LEASE_S) is None

    bench.run(scenario)


def test_asking_in_vain_does_not_shorten_or_prolong_a_lease(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        one, two = bench.open(), bench.open()
        await one.campaign("c1", LEASE_S)
        await bench.wait(LEASE_S * 0.6)
        assert await two.campaign("c2", 100 * LEASE_S) is None
        await bench.wait(LEASE_S * 0.6)
        assert await two.campaign("c2", LEASE_S) is not None

    bench.run(scenario)


def test_a_leader_that_was_late_gets_a_new_term(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        first = await store.campaign("c1", LEASE_S)
        await bench.wait(LEASE_S * 1.2)
        second = await store.campaign("c1", LEASE_S)
        assert first is not None
        assert second is not None
        assert second > first

    bench.run(scenario)


def test_of_many_candidates_at_once_one_leads(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        stores = [bench.open() for _ in range(5)]
        campaigns = (store.campaign(f"c{number}", 10.0) for number, store in enumerate(stores))
        terms = await asyncio.gather(*campaigns)
        assert len([term for term in terms if term is not None]) == 1

    bench.run(scenario)


# --- the map


def test_a_new_store_is_empty(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.open().load() == (0, {})

    bench.run(scenario)


def test_a_commit_is_seen_by_all_and_raises_the_version_by_one(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        one, two = bench.open(), bench.open()
        term = await one.campaign("c1", 10.0)
        assert term is not None
        assert await one.commit(0, term, {"a": b"1", "größe": b"\xff\x00\r\n"}) is True
        assert await one.commit(1, term, {"a": b"2", "b": b""}) is True
        assert await two.load() == (2, {"a": b"2", "b": b"", "größe": b"\xff\x00\r\n"})

    bench.run(scenario)


def test_an_empty_commit_raises_the_version_too(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        term = await store.campaign("c1", 10.0)
        assert term is not None
        assert await store.commit(0, term, {}) is True
        assert await store.load() == (1, {})

    bench.run(scenario)


# The store is at version 1; terms are told by their distance from the newest.
@pytest.mark.parametrize(("version", "term"), [(0, 0), (2, 0), (1, -1), (1, 1), (0, 1)])
def test_a_commit_with_a_wrong_version_or_term_changes_nothing(bench: Bench, version: int, term: int) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        newest = await store.campaign("c1", 10.0)
        assert newest is not None
        assert await store.commit(0, newest, {"a": b"1"}) is True
        assert await store.commit(version, newest + term, {"a": b"2", "b": b"2"}) is False
        assert await store.load() == (1, {"a": b"1"})

    bench.run(scenario)


def test_nobody_commits_before_anybody_leads(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        assert await store.commit(0, 1, {"a": b"1"}) is False
        assert await store.load() == (0, {})

    bench.run(scenario)


def test_a_deposed_leader_commits_nothing(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        one, two = bench.open(), bench.open()
        former = await one.campaign("c1", LEASE_S)
        await bench.wait(LEASE_S * 1.2)
        present = await two.campaign("c2", 10.0)
        assert former is not None
        assert present is not None
        assert await one.commit(0, former, {"a": b"1"}) is False
        assert await two.commit(0, present, {"a": b"2"}) is True
        assert await one.load() == (1, {"a": b"2"})

    bench.run(scenario)


def test_of_two_commits_on_one_version_one_is_made(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        stores = [bench.open() for _ in range(5)]
        term = await stores[0].campaign("c1", 10.0)
        assert term is not None
        commits = (store.commit(0, term, {"winner": b"%d" % number}) for number, store in enumerate(stores))
        made = await asyncio.gather(*commits)
        assert sorted(made) == [False] * 4 + [True]
        assert await stores[0].load() == (1, {"winner": b"%d" % made.index(True)})

    bench.run(scenario)


def test_a_large_commit_is_made_whole(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        term = await store.campaign("c1", 10.0)
        assert term is not None
        changes = {f"topic/{number}": b"x" * 100 for number in range(5000)}
        assert await store.commit(0, term, changes) is True
        assert await store.load() == (1, changes)

    bench.run(scenario)


def test_version_and_entries_are_of_one_moment(bench: Bench) -> None:
    """Each commit writes its own number into two entries: a torn read would show two numbers, or another version."""

    async def scenario(bench: Bench) -> None:
        writer, reader = bench.open(), bench.open()
        term = await writer.campaign("c1", 10.0)
        assert term is not None

        async def write() -> None:
            for version in range(200):
                number = b"%d" % (version + 1)
                assert await writer.commit(version, term, {"a": number, "b": number})

        writing = asyncio.create_task(write())
        seen = set()
        while not writing.done():
            version, entries = await reader.load()
            assert entries.get("a", b"0") == entries.get("b", b"0") == b"%d" % version
            seen.add(version)
            await asyncio.sleep(0)
        await writing
        assert seen

    bench.run(scenario)


def test_what_was_loaded_is_a_copy(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        _, entries = await store.load()
        entries["a"] = b"1"
        assert await store.load() == (0, {})

    bench.run(scenario)


# --- what only a server can do


@pytest.mark.live
def test_a_store_that_is_away_is_said_to_be_away() -> None:
    async def scenario() -> None:
        server = await LocalServer.start()
        store = ValkeyStore(server.url)
        assert await store.load() == (0, {})
        await server.stop()
        with pytest.raises(ConnectFailed, match=f"{server.url}"):
            await store.load()
        await store.close()

    asyncio.run(scenario())


@pytest.mark.live
def test_a_store_that_refuses_says_why(server: tuple[asyncio.Runner, LocalServer]) -> None:
    runner, local = server

    async def scenario() -> None:
        requester, store = Requester(local.url), ValkeyStore(local.url)
        await requester.ask("FLUSHALL")
        await requester.ask("SET", "nc:store", "not a hash")
        with pytest.raises(ClusterError, match=r"the store refused: .*WRONGTYPE"):
            await store.load()
        await requester.close()
        await store.close()

    runner.run(scenario())
