"""The game of experiments 2 and 3: RGame on a map of tiles, on rented servers (Dynamoth V.D and V.E).

The paper gives players, updates per second, servers and the load ratio at which a server fails. It does not give the
map, the size of an update or the bandwidth of a server. Those here are the simulator's (flow/settings.py,
workloads/rgame.py), with a map on which the servers, perfectly used, carry a little more than the 1,000 players that
Dynamoth reached.
"""

from __future__ import annotations

import msgspec

from nearcast.errors import UsageError
from nearcast.flow.demand import Demand
from nearcast.flow.settings import FlowSettings
from nearcast.workloads.ramp import Ramp
from nearcast.workloads.rgame import MESSAGE_BYTES, UPDATES_PER_S, RGame
from nearcast.workloads.walk import Movement

TILES_PER_SIDE = 12
SERVERS = 8  # V.D
GOOD_S = 0.150  # V.D: play is optimal below it


class Game(msgspec.Struct, frozen=True, kw_only=True):
    tiles_per_side: int = TILES_PER_SIDE
    servers: int = SERVERS
    movement: Movement = Movement()
    wait_s: float = FlowSettings().wait_s  # T_wait

    def __post_init__(self) -> None:
        if min(self.tiles_per_side, self.servers) < 1:
            raise UsageError("a game needs at least one tile and one server")

    def workload(self, players: Ramp, seed: int) -> World:
        return World(
            RGame(self.tiles_per_side, self.tiles_per_side, players, seed, movement=self.movement), f"world{seed}"
        )

    def flow(self, virtual_nodes: int) -> FlowSettings:
        return FlowSettings(brokers_max=self.servers, virtual_nodes=virtual_nodes, wait_s=self.wait_s)

    @property
    def conditions(self) -> Conditions:
        flow = FlowSettings()
        return Conditions(
            tiles=self.tiles_per_side**2,
            movement=self.movement,
            updates_per_s=UPDATES_PER_S,
            delivery_bytes=MESSAGE_BYTES + flow.overhead_bytes,
            servers=self.servers,
            capacity_bytes_per_s=flow.capacity_bytes_per_s,
            fail_ratio=flow.fail_ratio,
            wait_s=self.wait_s,
        )


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure depends on, printed beside it."""

    tiles: int
    movement: Movement
    updates_per_s: float
    delivery_bytes: float
    servers: int
    capacity_bytes_per_s: float
    fail_ratio: float
    wait_s: float


class World:
    """The game with a name in front of its topics, so that rings differ from seed to seed as walks do."""

    def __init__(self, game: RGame, name: str) -> None:
        self.topics = tuple(f"{name}.{topic}" for topic in game.topics)
        self._game = game

    def demand(self, at_s: float) -> Demand:
        return self._game.demand(at_s)
