"""Topologies: brokers and clients with true round trips, and what is known of them without measuring every pair.

A topology is known in two ways. Network coordinates are the paper's: every broker and every client has one, settled by
Vivaldi. Estimates are ours: brokers measure each other, a client measures a few brokers, and the rest is inferred.

Mobile clients have no coordinate of their own. They take that of their site's proxy, and their access delay as height.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from nearcast.coordinates.estimator import Estimator
from nearcast.coordinates.worlds import settled
from nearcast.errors import UsageError
from nearcast.flow.network import read_matrix

Floats = NDArray[np.float64]

CYCLES = 600  # ten minutes of one probe a second (section 5.5.1)
PROBES = 8  # brokers that a client measures: half the nearest, half any


class Topology(msgspec.Struct, frozen=True, eq=False):
    """Rows of round trips are clients, columns are brokers; seconds. Coordinates have their height last."""

    brokers: tuple[str, ...]
    rtt_s: Floats  # the truth
    estimated_rtt_s: Floats  # ours
    client_coordinates: Floats
    broker_coordinates: Floats

    def coordinate_rtt_s(self) -> Floats:
        """The paper's: distances of coordinates."""
        return apart(self.client_coordinates, self.broker_coordinates)


def apart(points: Floats, others: Floats) -> Floats:
    """Distances of coordinates, one row per point."""
    space: Floats = np.sqrt(((points[:, None, :-1] - others[None, :, :-1]) ** 2).sum(axis=2))
    return space + points[:, None, -1] + others[None, :, -1]


def known(brokers: Sequence[str], broker_rtt_s: Floats, client_rtt_s: Floats, seed: int) -> Topology:
    """The topology of clients that stay where they are. Two clients reach each other over their nearest brokers."""
    nearest = client_rtt_s.argmin(axis=1)
    between_s = client_rtt_s[:, nearest] + client_rtt_s.min(axis=1)[None, :]
    coordinates = coordinates_of(np.block([[broker_rtt_s, client_rtt_s.T], [client_rtt_s, between_s]]), seed)
    return Topology(
        tuple(brokers),
        client_rtt_s,
        estimated(broker_rtt_s, client_rtt_s, seed),
        coordinates[len(brokers) :],
        coordinates[: len(brokers)],
    )


def coordinates_of(rtt_s: Floats, seed: int) -> Floats:
    """One per node. The adjustment is part of the height, because distances add both."""
    world = (rtt_s + rtt_s.T) / 2
    np.fill_diagonal(world, 0.0)
    nodes = [node.coordinate for node in settled(world.tolist(), CYCLES, seed=seed + 1)]
    return np.array([(*node.position_s, node.height_s + node.adjustment_s) for node in nodes])


def estimated(broker_rtt_s: Floats, client_rtt_s: Floats, seed: int) -> Floats:
    """What clients' probes and the round trips between brokers say of all pairs."""
    clients, brokers = client_rtt_s.shape
    if brokers <= PROBES:
        return client_rtt_s  # every client measures every broker
    rng = np.random.default_rng(seed)
    probes = np.full(client_rtt_s.shape, np.nan)
    for client in range(clients):
        nearest = np.argsort(client_rtt_s[client], kind="stable")[: PROBES // 2]
        others = rng.permutation(np.setdiff1d(np.arange(brokers), nearest))[: PROBES - len(nearest)]
        chosen = np.concatenate((nearest, others))
        probes[client, chosen] = client_rtt_s[client, chosen]
    return Estimator(broker_rtt_s, PROBES, seed=seed).estimate(probes)


# --- cities: one broker and one game server each


ACCESS_RTT_S = 0.010  # between a city's game server and its broker: 5 ms one way (section 5.1.2)
GENERATED_CITIES = 64
SIZE_S = 0.075  # of the generated country: a round trip from side to side
LAST_MILE_S = 0.003  # mean, of a city
DETOUR = 0.15  # standard deviation of the logarithm: real routes are not straight


def generated_matrix(seed: int, cities: int = GENERATED_CITIES) -> Floats:
    """Round trips between cities of a country that is twice as wide as high."""
    rng = np.random.default_rng((seed, 1))
    places = rng.uniform(0.0, 1.0, (cities, 2)) * (SIZE_S, SIZE_S / 2)
    miles = rng.exponential(LAST_MILE_S, cities)
    rtt_s = np.sqrt(((places[:, None] - places[None]) ** 2).sum(axis=2))
    rtt_s = rtt_s * np.exp(np.abs(rng.normal(0.0, DETOUR, rtt_s.shape))) + miles[:, None] + miles
    rtt_s = (rtt_s + rtt_s.T) / 2
    np.fill_diagonal(rtt_s, 0.0)
    return rtt_s


def city_matrix(path: Path | None, seed: int) -> tuple[tuple[str, ...], Floats]:
    """Cities and the round trips between them in seconds, from a file in ms if one is given."""
    if path is None:
        rtt_s = generated_matrix(seed)
        return tuple(f"city{number}" for number in range(len(rtt_s))), rtt_s
    names, rtt_ms = read_matrix(path)
    rtt_s = (rtt_ms + rtt_ms.T) / 2e3
    np.fill_diagonal(rtt_s, 0.0)
    return names, rtt_s


def city_topology(names: Sequence[str], rtt_s: Floats, count: int, seed: int) -> Topology:
    """So many of the cities: the first of a random order, so that larger topologies contain smaller ones."""
    if not 2 <= count <= len(names):
        raise UsageError(f"{count} cities of {len(names)}: choose 2 to {len(names)}")
    chosen = np.random.default_rng((seed, 2)).permutation(len(names))[:count]
    between_s = rtt_s[np.ix_(chosen, chosen)]
    return known([names[city] for city in chosen], between_s, between_s + ACCESS_RTT_S, seed)


# --- zones: one broker and one proxy each


ZONE_ACCESS_RTT_S = 0.016  # a drone and its zone's site: 8 ms one way
BETWEEN_ZONES_RTT_S = 0.030  # section 5.1.1
IN_ZONE_RTT_S = 0.0005  # a site's broker and its proxy


def zone_topology(zones: int, seed: int) -> Topology:
    """A client here is a drone somewhere in a zone: number z is in zone z."""
    away = ~np.eye(zones, dtype=np.bool_)
    sites_rtt_s = np.where(away, BETWEEN_ZONES_RTT_S, 0.0)
    proxies_rtt_s = np.where(away, BETWEEN_ZONES_RTT_S, IN_ZONE_RTT_S)
    coordinates = coordinates_of(np.block([[sites_rtt_s, proxies_rtt_s.T], [proxies_rtt_s, sites_rtt_s]]), seed)
    drones = coordinates[zones:].copy()
    drones[:, -1] += ZONE_ACCESS_RTT_S
    rtt_s = ZONE_ACCESS_RTT_S + sites_rtt_s
    names = tuple(f"zone{number + 1}" for number in range(zones))
    return Topology(names, rtt_s, estimated(sites_rtt_s, rtt_s, seed), drones, coordinates[:zones])
