"""RGame on a real cluster: players that are clients of it, walking as in the flow simulator for the same seed.

game = RGame(4, 4, Ramp.steady(20), seed=1)
async with LiveRGame(game, cluster.urls.values()) as live:
    outcome = await live.run(seconds=10)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from statistics import fmean
from typing import Self

import msgspec

from nearcast.errors import UsageError
from nearcast.runtime.client import Client, connect
from nearcast.runtime.driver import Resolve
from nearcast.testbed.recent import percentile
from nearcast.workloads.rgame import RGame
from nearcast.workloads.rgame_player import Player, Tally

TURN_S = 0.05  # how often the map is looked at: a player crosses a tile in seconds


class LiveOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the players did and saw. Response times are those of their own updates; None if none came back."""

    updates: int  # published and acknowledged
    refused: int  # by the cluster: they may arrive or not
    returned: int  # updates that came back to their player
    deliveries: int
    switches: int  # of tiles
    missed: int  # messages reported as Gap
    interruptions: int
    response_mean_s: float | None
    response_p50_s: float | None
    response_p99_s: float | None


class LiveRGame:
    """`tally` may be read while it runs.

    More than one of `players_per_client` saves connections, but a server then sends a message once for all of them.
    """

    def __init__(
        self, game: RGame, urls: Iterable[str], *, players_per_client: int = 1, resolve: Resolve | None = None
    ) -> None:
        if players_per_client < 1:
            raise UsageError(f"players_per_client is {players_per_client}: use 1 or more")
        self.tally = Tally()
        self._game = game
        self._urls = list(urls)
        self._players_per_client = players_per_client
        self._resolve = resolve
        self._stack = AsyncExitStack()
        self._clients: list[Client] = []
        self._players: list[Player] = []  # by number
        self._playing: list[asyncio.Task[None]] = []  # those that are leaving too

    async def __aenter__(self) -> Self:
        try:
            for number in range(-(-self._game.players.most // self._players_per_client)):
                first = number % len(self._urls)
                client = connect(*self._urls[first:], *self._urls[:first], resolve=self._resolve)
                self._clients.append(await self._stack.enter_async_context(client))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._playing:
            task.cancel()
        await asyncio.gather(*self._playing, return_exceptions=True)
        await self._stack.aclose()

    async def run(self, seconds: float) -> LiveOutcome:
        """Play from the game's beginning. Players join and leave as its ramp says."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        while (at_s := loop.time() - begun_s) < seconds:
            tiles = [self._game.topics[tile] for tile in self._game.demand(at_s).publications.topic.tolist()]
            self._move_players(tiles)
            self._check()
            await asyncio.sleep(TURN_S)
        self._move_players([])
        await asyncio.gather(*self._playing)
        return self._outcome()

    def _move_players(self, tiles: list[str]) -> None:
        for player in self._players[len(tiles) :]:
            player.leaving = True
        del self._players[len(tiles) :]
        for player, tile in zip(self._players, tiles, strict=False):
            player.tile = tile
        for number in range(len(self._players), len(tiles)):
            player = Player(number, tiles[number], self._clients[number // self._players_per_client], self.tally)
            self._players.append(player)
            play = player.play(1 / self._game.updates_per_s, round(self._game.message_bytes))
            self._playing.append(asyncio.create_task(play))

    def _check(self) -> None:
        """A player that broke is no proof of anything."""
        for task in self._playing:
            if task.done():
                task.result()
        self._playing = [task for task in self._playing if not task.done()]

    def _outcome(self) -> LiveOutcome:
        tally = self.tally
        return LiveOutcome(
            updates=tally.updates,
            refused=tally.refused,
            returned=len(tally.responses_s),
            deliveries=tally.deliveries,
            switches=tally.switches,
            missed=tally.missed,
            interruptions=tally.interruptions,
            response_mean_s=fmean(tally.responses_s) if tally.responses_s else None,
            response_p50_s=percentile(tally.responses_s, 50),
            response_p99_s=percentile(tally.responses_s, 99),
        )
