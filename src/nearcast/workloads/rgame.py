"""RGame, the game of Dynamoth's experiments (section V.A), for the flow simulator.

The world is split into square tiles. A player is subscribed to the tile it is in and publishes its state there 3 times
a second (V.D), so all players of a tile hear each other. The same walk drives live players: see rgame_live.py.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import msgspec
import numpy as np

from nearcast.errors import UsageError
from nearcast.flow.model import Demand, FloatArray, IntArray, Publications, Subscriptions

# --- ramps


class Ramp(msgspec.Struct, frozen=True):
    """A number of players over time: points (seconds, players) with growing times, and lines between them.

    Before the first point and after the last, the number is constant.
    """

    points: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        times = [at_s for at_s, _ in self.points]
        if not times or any(later <= earlier for earlier, later in pairwise(times)):
            raise UsageError("a ramp needs one or more points (seconds, players) with growing times")
        if min(players for _, players in self.points) < 0:
            raise UsageError("a ramp's players must not be negative")

    @classmethod
    def steady(cls, players: int) -> Ramp:
        return cls(((0.0, players),))

    @property
    def most(self) -> int:
        return max(players for _, players in self.points)

    def at(self, at_s: float) -> int:
        after = bisect_right(self.points, at_s, key=lambda point: point[0])
        if after == 0:
            return self.points[0][1]
        if after == len(self.points):
            return self.points[-1][1]
        (from_s, players), (to_s, target) = self.points[after - 1], self.points[after]
        return round(players + (target - players) * (at_s - from_s) / (to_s - from_s))


# --- walks


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # splitmix64 (Steele et al., OOPSLA 2014)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_DRAWS = 4  # per leg, one of them not used


class Movement(msgspec.Struct, frozen=True, kw_only=True):
    """The paper gives no figures. These are from the authors' code (RPlayer.java; RConfig.java for tiles of 100)."""

    speed_tiles_per_s: float = 0.1  # player_speed 10 on tiles of side 100
    pause_min_s: float = 1.9
    pause_max_s: float = 2.1

    def __post_init__(self) -> None:
        if self.speed_tiles_per_s <= 0 or not 0 <= self.pause_min_s <= self.pause_max_s:
            raise UsageError("movement needs speed_tiles_per_s > 0 and 0 <= pause_min_s <= pause_max_s")


class Walk:
    """How players walk: to a random point of the map, a short break, then to the next (Dynamoth V.A).

    Distances are in tiles. All players begin at random points at time 0. A player's points depend only on the seed, its
    number and the number of the leg. So the same seed gives the same walk, whatever the time steps and the number of
    other players. Asking for an earlier time than the last starts over.
    """

    def __init__(self, players: int, tiles_x: int, tiles_y: int, movement: Movement, seed: int) -> None:
        self._size = np.array([tiles_x, tiles_y], dtype=np.float64)
        self._tiles_y = tiles_y
        self._movement = movement
        self._seed = np.uint64(seed)
        self._begin(players)

    def _begin(self, players: int) -> None:
        self._at_s = 0.0
        self._leg = np.zeros(players, dtype=np.uint64)
        self._target = self._points(np.arange(players), self._leg)
        self._start = self._target.copy()
        self._depart_s = np.zeros(players)
        self._arrive_s = np.zeros(players)
        self._next_s = np.zeros(players)

    def tiles(self, at_s: float, players: int) -> IntArray:
        """The tile of each of the first `players`: x * tiles_y + y."""
        x, y = self.positions(at_s, players)
        return x.astype(np.int64) * self._tiles_y + y.astype(np.int64)

    def positions(self, at_s: float, players: int) -> tuple[FloatArray, FloatArray]:
        if at_s < self._at_s:
            self._begin(len(self._leg))
        self._at_s = at_s
        self._set_out(at_s, players)
        depart_s, arrive_s = self._depart_s[:players], self._arrive_s[:players]
        done = np.clip((at_s - depart_s) / np.maximum(arrive_s - depart_s, 1e-9), 0.0, 1.0)
        start, target = self._start[:, :players], self._target[:, :players]
        x, y = start + (target - start) * done
        return x, y

    def _set_out(self, at_s: float, players: int) -> None:
        """Give all players whose break is over their next leg."""
        while len(ready := np.flatnonzero(self._next_s[:players] <= at_s)):
            self._leg[ready] += np.uint64(1)
            start, target = self._target[:, ready], self._points(ready, self._leg[ready])
            distance = np.hypot(*(target - start))
            arrive_s = self._next_s[ready] + distance / self._movement.speed_tiles_per_s
            pause = self._dice(ready, self._leg[ready], 2)
            pause_s = self._movement.pause_min_s + pause * (self._movement.pause_max_s - self._movement.pause_min_s)
            self._start[:, ready], self._target[:, ready] = start, target
            self._depart_s[ready], self._arrive_s[ready] = self._next_s[ready], arrive_s
            self._next_s[ready] = arrive_s + pause_s

    def _points(self, players: IntArray, legs: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> FloatArray:
        return np.stack([self._dice(players, legs, draw) * self._size[draw] for draw in (0, 1)])

    def _dice(self, players: IntArray, legs: np.ndarray[tuple[int], np.dtype[np.uint64]], draw: int) -> FloatArray:
        """A number in [0, 1) for each player and leg."""
        mixed = _mixed(players.astype(np.uint64) + _mixed(np.array([self._seed])))
        mixed = _mixed(mixed + legs * np.uint64(_DRAWS) + np.uint64(draw))
        return (mixed >> np.uint64(11)).astype(np.float64) / (1 << 53)


def _mixed(values: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    values = values * _GOLDEN + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


UPDATES_PER_S = 3.0  # of each player (V.D)
MESSAGE_BYTES = 1500.0  # ours: serialised Java objects in Base64; bandwidth runs out before the CPU, as in III.A


def tile_name(x: int, y: int) -> str:
    return f"tile.{x}.{y}"


# --- the game


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
            raise UsageError("updates_per_s must be above 0, and message_bytes must not be negative")
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
