"""The scripts of collectors on a real server: one lease, nothing appended twice, holes told, the stream bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nearcast.agent.feed_buffer import APPEND, CLAIM, COLLECT, GONE, IDLE, NOT_OURS, RELEASE, STANDBY
from nearcast.core.model.names import FEEDS, feed_keys
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer

pytestmark = pytest.mark.live

KEYS = feed_keys("f")
Entry = tuple[str, ...]


class Feed:
    """What agents do to one feed."""

    def __init__(self, store: Requester) -> None:
        self.ask = store.ask

    async def claim(self, agent: str, whole_ms: int = 0) -> int:
        keys = (FEEDS, KEYS.lease, KEYS.standby, KEYS.state)
        role, _, self.until_ms = await self.ask("EVAL", CLAIM, 4, *keys, "f", agent, 60_000, whole_ms)  # type: ignore[misc]
        return int(role)

    async def append(self, agent: str, *entries: Entry, records: int = 1000, size: int = 1 << 30) -> object:
        keys = (FEEDS, KEYS.lease, KEYS.state, KEYS.stream, KEYS.lines, KEYS.older_lines)
        limits = (60_000, records, size, 600_000)
        return await self.ask("EVAL", APPEND, 6, *keys, "f", agent, *limits, *(p for entry in entries for p in entry))

    async def release(self, agent: str) -> None:
        await self.ask("EVAL", RELEASE, 2, KEYS.lease, KEYS.standby, agent)

    async def stream(self) -> list[str]:
        reply = await self.ask("XRANGE", KEYS.stream, "-", "+")
        assert isinstance(reply, list)
        found = []
        for _, flat in reply:
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            found.append((fields.get(b"payload") or b"gap: " + fields[b"text"]).decode())
        return found


def message(sequence: int, publisher: str = "7", topic: str = "t") -> Entry:
    return "m", topic, publisher, str(sequence), "1.5", f"{topic}/{publisher}/{sequence}"


def on_a_server(scenario: Callable[[Feed], Awaitable[None]]) -> None:
    async def run() -> None:
        async with await LocalServer.start() as server:
            store = Requester(server.url)
            await store.ask("HSET", FEEDS, "f", "{}")
            await scenario(Feed(store))
            await store.close()

    asyncio.run(run())


def test_one_collects_one_stands_by_and_takes_over_first() -> None:
    async def scenario(feed: Feed) -> None:
        assert [await feed.claim(agent) for agent in ("a", "b", "c", "a", "b")] == [
            *(COLLECT, STANDBY, IDLE, COLLECT, STANDBY),
        ]
        assert feed.until_ms == 0
        await feed.claim("a", whole_ms=123)
        await feed.claim("b", whole_ms=999)  # not hers to say
        await feed.ask("DEL", KEYS.lease)  # as at the end of the lease
        assert await feed.claim("c") == IDLE
        assert await feed.claim("b") == COLLECT
        assert feed.until_ms == 123
        assert await feed.claim("a") == STANDBY
        await feed.release("b")
        await feed.release("c")
        assert await feed.claim("a") == COLLECT
        await feed.ask("HDEL", FEEDS, "f")
        assert await feed.claim("a") == GONE
        assert await feed.append("a", message(1)) == NOT_OURS

    on_a_server(scenario)


def test_an_agent_without_the_lease_appends_nothing() -> None:
    async def scenario(feed: Feed) -> None:
        assert await feed.append("a", message(1)) == NOT_OURS
        await feed.claim("a")
        assert await feed.append("b", message(1)) == NOT_OURS
        assert await feed.append("a", message(1)) == 1
        assert await feed.stream() == ["t/7/1"]

    on_a_server(scenario)


def test_messages_are_appended_once_and_holes_are_told() -> None:
    async def scenario(feed: Feed) -> None:
        await feed.claim("a")
        await feed.append("a", message(5), message(1, publisher="8"), message(6))
        await feed.append("a", message(5), message(6), message(7), message(1, topic="u"))
        await feed.append("a", message(10), ("g", "t", "7", "11", "12", "two are missing"), message(13))
        await feed.append("a", ("g", "t", "7", "11", "12", "two are missing"), message(13), message(14))
        await feed.append("a", ("i", "t", "", "", "", "who knows"))
        assert await feed.stream() == [
            *("t/7/5", "t/8/1", "t/7/6", "t/7/7", "u/7/1"),
            "gap: messages 8 to 9 never reached the collector",
            *("t/7/10", "gap: two are missing", "t/7/13", "t/7/14", "gap: who knows"),
        ]

    on_a_server(scenario)


def test_quiet_publishers_are_forgotten_after_two_turns() -> None:
    async def scenario(feed: Feed) -> None:
        await feed.claim("a")
        await feed.append("a", message(5))
        for known in (True, False):
            await feed.ask("HSET", KEYS.state, "rotated", 0)
            await feed.append("a", message(1, publisher="8"))
            assert bool(await feed.ask("EXISTS", KEYS.older_lines))
            there = [await feed.ask("HEXISTS", key, "7/t") for key in (KEYS.lines, KEYS.older_lines)]
            assert any(there) is known
        await feed.append("a", message(1, publisher="8"))
        assert await feed.stream() == ["t/7/5", "t/8/1"]

    on_a_server(scenario)


def test_the_stream_has_limits() -> None:
    async def scenario(feed: Feed) -> None:
        await feed.claim("a")
        for start in range(1, 2001, 100):
            await feed.append("a", *(message(n) for n in range(start, start + 100)), records=500)
        kept = await feed.stream()
        assert 500 <= len(kept) <= 700  # the server drops whole nodes of a hundred
        assert kept[-1] == "t/7/2000"
        large = [("m", "t", "7", str(n), "1.5", "x" * 10_000) for n in range(2001, 2101)]
        await feed.append("a", *large, size=300_000)
        assert await feed.ask("MEMORY", "USAGE", KEYS.stream) <= 400_000  # type: ignore[operator]

    on_a_server(scenario)
