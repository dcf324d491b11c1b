"""Users who do not come back are forgotten: after hours that gateways have counted, and a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from gateway_world import World, Worlds

from nearcast.core.model.names import HOURS_KEY
from nearcast.gateway import directory
from nearcast.gateway.directory import Attendance, StoreConnection
from nearcast.gateway.users import Users
from nearcast.runtime.servers import LocalServer
from nearcast.subscriber.client import Subscriber
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

DAYS = 90
YEAR_S = 365 * 86400


def with_a_store(scenario: Callable[[StoreConnection, Users, Attendance], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with await LocalServer.start() as server:
            store = StoreConnection(server.url)
            await scenario(store, Users(store), Attendance(store, DAYS))
            await store.close()

    asyncio.run(run())


async def names(users: Users) -> list[str]:
    return sorted([user.name async for user in users.all()])


async def hours(store: StoreConnection) -> int:
    counted = await store.ask("HGET", HOURS_KEY, "count")
    return int(counted) if isinstance(counted, bytes) else 0


def test_an_hour_is_counted_once_and_a_jump_of_the_clock_is_no_more_than_one() -> None:
    async def scenario(store: StoreConnection, users: Users, attendance: Attendance) -> None:
        for _ in range(3):
            await attendance.count()
        assert await hours(store) == 0
        for jump_s in (3600, YEAR_S, -YEAR_S, 100):  # how far the clock is ahead of what was noted
            now = await store.ask("TIME")
            assert isinstance(now, list)
            await store.ask("HSET", HOURS_KEY, "at", int(now[0]) - jump_s)
            for _ in range(3):
                await attendance.count()
        assert await hours(store) == 2  # of the hour, and of the year

    with_a_store(scenario)


def test_users_who_were_not_seen_are_forgotten_and_others_are_not() -> None:
    async def scenario(store: StoreConnection, users: Users, attendance: Attendance) -> None:
        await users.register("ann")
        await store.ask("HINCRBY", HOURS_KEY, "count", DAYS * 24)
        await users.register("bob")
        await attendance.forget()
        assert await names(users) == ["ann", "bob"]
        assert [user.unseen_hours async for user in users.all() if user.name == "ann"] == [DAYS * 24]
        await store.ask("HINCRBY", HOURS_KEY, "count", 1)
        await Attendance(store, None).forget()
        assert await names(users) == ["ann", "bob"]
        await attendance.forget()
        assert await names(users) == ["bob"]
        await users.register("ann")  # the name is free

        await store.ask("HINCRBY", HOURS_KEY, "count", DAYS * 24)
        await users.registrations(["ann"], here=True)
        await store.ask("DEL", HOURS_KEY)  # time starts over, for everybody
        await attendance.forget()
        await store.ask("HINCRBY", HOURS_KEY, "count", DAYS * 24)
        await attendance.forget()
        assert await names(users) == ["ann", "bob"]

    with_a_store(scenario)


def test_a_round_forgets_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "FORGOTTEN_A_ROUND", 4)

    async def scenario(store: StoreConnection, users: Users, attendance: Attendance) -> None:
        for number in range(10):
            await users.register(f"user{number}")
        await store.ask("HINCRBY", HOURS_KEY, "count", DAYS * 24 + 1)
        left = []
        for _ in range(3):
            await attendance.forget()
            left.append(len(await names(users)))
        assert left == [6, 2, 0]

    with_a_store(scenario)


def test_what_a_forgotten_user_held_is_released_and_who_is_here_stays(world: Worlds) -> None:
    async def scenario(w: World) -> None:
        url = await w.start_gateway(forget_days=DAYS)
        gateway = w.gateways["b1"]
        async with Subscriber.connect(url, "ann") as ann:
            await ann.subscribe("by_kind", kind="fire")
        async with Subscriber.connect(url, "bob") as bob:
            await bob.subscribe("by_kind", kind="flood")
            await gateway._store.ask("HINCRBY", HOURS_KEY, "count", DAYS * 24 + 1)
            await gateway._revocation.check()
            await gateway._attendance.forget()
            await until(lambda: w.data.held() == {"b1": 1})
            assert await names(gateway.users) == ["bob"]
            await bob.subscribe("by_kind", kind="storm")

    async def run() -> None:
        async with world() as w:
            await scenario(w)

    asyncio.run(run())
