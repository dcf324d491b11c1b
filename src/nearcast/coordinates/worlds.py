"""Synthetic worlds: round trips that are known exactly, and what coordinates make of them.

A world is a square matrix of round trips in seconds, as rows of plain lists. The shapes are those of Serf's tests, plus
three of ours: a star, cities with access links, and a world in which one node drifts away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import msgspec

from nearcast.coordinates.coordinate import distance_s
from nearcast.coordinates.vivaldi import SERF, Vivaldi, VivaldiSettings

World = list[list[float]]


def world_of(nodes: int, rtt_s: Callable[[int, int], float]) -> World:
    """The matrix of a symmetrical function of two nodes."""
    world = [[0.0] * nodes for _ in range(nodes)]
    for one in range(nodes):
        for other in range(one + 1, nodes):
            world[one][other] = world[other][one] = rtt_s(one, other)
    return world


def line(nodes: int, spacing_s: float) -> World:
    return world_of(nodes, lambda one, other: (other - one) * spacing_s)


def grid(nodes: int, spacing_s: float) -> World:
    """A square of nodes, filled row by row."""
    side = math.isqrt(nodes - 1) + 1
    return world_of(nodes, lambda one, other: spacing_s * math.dist(divmod(one, side), divmod(other, side)))


def split(nodes: int, lan_s: float, wan_s: float) -> World:
    """Two data centres."""
    half = nodes // 2
    return world_of(nodes, lambda one, other: lan_s + (wan_s if (one <= half) != (other <= half) else 0.0))


def star(nodes: int, links_s: list[float]) -> World:
    """Every node has a link to one centre; only heights can tell this."""
    return world_of(nodes, lambda one, other: links_s[one] + links_s[other])


def circle(nodes: int, radius_s: float) -> World:
    """Nodes on a circle, and the first one high above its centre: two radii away from each of the others."""

    def rtt_s(one: int, other: int) -> float:
        if one == 0:
            return 2 * radius_s
        return 2 * radius_s * abs(math.sin(math.pi * (other - one) / nodes))

    return world_of(nodes, rtt_s)


def noisy(nodes: int, mean_s: float, deviation_s: float, seed: int) -> World:
    """Round trips without any order: no space holds them."""
    rng = Random(seed)
    return world_of(nodes, lambda _one, _other: max(rng.gauss(mean_s, deviation_s), 1e-4))


def cities(nodes: int, seed: int, *, dimensions: int = 2, size_s: float = 0.2, access_s: float = 0.01) -> World:
    """Nodes at random places, each with an access link of its own."""
    rng = Random(seed)
    places = [[rng.random() * size_s for _ in range(dimensions)] for _ in range(nodes)]
    links_s = [rng.expovariate(1 / access_s) if access_s else 0.0 for _ in range(nodes)]
    return world_of(nodes, lambda one, other: math.dist(places[one], places[other]) + links_s[one] + links_s[other])


def drifted(world: World, node: int, longer_s: float) -> World:
    """The same world after one node's access link has become longer."""
    return world_of(len(world), lambda one, other: world[one][other] + (longer_s if node in (one, other) else 0.0))


# --- what coordinates make of a world


class Accuracy(msgspec.Struct, frozen=True):
    """Relative errors of all pairs."""

    mean: float
    max: float


def settled(
    world: World, cycles: int, settings: VivaldiSettings = SERF, *, seed: int = 1, nodes: list[Vivaldi] | None = None
) -> list[Vivaldi]:
    """The nodes after so many cycles: in each, every node measures one random peer. Goes on with `nodes` if given."""
    rng = Random(seed)
    count = len(world)
    members = nodes or [Vivaldi(settings, seed=seed * 1_000_003 + number) for number in range(count)]
    for cycle in range(cycles):
        for number, node in enumerate(members):
            peer = (number + rng.randrange(1, count)) % count
            node.observed(str(peer), members[peer].coordinate, world[number][peer], float(cycle))
    return members


def accuracy(nodes: list[Vivaldi], world: World) -> Accuracy:
    errors = [
        abs(distance_s(nodes[one].coordinate, nodes[other].coordinate) - world[one][other]) / world[one][other]
        for one in range(len(nodes))
        for other in range(one + 1, len(nodes))
    ]
    return Accuracy(sum(errors) / len(errors), max(errors))
