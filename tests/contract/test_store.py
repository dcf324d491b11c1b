"""The contract of a store: a leader's term, and a map that changes as a whole or not at all. Every store keeps it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

import pytest

from nearcast.core.controller.effects import Leadership
from nearcast.errors import ClusterError, ConnectFailed
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.runtime.store import MemoryStore, Store, ValkeyStore


async def lead(store: Store, candidate: str, stale: str = "") -> int | None:
    return (await store.campaign(candidate, stale)).term


async def loaded(store: Store) -> tuple[int, dict[str, bytes]]:
    entries: dict[str, bytes] = {}
    version = await store.load(entries.update)
    return version, entries


class Bench(Protocol):
    """One empty store, as several processes see it."""

    def run(self, scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None: ...

    def open(self) -> Store: ...


class MemoryBench:
    def __init__(self) -> None:
        self._store = MemoryStore()

    def run(self, scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(scenario(self))

    def open(self) -> Store:
        return self._store


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
        campaigns = [await store.campaign("c1", "") for _ in range(5)]
        assert {answer.term for answer in campaigns} == {campaigns[0].term}
        assert campaigns[0].term is not None
        assert len({answer.held for answer in campaigns}) == 5, "each renewal shows"

    bench.run(scenario)


def test_another_candidate_leads_only_if_it_knows_how_the_leadership_is_held(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        one, two = bench.open(), bench.open()
        first = await lead(one, "c1")
        seen = await two.campaign("c2", "")
        assert seen.term is None
        await one.campaign("c1", "")
        assert await lead(two, "c2", seen.held) is None, "it was renewed meanwhile"
        seen = await two.campaign("c2", "")
        second = await lead(two, "c2", seen.held)
        assert first is not None
        assert second is not None
        assert second > first
        assert await lead(one, "c1") is None

    bench.run(scenario)


def test_asking_in_vain_changes_nothing(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        one, two = bench.open(), bench.open()
        held = (await one.campaign("c1", "")).held
        assert [await two.campaign("c2", "") for _ in range(3)] == [Leadership(None, held, 0)] * 3

    bench.run(scenario)


def test_a_new_term_is_above_all_that_anybody_has_heard_of(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        first = await store.campaign("c1", "", above=41)
        assert first.term == 42
        assert (await store.campaign("c1", "", above=90)).term == 42, "who leads stays in its term"
        assert (await store.campaign("c2", first.held, above=7)).term is None
        await store.resign("c1")
        assert (await store.campaign("c2", "", above=7)).term == 43

    bench.run(scenario)


def test_a_campaign_tells_how_many_commits_there_were(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        term = await lead(store, "c1")
        assert term is not None
        for version in range(3):
            assert (await store.campaign("c1", "")).version == version
            assert await store.commit(version, term, {"a": b"1"})

    bench.run(scenario)


def test_who_resigns_is_followed_at_once(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        one, two = bench.open(), bench.open()
        first = await lead(one, "c1")
        await two.resign("c2")
        assert await lead(two, "c2") is None, "only who leads can resign"
        await one.resign("c1")
        second = await lead(two, "c2")
        assert first is not None
        assert second is not None
        assert second > first
        assert await one.commit(0, first, {"a": b"1"}) is False

    bench.run(scenario)


def test_of_many_candidates_at_once_one_leads(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        stores = [bench.open() for _ in range(5)]
        campaigns = (lead(store, f"c{number}") for number, store in enumerate(stores))
        terms = await asyncio.gather(*campaigns)
        assert len([term for term in terms if term is not None]) == 1

    bench.run(scenario)


# --- the map


def test_a_new_store_is_empty(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        assert await loaded(bench.open()) == (0, {})

    bench.run(scenario)


def test_a_commit_is_seen_by_all_and_raises_the_version_by_one(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        one, two = bench.open(), bench.open()
        term = await lead(one, "c1")
        assert term is not None
        assert await one.commit(0, term, {"a": b"1", "größe": b"\xff\x00\r\n"}) is True
        assert await one.commit(1, term, {"a": b"2", "b": b""}) is True
        assert await loaded(two) == (2, {"a": b"2", "b": b"", "größe": b"\xff\x00\r\n"})

    bench.run(scenario)


def test_an_empty_commit_raises_the_version_too(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        term = await lead(store, "c1")
        assert term is not None
        assert await store.commit(0, term, {}) is True
        assert await loaded(store) == (1, {})

    bench.run(scenario)


# The store is at version 1; terms are told by their distance from the newest.
@pytest.mark.parametrize(("version", "term"), [(0, 0), (2, 0), (1, -1), (1, 1), (0, 1)])
def test_a_commit_with_a_wrong_version_or_term_changes_nothing(bench: Bench, version: int, term: int) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        newest = await lead(store, "c1")
        assert newest is not None
        assert await store.commit(0, newest, {"a": b"1"}) is True
        assert await store.commit(version, newest + term, {"a": b"2", "b": b"2"}) is False
        assert await loaded(store) == (1, {"a": b"1"})

    bench.run(scenario)


def test_nobody_commits_before_anybody_leads(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        assert await store.commit(0, 1, {"a": b"1"}) is False
        assert await loaded(store) == (0, {})

    bench.run(scenario)


def test_a_deposed_leader_commits_nothing(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        one, two = bench.open(), bench.open()
        former = await lead(one, "c1")
        await one.resign("c1")
        present = await lead(two, "c2")
        assert former is not None
        assert present is not None
        assert await one.commit(0, former, {"a": b"1"}) is False
        assert await two.commit(0, present, {"a": b"2"}) is True
        assert await loaded(one) == (1, {"a": b"2"})

    bench.run(scenario)


def test_of_two_commits_on_one_version_one_is_made(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        stores = [bench.open() for _ in range(5)]
        term = await lead(stores[0], "c1")
        assert term is not None
        commits = (store.commit(0, term, {"winner": b"%d" % number}) for number, store in enumerate(stores))
        made = await asyncio.gather(*commits)
        assert sorted(made) == [False] * 4 + [True]
        assert await loaded(stores[0]) == (1, {"winner": b"%d" % made.index(True)})

    bench.run(scenario)


def test_a_large_commit_is_made_whole(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        term = await lead(store, "c1")
        assert term is not None
        changes = {f"topic/{number}": b"x" * 100 for number in range(5000)}
        assert await store.commit(0, term, changes) is True
        assert await loaded(store) == (1, changes)

    bench.run(scenario)


def test_version_and_entries_are_of_one_moment(bench: Bench) -> None:
    """Each commit writes its own number into two entries: a torn read would show two numbers, or another version."""

    async def scenario(bench: Bench) -> None:
        writer, reader = bench.open(), bench.open()
        term = await lead(writer, "c1")
        assert term is not None

        async def write() -> None:
            for version in range(200):
                number = b"%d" % (version + 1)
                assert await writer.commit(version, term, {"a": number, "b": number})
                await asyncio.sleep(0.02 if version % 20 == 0 else 0)  # so that some are read between two commits

        writing = asyncio.create_task(write())
        seen = set()
        while not writing.done():
            with contextlib.suppress(ClusterError):  # it changed meanwhile
                version, entries = await loaded(reader)
                assert entries.get("a", b"0") == entries.get("b", b"0") == b"%d" % version
                seen.add(version)
            await asyncio.sleep(0.001)  # the writer has its turn
        await writing
        assert seen

    bench.run(scenario)


def test_what_was_loaded_is_a_copy(bench: Bench) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.open()
        entries: dict[str, bytes] = {}
        await store.load(lambda part: entries.update(part))
        entries["a"] = b"1"
        assert await loaded(store) == (0, {})

    bench.run(scenario)


# --- what only a server can do


@pytest.mark.live
def test_a_store_that_is_away_is_said_to_be_away() -> None:
    async def scenario() -> None:
        server = await LocalServer.start()
        store = ValkeyStore(server.url)
        assert await loaded(store) == (0, {})
        await server.stop()
        with pytest.raises(ConnectFailed, match=f"{server.url}"):
            await loaded(store)
        await store.close()

    asyncio.run(scenario())


@pytest.mark.live
def test_a_journal_that_changes_while_it_is_read_is_not_taken(server: tuple[asyncio.Runner, LocalServer]) -> None:
    runner, local = server

    async def scenario() -> None:
        requester, store = Requester(local.url), ValkeyStore(local.url)
        await requester.ask("FLUSHALL")
        term = await lead(store, "c1")
        assert term is not None
        await store.commit(0, term, {f"topic/{number}": b"x" for number in range(5000)})
        parts: list[dict[str, bytes]] = []
        changed = asyncio.Event()

        async def change() -> None:
            await changed.wait()
            await requester.ask("INCR", "nc:store:version")

        def take(part: dict[str, bytes]) -> None:
            parts.append(part)
            changed.set()

        changing = asyncio.create_task(change())
        with pytest.raises(ClusterError, match="the journal changed while it was read"):
            await store.load(take)
        await changing
        assert len(parts) > 1
        await requester.close()
        await store.close()

    runner.run(scenario())


@pytest.mark.live
def test_a_store_that_refuses_says_why(server: tuple[asyncio.Runner, LocalServer]) -> None:
    runner, local = server

    async def scenario() -> None:
        requester, store = Requester(local.url), ValkeyStore(local.url)
        await requester.ask("FLUSHALL")
        await requester.ask("SET", "nc:store", "not a hash")
        with pytest.raises(ClusterError, match=r"the store refused: .*WRONGTYPE"):
            await loaded(store)
        await requester.close()
        await store.close()

    runner.run(scenario())
