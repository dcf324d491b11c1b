"""The provider's desk: what is asked on the bus is done once at a time, failures are survived, nothing is half done."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.core.model.names import PROVIDER_CHANNEL
from nearcast.core.wire import bus
from nearcast.errors import ServerFailed
from nearcast.runtime import provider as provider_module
from nearcast.runtime.provider import DryProvider, ProviderDesk
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live


class Slow(DryProvider):
    """Takes a moment, and fails for one name."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[str] = []
        self.most_at_once = 0
        self._at_once = 0

    async def rent(self, broker: str) -> None:
        self.begun.append(broker)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(0.2)  # the moment
        self._at_once -= 1
        if broker == "bad":
            raise ServerFailed("no room")
        await super().rent(broker)


async def tell(asker: Requester, *messages: bus.ToProvider) -> None:
    for message in messages:
        await asker.ask("PUBLISH", PROVIDER_CHANNEL, bus.encode(message))


def test_calls_are_made_one_at_a_time_and_not_twice_while_they_wait() -> None:
    async def scenario() -> Slow:
        server, provider = await LocalServer.start(), Slow()
        asker = Requester(server.url)
        try:
            async with ProviderDesk(server.url, provider):
                await asker.ask("PUBLISH", PROVIDER_CHANNEL, b"garbage")
                await tell(asker, bus.Rent("a", 1), bus.Rent("a", 1), bus.Rent("bad", 1), bus.Release("a", 1, "url"))
                await until(lambda: len(provider.calls) == 2, "the last of them is done")
        finally:
            await asker.close()
            await server.stop()
        return provider

    provider = asyncio.run(scenario())
    assert provider.begun == ["a", "bad"]
    assert provider.most_at_once == 1
    assert provider.calls == [("rent", "a"), ("release", "a")]


def test_a_call_that_was_begun_is_ended_before_the_desk_closes() -> None:
    async def scenario() -> Slow:
        server, provider = await LocalServer.start(), Slow()
        asker = Requester(server.url)
        try:
            async with ProviderDesk(server.url, provider):
                await tell(asker, bus.Rent("a", 1), bus.Rent("b", 1))
                await until(lambda: provider.begun == ["a"], "it has begun")
        finally:
            await asker.close()
            await server.stop()
        return provider

    assert asyncio.run(scenario()).calls == [("rent", "a")]


def test_what_is_no_longer_asked_for_when_its_turn_comes_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was to be stopped may have joined again while the desk was busy."""
    monkeypatch.setattr(provider_module, "WANTED_S", 0.3)

    async def scenario() -> Slow:
        server, provider = await LocalServer.start(), Slow()
        asker = Requester(server.url)
        try:
            async with ProviderDesk(server.url, provider):
                await tell(asker, *(bus.Rent(name, 1) for name in "abc"), bus.Release("gone", 1, "url"))
                for _ in range(5):
                    await asyncio.sleep(0.1)  # more often than what is wanted expires
                    await tell(asker, bus.Release("kept", 1, "url"))
                await until(lambda: ("release", "kept") in provider.calls, "it is done")
        finally:
            await asker.close()
            await server.stop()
        return provider

    assert ("release", "gone") not in asyncio.run(scenario()).calls
