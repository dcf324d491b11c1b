"""Users come to an end: reset, removed, or their key taken away; sessions, names and subscriptions go with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from gateway_world import World, Worlds
from typer.testing import CliRunner

from nearcast.cli.app import app
from nearcast.errors import AuthenticationFailed, Closed, Refused
from nearcast.subscriber.client import Subscriber
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

SOON_S = 10.0


def play(world: Worlds, scenario: Callable[[World, str], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def run() -> None:
        async with world() as w:
            await scenario(w, await w.start_gateway(**settings))

    asyncio.run(run())


async def command(w: World, *arguments: str) -> str:
    """What `nearcast users` prints; the store in this world belongs to no controller, so it says that it does."""
    store = w.gateways["b1"]._store
    await store.ask("SET", "nc:store:term", 1)
    words = ["users", *arguments, "--url", w.store.url]
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    if done.exit_code:
        raise Refused(done.stderr)
    return done.stdout


def test_a_reset_ends_the_sessions_and_tokens_of_before_and_keeps_subscriptions(world: Worlds) -> None:
    async def scenario(w: World, url: str) -> None:
        async with Subscriber.connect(url, "ann") as ann, Subscriber.connect(url, "bob") as bob:
            fire = await ann.subscribe("by_kind", kind="fire")
            token = (await command(w, "reset", "ann")).strip()
            async with asyncio.timeout(SOON_S):
                with pytest.raises(Closed, match="reset or removed"):
                    await ann.get()
            with pytest.raises(AuthenticationFailed, match="reset or removed"):
                await Subscriber.connect(url, "ann", token=ann.token).__aenter__()
            async with Subscriber.connect(url, "ann", token=token) as again:
                assert list(again.held) == [fire]
            await bob.subscribe("by_kind", kind="flood")  # nobody else is touched
        with pytest.raises(Refused, match="no user 'eve'"):
            await command(w, "reset", "eve")

    play(world, scenario)


def test_a_removed_user_leaves_nothing_and_the_name_is_free(world: Worlds) -> None:
    async def scenario(w: World, url: str) -> None:
        async with Subscriber.connect(url, "ann") as ann:
            await ann.subscribe("by_kind", kind="fire")
            assert "ann" in await command(w, "list")
            await command(w, "remove", "ann")
            async with asyncio.timeout(SOON_S):
                with pytest.raises(Closed, match="reset or removed"):
                    await ann.get()
        await until(lambda: w.data.held() == {"b1": 0})
        assert await w.gateways["b1"].directory.holders("b1") == {}
        assert (await command(w, "list", "--output", "json")).strip() == "[]"
        async with Subscriber.connect(url, "ann") as other:
            assert other.held == {}

    play(world, scenario)


def test_a_user_who_is_offline_when_removed_is_released_too(world: Worlds) -> None:
    async def scenario(w: World, url: str) -> None:
        async with Subscriber.connect(url, "ann") as ann:
            await ann.subscribe("by_kind", kind="fire")
        assert w.data.held() == {"b1": 1}
        await command(w, "remove", "ann")
        await until(lambda: w.data.held() == {"b1": 0})

    play(world, scenario)


def test_a_new_key_leaves_tokens_good_and_taking_the_old_one_away_ends_them(world: Worlds) -> None:
    async def scenario(w: World, url: str) -> None:
        async with Subscriber.connect(url, "ann") as ann:
            await command(w, "rotate-key")
            async with Subscriber.connect(url, "bob") as bob:
                assert [token.split(".")[1] for token in (ann.token, bob.token)] == ["1", "2"]
                async with Subscriber.connect(url, "ann", token=ann.token):
                    pass
            await command(w, "rotate-key", "--now")
        with pytest.raises(AuthenticationFailed, match="key of this token was removed"):
            await Subscriber.connect(url, "bob", token=bob.token).__aenter__()
        async with Subscriber.connect(url, "eve") as eve:
            await command(w, "rotate-key", "--now")
            async with asyncio.timeout(SOON_S):
                with pytest.raises(Closed, match="key of this token was removed"):
                    await eve.get()

    play(world, scenario)


def test_nobody_is_sent_away_by_a_store_without_memory(world: Worlds) -> None:
    async def scenario(w: World, url: str) -> None:
        async with Subscriber.connect(url, "ann") as ann:
            await w.gateways["b1"]._store.ask("FLUSHALL")
            await w.gateways["b1"]._revocation.check()
            await ann.unsubscribe_topic("still here")

    play(world, scenario)


def test_the_operator_adds_a_user(world: Worlds) -> None:
    async def scenario(w: World, url: str) -> None:
        token = (await command(w, "add", "ann")).strip()
        async with Subscriber.connect(url, "ann", token=token):
            pass
        with pytest.raises(Refused, match="nearcast users reset ann"):
            await command(w, "add", "ann")
        with pytest.raises(Refused, match="bad user name"):
            await command(w, "add", "a:b")

    play(world, scenario)
