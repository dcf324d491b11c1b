"""A program registers its user once: the token is kept, renewed, and given up when it is refused."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from gateway_world import World, Worlds

from nearcast.core.model import tokens
from nearcast.errors import Refused
from nearcast.subscriber.client import Subscriber
from nearcast.subscriber.passport import TokenFile

pytestmark = pytest.mark.live


def play(world: Worlds, scenario: Callable[[World, str], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def run() -> None:
        async with world() as w:
            await scenario(w, await w.start_gateway(**settings))

    asyncio.run(run())


def test_a_program_that_starts_again_is_the_same_user(world: Worlds, configuration_folder: Path) -> None:
    async def scenario(w: World, url: str) -> None:
        async with Subscriber.connect(url, "ann") as ann:
            fire = await ann.subscribe("by_kind", kind="fire")
        async with Subscriber.connect(url + "/", "ann", long_poll=True) as again:
            assert (again.token, list(again.held)) == (ann.token, [fire])
        kept = configuration_folder / "nearcast" / "tokens.json"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert TokenFile(kept).get(url, "ann") == ann.token

    play(world, scenario)


def test_without_a_kept_token_a_taken_name_is_refused_with_what_to_do(world: Worlds, tmp_path: Path) -> None:
    async def scenario(w: World, url: str) -> None:
        async with Subscriber.connect(url, "ann", tokens=tmp_path / "mine.json"):
            pass
        for elsewhere in ("", None):
            with pytest.raises(Refused, match="nearcast users reset ann"):
                await Subscriber.connect(url, "ann", tokens=elsewhere).__aenter__()
        async with Subscriber.connect(url, "ann", tokens=tmp_path / "mine.json"):
            pass

    play(world, scenario)


def test_a_kept_token_is_renewed_when_half_of_its_life_is_over(world: Worlds, tmp_path: Path) -> None:
    async def scenario(w: World, url: str) -> None:
        users, kept = w.gateways["b1"].users, TokenFile(tmp_path / "t.json")
        first = await users.register("ann")
        read = tokens.Token.read(first)
        assert read is not None
        soon_s = int(time.time() + 3600)
        kept.put(url, "ann", tokens.issue((await users.keys())[1], "ann", read.registration, soon_s))
        async with Subscriber.connect(url, "ann", tokens=kept.path) as ann:
            renewed = tokens.Token.read(ann.token)
        assert renewed is not None
        assert renewed.expires_s > soon_s + 86400
        assert kept.get(url, "ann") == ann.token

    play(world, scenario)


def test_a_kept_token_that_is_refused_is_replaced_if_the_name_is_free(world: Worlds, tmp_path: Path) -> None:
    async def scenario(w: World, url: str) -> None:
        file = tmp_path / "t.json"
        async with Subscriber.connect(url, "ann", tokens=file) as ann:
            pass
        await w.gateways["b1"].users.remove("ann")
        async with Subscriber.connect(url, "ann", tokens=file) as again:
            assert again.token != ann.token
        await w.gateways["b1"].users.reset("ann")
        with pytest.raises(Refused, match="already registered"):
            await Subscriber.connect(url, "ann", tokens=file).__aenter__()

    play(world, scenario)


def test_a_file_that_cannot_be_used_keeps_nobody_out(
    world: Worlds, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t.json").write_text("not tokens")

    async def scenario(w: World, url: str) -> None:
        async with Subscriber.connect(url, "ann", tokens=tmp_path / "t.json"):
            pass
        assert "is not a token file" in caplog.text

    play(world, scenario)
