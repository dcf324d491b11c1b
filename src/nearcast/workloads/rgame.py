"""RGame, the game of Dynamoth's experiments (section V.A), for the flow simulator.

The world is split into square tiles. A player is subscribed to the tile it is in and publishes its state there 3
times a second (V.D), so all players of a tile hear each other. The same walk drives live players: see rgame_live.py.
"""

from __future__ import annotations

import numpy as np

from nearcast.errors import UsageError
from nearcast.flow.demand import Demand, Publications, Subscriptions
from nearcast.workloads.ramp import Ramp
from nearcast.workloads.walk import Movement, Walk

UPDATES_PER_S = 3.0  # of each player (V.D)
MESSAGE_BYTES = 1500.0  # ours: serialised Java objects in Base64; bandwidth then runs out before the CPU, as in III.A


def tile_name(x: int, y: int) -> str:
    return f"tile.{x}.{y}"


class RGame:
    """Players join and leave as the ramp says; the one with the highest number leaves first."""

    def __init__(
        self,
        tiles_x: int,
        tiles_y: int,
        players: Ramp,
        seed: int = 0,
        *,
        updates_per_s: float = UPDATES_PER_S,
        message_bytes: float = MESSAGE_BYTES,
        movement: Movement | None = None,
    ) -> None:
        if min(tiles_x, tiles_y) < 1:
            raise UsageError(f"a map of {tiles_x} x {tiles_y} tiles: use 1 or more each way")
        if updates_per_s <= 0 or message_bytes < 0:
            raise UsageError("updates_per_s must be above 0 and message_bytes not below")
        self.players = players
        self.topics = tuple(tile_name(x, y) for x in range(tiles_x) for y in range(tiles_y))
        self._walk = Walk(players.most, tiles_x, tiles_y, movement or Movement(), seed)
        self.updates_per_s = updates_per_s
        self.message_bytes = message_bytes
        self._clients = np.arange(players.most)
        self._rates_per_s = np.full(players.most, updates_per_s)

    def demand(self, at_s: float) -> Demand:
        players = self.players.at(at_s)
        clients, tiles = self._clients[:players], self._walk.tiles(at_s, players)
        published = Publications(clients, tiles, self._rates_per_s[:players])
        return Demand(players, Subscriptions(clients, tiles), published, self.message_bytes)
