"""A play on real servers: distances are those of the play, and change when an endpoint goes elsewhere."""

from __future__ import annotations

import asyncio
import random

import pytest

from nearcast.core.model.placement import Mode
from nearcast.errors import UsageError
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.network.emulated import EmulatedNetwork
from nearcast.testing.network.sites import Site, World
from nearcast.workloads.located.live import LiveOutcome, LivePlay
from nearcast.workloads.located.play import GoTo, Ignore, Listen, Play, Station

WORLD = World((Site("east", 0.0), Site("west", 0.0)), {("east", "west"): 0.03}, jitter_share=0.0)


def play(*changes: GoTo | Listen | Ignore) -> Play:
    return Play(
        world=WORLD,
        brokers={"b1": "east", "b2": "west"},
        control_site="east",
        endpoints={"pair": Station("east", 0.005), "guest": Station("west", 0.005)},
        clients={"one": "pair", "two": "pair", "visitor": "guest"},
        publications=(("one", "talk"),),
        subscriptions=(("two", "talk"),),
        changes=changes,
        rate_per_s=40.0,
        payload_bytes=100,
        bound_s=0.05,
    )


async def performed(acted: Play, seconds: float) -> LiveOutcome:
    async with EmulatedNetwork(WORLD, random.Random(1)) as network, await LocalCluster.start(brokers=2) as cluster:
        console = await cluster.console()
        await console.move("talk", Mode.SINGLE, ("b1",))
        for broker, url in cluster.urls.items():
            await network.place(url, acted.brokers[broker])
        async with LivePlay(acted, network, cluster.urls, watched="visitor") as live:
            return await live.run(seconds)


@pytest.mark.live
def test_latency_follows_the_distances_as_an_endpoint_goes_and_others_listen() -> None:
    acted = play(GoTo(2.0, "pair", "west"), Listen(2.0, "visitor", "talk"), Ignore(3.5, "visitor", "talk"))
    outcome = asyncio.run(performed(acted, 5.0))
    recording = outcome.recording
    assert (outcome.refused, outcome.missed, outcome.interruptions) == (0, 0, 0)
    assert 150 <= outcome.published <= 200
    means_s = recording.means_s("talk", 4)
    assert means_s[0] is not None
    assert means_s[4] is not None
    assert means_s[0] == pytest.approx(0.010, abs=0.008)
    assert means_s[4] == pytest.approx(0.070, abs=0.008)  # the topic has stayed where it was
    assert recording.back_after_s(["talk"], 2.0, 5.0) is None
    heard = outcome.watched.count
    assert 20 <= heard <= 70  # a visitor for a second and a half
    assert recording.count == outcome.published + heard


def test_a_play_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="order of their times"):
        play(GoTo(2.0, "pair", "west"), GoTo(1.0, "pair", "east"))
