"""Probing over real sockets."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from nearcast.core.wire.probes import DATAGRAM_BYTES, Prober, probe
from nearcast.runtime import probing as module
from nearcast.runtime.probing import Probing
from nearcast.testing.waiting import until


def nothing() -> None:
    pass


async def answering(**options: object) -> tuple[Probing, int]:
    agent = Probing(Prober(random.Random(1)), tick=nothing, changed=nothing, answers=True)
    return agent, await agent.start("127.0.0.1", 0)


def test_brokers_are_measured_and_a_silent_one_is_not() -> None:
    async def scenario() -> None:
        agents = [await answering() for _ in range(3)]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            addresses = {f"b{number}": f"udp://127.0.0.1:{port}" for number, (_, port) in enumerate(agents)}
            prober = Prober(random.Random(2))
            prober.aim({**addresses, "silent": f"udp://localhost:{silent.getsockname()[1]}"})
            client = Probing(prober, tick=nothing, changed=nothing)
            await client.start()
            await until(lambda: prober.round_trips_s.keys() == addresses.keys())
            assert all(0.0 < one_s < 0.5 for one_s in prober.round_trips_s.values())
            client.stop()
            for agent, _ in agents:
                agent.stop()

    asyncio.run(scenario())


def test_an_emulated_network_may_lead_elsewhere() -> None:
    async def scenario() -> None:
        agent, port = await answering()
        prober = Prober(random.Random(2))
        prober.aim({"b1": "udp://far.example:1"})
        client = Probing(prober, tick=nothing, changed=nothing, resolve=lambda url: f"udp://127.0.0.1:{port}")
        await client.start()
        await until(lambda: "b1" in prober.round_trips_s)
        client.stop()
        agent.stop()

    asyncio.run(scenario())


def test_a_flood_is_answered_up_to_a_limit_and_garbage_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWERS_PER_S", 1.0)
    monkeypatch.setattr(module, "ANSWERS_BURST", 20.0)

    async def scenario() -> None:
        agent, port = await answering()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood:
            for number in range(50):
                flood.sendto(probe(number), ("127.0.0.1", port))
                flood.sendto(b"\xff" * (number % (2 * DATAGRAM_BYTES)), ("127.0.0.1", port))
            await until(lambda: agent.answered + agent.ignored == 50)
        assert 20 <= agent.answered <= 22
        agent.stop()

    asyncio.run(scenario())


def test_a_port_in_use_is_an_error_that_says_so() -> None:
    async def scenario() -> None:
        agent, port = await answering()
        second = Probing(Prober(random.Random(1)), tick=nothing, changed=nothing, answers=True)
        with pytest.raises(OSError, match="in use"):
            await second.start("127.0.0.1", port)
        second.stop()
        agent.stop()

    asyncio.run(scenario())


def test_a_host_name_that_cannot_be_one_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        names = module.HostNames()
        assert names.endpoint("a" * 70 + ".example", 1) is None
        await asyncio.gather(*names._asking)

    asyncio.run(scenario())
