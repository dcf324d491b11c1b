"""Where a newcomer goes before it has subscribed to anything: stage 1 of BAD, section 5.1, for one user at a time.

`policies/multistage/placement.py` does the same for arrays of subscribers, with NumPy, which a controller without a
balancer does not need. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import cos, dist, radians, sin
from random import Random

from nearcast.core.gateways import Gateway


class SeatRule(StrEnum):
    NR = "nr"  # the nearest to the user
    RR = "rr"  # one after the other
    RND = "rnd"  # any
    LL = "ll"  # the one with the least load by the newest reports


class Seating:
    def __init__(self, rule: SeatRule, rng: Random) -> None:
        self._rule = rule
        self._rng = rng
        self._next = 0

    def choose(self, gateways: Mapping[str, Gateway], latitude: float | None, longitude: float | None) -> str:
        """One of the gateways, of which there must be one. Of equal ones, the first by name.

        If the user has not said where it is, or no gateway has, the nearest is not known: it is one after the other.
        """
        names = sorted(gateways)
        if self._rule is SeatRule.RND:
            return self._rng.choice(names)
        if self._rule is SeatRule.LL:
            return min(names, key=lambda name: gateways[name].load_bytes_per_s)
        if self._rule is SeatRule.NR and latitude is not None and longitude is not None:
            sites = {name: site for name in names if (site := _site(gateways[name])) is not None}
            if sites:
                user = on_sphere(latitude, longitude)
                return min(sites, key=lambda name: dist(user, sites[name]))
        self._next += 1
        return names[(self._next - 1) % len(names)]


def on_sphere(latitude: float, longitude: float) -> tuple[float, float, float]:
    """A point of the unit sphere. Straight distances there are in the order of distances over ground."""
    north, east = radians(latitude), radians(longitude)
    return cos(north) * cos(east), cos(north) * sin(east), sin(north)


def _site(gateway: Gateway) -> tuple[float, float, float] | None:
    latitude, longitude = gateway.report.latitude, gateway.report.longitude
    return on_sphere(latitude, longitude) if latitude is not None and longitude is not None else None
