"""RGame on a real cluster: players are its clients, and walk as in the flow simulator with the same seed.

game = RGame(4, 4, Ramp.steady(20), seed=1)
async with LiveRGame(game, cluster.urls.values()) as live:
    outcome = await live.run(seconds=10)
"""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import fmean
from typing import Self

import msgspec

from nearcast.core.model.message import Event, Gap, Interrupted, Message
from nearcast.errors import ClusterError, UsageError
from nearcast.runtime.client import Client
from nearcast.runtime.connect import connect
from nearcast.runtime.driver import Resolve
from nearcast.runtime.subscription import Subscription
from nearcast.testing.load import percentile
from nearcast.workloads.rgame import RGame

# --- one player


READ_EVERY_S = 0.02  # how often mailboxes are emptied: messages carry their time of arrival
RETURN_S = 2.0  # how long a leaving player waits for its last updates: more than T_gap
_STAMP = struct.Struct("!I")  # a payload begins with the player's number


@dataclass(slots=True)
class Tally:
    """What all players together did and saw."""

    updates: int = 0  # published and acknowledged
    refused: int = 0  # by the cluster: they may arrive or not
    deliveries: int = 0
    switches: int = 0  # of tiles
    missed: int = 0  # messages reported as Gap
    interruptions: int = 0
    responses_s: array[float] = field(default_factory=lambda: array("d"))  # of own updates that came back


class Player:
    """Attaches to the tile it is in, publishes there, and waits for its own updates to return.

    A player that enters another tile attaches there first, then publishes there, and leaves the old tile one update
    later. So its own updates come back to it wherever it goes.

    The game sets `tile`, the topic it is in. `leaving` ends the player after its next update.
    """

    def __init__(self, number: int, tile: str, client: Client, tally: Tally) -> None:
        self.tile = tile
        self.leaving = False
        self._number = number
        self._client = client
        self._tally = tally
        self._subscriptions: list[Subscription] = []  # of the tile before, if just left, and of this one
        self._acknowledged = 0
        self._returned = 0

    async def play(self, update_s: float, payload_bytes: int) -> None:
        """Publish one update per interval."""
        payload = _STAMP.pack(self._number).ljust(payload_bytes, b".")
        listening: list[asyncio.Task[None]] = []
        await asyncio.sleep(update_s * (self._number * 0.618 % 1))  # not all players at the same moment
        here = ""
        try:
            while not self.leaving:
                if self.tile != here:
                    here = self.tile
                    listening.append(asyncio.create_task(self._listen(await self._enter(here))))
                await self._publish(here, payload)
                await asyncio.sleep(update_s)
                self._leave_all_but_last()
            await self._until_returned()
        finally:
            for subscription in self._subscriptions:
                subscription.close()
            await asyncio.gather(*listening)

    async def _enter(self, tile: str) -> Subscription:
        subscription = await self._client.subscribe(tile)
        self._tally.switches += bool(self._subscriptions)
        self._subscriptions.append(subscription)
        return subscription

    def _leave_all_but_last(self) -> None:
        while len(self._subscriptions) > 1:
            self._subscriptions.pop(0).close()

    async def _publish(self, tile: str, payload: bytes) -> None:
        try:
            await self._client.publish(tile, payload)
        except ClusterError:
            self._tally.refused += 1
        else:
            self._acknowledged += 1
            self._tally.updates += 1

    async def _until_returned(self) -> None:
        """Wait a limited time for the last updates. Those that do not return are missing from the tally."""
        for _ in range(round(RETURN_S / READ_EVERY_S)):
            if self._returned >= self._acknowledged:
                return
            await asyncio.sleep(READ_EVERY_S)

    # --- hearing

    async def _listen(self, subscription: Subscription) -> None:
        async for event in subscription:
            self._saw([event, *subscription.take()])
            await asyncio.sleep(READ_EVERY_S)

    def _saw(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Message):
                self._tally.deliveries += 1
                if event.publisher == self._client.client_id and _STAMP.unpack_from(event.payload)[0] == self._number:
                    self._returned += 1
                    self._tally.responses_s.append(event.latency_s)
            elif isinstance(event, Gap):
                self._tally.missed += event.count
            elif isinstance(event, Interrupted) and event.until_s is None:
                self._tally.interruptions += 1


# --- the game


TURN_S = 0.05  # how often players' tiles are updated: crossing a tile takes seconds


class LiveOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the players did and saw. Response times are those of their own updates, None if none came back."""

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
    """Runs the game's players on a cluster. `tally` may be read while it runs.

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
        self._playing: list[asyncio.Task[None]] = []  # including those that are leaving

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
        """Fail if a player has failed: the figures would prove nothing."""
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
