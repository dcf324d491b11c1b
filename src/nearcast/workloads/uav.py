"""Swarms of drones over a city with an edge site per zone (ePulsar, sections 5.1.1 and 5.8.1).

A swarm is a leader and seven followers that move together, by the random waypoint model. The leader commands on
`SWARM.follow_leader`, which all followers hear; the followers report on `SWARM.sensor_data`, which the leader hears.
Messages must arrive within 40 ms.

The city is divided into zones by k-means over its base stations, and each zone has one site with one broker. A drone
reaches the site of its zone in 8 ms one way (LTE), another one in 15 ms more (30 ms round trip between sites). So a
message takes 16 ms through the broker of the own zone and 46 ms through any other: a swarm that enters another zone
misses the bound until its topics follow. The controller is in the cloud, 40 ms away from every site.

The paper's city is Atlanta, from a list of cell towers. Ours is generated, or read from a file of coordinates.
"""

from __future__ import annotations

import csv
import math
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from nearcast.errors import UsageError
from nearcast.testing.network.sites import Site, World
from nearcast.workloads.located.play import GoTo, Play, Station
from nearcast.workloads.rgame import Movement, Walk

Points = npt.NDArray[np.float64]  # one row per point: east and north, in metres

BOUND_S = 0.040  # 5.1.1
ACCESS_S = 0.008  # ours, one way: with BETWEEN_S it gives the 40 ms bound a meaning
BETWEEN_S = 0.015  # one way, half of the paper's 30 ms
CLOUD_S = 0.040  # one way
CLOUD = "cloud"
LOOK_S = 0.1  # how finely changes of zone are found
DEGREE_M = 111_195.0  # of latitude
CITY_M = 4000.0  # side of the generated city: small, so that a minute sees changes of zone
MEANS_ROUNDS = 100


class Swarms(msgspec.Struct, frozen=True, kw_only=True):
    """The paper's figures of section 5.8.1, where it gives them."""

    swarms: int = 8
    drones: int = 8  # of each swarm, the leader included
    zones: int = 4
    speed_m_per_s: float = 50.0
    rate_per_s: float = 200.0  # of each drone
    payload_bytes: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        if self.swarms < 1 or self.drones < 2 or self.zones < 1:
            raise UsageError("uav needs at least one swarm, two drones in each, and one zone")
        if self.speed_m_per_s <= 0 or self.rate_per_s <= 0:
            raise UsageError("uav needs speed_m_per_s and rate_per_s above 0")


# --- the city


def generated_stations(seed: int, count: int = 400, side_m: float = CITY_M) -> Points:
    """Base stations of a city: dense around a few centres, sparse elsewhere."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0.2, 0.8, (5, 2)) * side_m
    dense = centres[rng.integers(0, len(centres), count // 2)] + rng.normal(0.0, side_m / 12, (count // 2, 2))
    sparse = rng.uniform(0.0, side_m, (count - count // 2, 2))
    return np.clip(np.concatenate([dense, sparse]), 0.0, side_m)


def read_stations(path: Path) -> Points:
    """A CSV file with columns for latitude and longitude, in degrees, named `lat` or `latitude` and so on."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [
                {name.strip().lower(): value for name, value in row.items() if name} for row in csv.DictReader(file)
            ]
        degrees = np.array([[float(_field(row, "lat")), float(_field(row, "lon"))] for row in rows])
    except (OSError, UnicodeDecodeError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"cannot read base stations from {path}: {error}; give a CSV with lat and lon") from None
    if len(degrees) == 0:
        raise UsageError(f"no base stations in {path}: give a CSV with lat and lon")
    north = degrees[:, 0] * DEGREE_M
    east = degrees[:, 1] * DEGREE_M * math.cos(math.radians(float(degrees[:, 0].mean())))
    metres = np.stack([east, north], axis=1)
    return metres - metres.min(axis=0)


def _field(row: dict[str, str], begins: str) -> str:
    return next(value for name, value in row.items() if name.startswith(begins))


def zone_centres(stations: Points, zones: int, seed: int) -> Points:
    """k-means (Lloyd), from stations that are far from each other (k-means++)."""
    if len(stations) < zones:
        raise UsageError(f"{len(stations)} base stations do not make {zones} zones")
    rng = np.random.default_rng(seed)
    centres = stations[rng.integers(len(stations), size=1)]
    while len(centres) < zones:
        distance = np.square(stations[:, None] - centres[None]).sum(axis=2).min(axis=1)
        share = distance / distance.sum() if distance.sum() else None
        centres = np.concatenate([centres, stations[rng.choice(len(stations), size=1, p=share)]])
    for _ in range(MEANS_ROUNDS):
        nearest = nearest_zone(stations, centres)
        moved = np.array(
            [
                stations[nearest == zone].mean(axis=0) if (nearest == zone).any() else centres[zone]
                for zone in range(zones)
            ]
        )
        if np.allclose(moved, centres):
            break
        centres = moved
    return centres


def nearest_zone(points: Points, centres: Points) -> npt.NDArray[np.int64]:
    return np.square(points[:, None] - centres[None]).sum(axis=2).argmin(axis=1)


# --- the play


def uav_play(swarms: Swarms, seconds: float, stations: Points | None = None) -> Play:
    """All of it for so many seconds; the same for the same seed."""
    stations = generated_stations(swarms.seed) if stations is None else stations
    zones = zones_over_time(swarms, seconds, stations)
    names = [f"swarm{number}" for number in range(1, swarms.swarms + 1)]
    drones = {name: [f"{name}.drone{number}" for number in range(swarms.drones)] for name in names}
    return Play(
        world=uav_world(swarms.zones),
        brokers={f"b{zone}": zone_name(zone) for zone in range(1, swarms.zones + 1)},
        control_site=CLOUD,
        endpoints={name: Station(zone_name(int(zones[0, n]) + 1), ACCESS_S) for n, name in enumerate(names)},
        clients={drone: name for name in names for drone in drones[name]},
        publications=tuple((drone, topic) for name in names for drone, topic in _spoken(name, drones[name])),
        subscriptions=tuple((drone, topic) for name in names for drone, topic in _heard(name, drones[name])),
        changes=tuple(
            GoTo(step * LOOK_S, names[swarm], zone_name(int(zones[step, swarm]) + 1))
            for step, swarm in zip(*np.nonzero(np.diff(zones, axis=0, prepend=zones[:1])), strict=True)
        ),
        rate_per_s=swarms.rate_per_s,
        payload_bytes=swarms.payload_bytes,
        bound_s=BOUND_S,
    )


def _spoken(swarm: str, drones: list[str]) -> list[tuple[str, str]]:
    leader, *followers = drones
    return [(leader, f"{swarm}.follow_leader"), *((drone, f"{swarm}.sensor_data") for drone in followers)]


def _heard(swarm: str, drones: list[str]) -> list[tuple[str, str]]:
    leader, *followers = drones
    return [(leader, f"{swarm}.sensor_data"), *((drone, f"{swarm}.follow_leader") for drone in followers)]


def zones_over_time(swarms: Swarms, seconds: float, stations: Points) -> npt.NDArray[np.int64]:
    """The zone of each swarm (columns) at each look (rows)."""
    centres = zone_centres(stations, swarms.zones, swarms.seed)
    side_m = float(stations.max()) or 1.0
    movement = Movement(speed_tiles_per_s=swarms.speed_m_per_s / side_m, pause_min_s=0.0, pause_max_s=0.0)
    walk = Walk(swarms.swarms, 1, 1, movement, swarms.seed)
    rows = []
    for look in range(int(seconds / LOOK_S) + 1):
        x, y = walk.positions(look * LOOK_S, swarms.swarms)
        rows.append(nearest_zone(np.stack([x, y], axis=1) * side_m, centres))
    return np.array(rows)


def zone_name(number: int) -> str:
    return f"zone{number}"


def uav_world(zones: int) -> World:
    names = [zone_name(number) for number in range(1, zones + 1)]
    between = dict.fromkeys(combinations(names, 2), BETWEEN_S) | {(name, CLOUD): CLOUD_S for name in names}
    return World(tuple(Site(name, 0.0) for name in (*names, CLOUD)), between, jitter_share=0.0)
