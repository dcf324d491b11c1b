"""A coordinate: a point in space, a height above it, and how sure its owner is.

The distance between two coordinates estimates a round trip. A message goes down from its sender's height to the plane,
through it, and up to its receiver's height: the height is the access link, which every path of a node has in common.
"""

from __future__ import annotations

import math

import msgspec

COMPONENT_MAX_S = 1000.0  # a hundred times the longest round trip that counts: farther away is a lie or a bug


class Coordinate(msgspec.Struct, frozen=True):
    """Where a node is. Anyone may send one, so look at `fault` before use."""

    position_s: tuple[float, ...]
    height_s: float
    error: float  # relative: 0 is sure, the highest is a newcomer's
    adjustment_s: float = 0.0


def distance_s(one: Coordinate, other: Coordinate) -> float:
    """The estimated round trip, with the adjustments of both. They do not count where they would make it negative."""
    raw_s = raw_distance_s(one, other)
    adjusted_s = raw_s + one.adjustment_s + other.adjustment_s
    return adjusted_s if adjusted_s > 0 else raw_s


def raw_distance_s(one: Coordinate, other: Coordinate) -> float:
    """The estimated round trip, from positions and heights alone."""
    return math.dist(one.position_s, other.position_s) + one.height_s + other.height_s


def fault(coordinate: Coordinate, dimensions: int) -> str:
    """What is wrong with a coordinate that came from outside; empty if nothing is."""
    if len(coordinate.position_s) != dimensions:
        return f"a position of {len(coordinate.position_s)} dimensions, expected {dimensions}"
    values = (*coordinate.position_s, coordinate.height_s, coordinate.adjustment_s, coordinate.error)
    if not all(abs(value) <= COMPONENT_MAX_S for value in values):  # false for NaN too
        return f"a value that is not a number, or above {COMPONENT_MAX_S:g} s"
    if coordinate.height_s < 0:
        return f"a height of {coordinate.height_s:g} s"
    if coordinate.error < 0:
        return f"an error of {coordinate.error:g}"
    return ""
