"""RGame on real servers: every update comes back to its player, while players change tiles and tiles change brokers."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.core.model.placement import Mode
from nearcast.errors import UsageError
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.waiting import until
from nearcast.workloads.rgame import Movement, Ramp, RGame
from nearcast.workloads.rgame_live import LiveOutcome, LiveRGame

BRISK = Movement(speed_tiles_per_s=0.5)  # players change tiles while we watch


@pytest.mark.live
@pytest.mark.xdist_group("heavy")
def test_players_walk_and_hear_themselves_while_a_tile_moves() -> None:
    async def scenario() -> LiveOutcome:
        game = RGame(2, 2, Ramp(((0, 8), (2, 12), (3, 12), (4, 6))), seed=3, message_bytes=200, movement=BRISK)
        async with await LocalCluster.start(brokers=2) as cluster:
            console = await cluster.console()
            async with LiveRGame(game, cluster.urls.values()) as live:
                playing = asyncio.create_task(live.run(seconds=5))
                await until(lambda: live.tally.updates > 30, "the game is on")
                for broker in ("b1", "b2"):
                    await console.move("tile.0.0", Mode.SINGLE, (broker,), timeout_s=4.5)
                return await playing

    outcome = asyncio.run(scenario())
    assert outcome.returned == outcome.updates >= 90  # 3 a second of 6 to 12 players for 5 s, some late
    assert (outcome.refused, outcome.missed, outcome.interruptions) == (0, 0, 0)
    assert outcome.switches >= 10
    assert outcome.deliveries > 1.5 * outcome.updates
    assert outcome.response_p50_s is not None
    assert outcome.response_p50_s < 0.1


def test_a_client_needs_at_least_one_player() -> None:
    with pytest.raises(UsageError, match="players_per_client is 0"):
        LiveRGame(RGame(1, 1, Ramp.steady(1)), ["redis://127.0.0.1:1"], players_per_client=0)
