"""Locating: where this broker is among all brokers, in the coordinates of Vivaldi.

Only ePulsar's centroids need it, so it is done only if the leader's policy wants them. Agents tell the leader where
they are, and it tells all agents: with every message of the leader an agent moves its coordinate a little.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from nearcast.coordinates.coordinate import Coordinate
from nearcast.coordinates.vivaldi import Vivaldi, VivaldiSettings
from nearcast.core.model.distances import BrokerCoordinate
from nearcast.errors import ProtocolError

# Centroids know no adjustments. Four dimensions are enough for a few hundred brokers, and make short reports.
SETTINGS = VivaldiSettings(dimensions=4, adjustment_window=0)
ROUNDS = 5  # over all brokers, with each message: after six of them, coordinates hardly change any more
DIGITS = 5  # of seconds that are reported


class Locating:
    """Input: heard."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._vivaldi = Vivaldi(SETTINGS, seed=rng.getrandbits(32))

    def heard(self, others: Mapping[str, BrokerCoordinate], round_trips_s: Mapping[str, float]) -> BrokerCoordinate:
        """Where the other brokers are, and how far from here. Returns where this one is."""
        peers = [name for name in others if name in round_trips_s]
        for _ in range(ROUNDS):
            self._rng.shuffle(peers)
            for name in peers:
                try:
                    self._vivaldi.observed(name, _coordinate(others[name]), round_trips_s[name])
                except ProtocolError:  # another agent lies, or has a newer version: nothing has changed
                    continue
        own = self._vivaldi.coordinate
        point = (*own.position_s, own.height_s)
        return BrokerCoordinate(tuple(round(value, DIGITS) for value in point), round(own.error, DIGITS))


def _coordinate(found: BrokerCoordinate) -> Coordinate:
    return Coordinate(found.point_s[:-1], found.point_s[-1], found.error)
