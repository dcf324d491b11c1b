"""The games of the demo's first act: topics with players at one or more sites, and who plays which."""

from __future__ import annotations

from dataclasses import dataclass

from nearcast.core.placement import Placement
from nearcast.errors import UsageError
from nearcast.testbed.load import LoadShape

SITES = ("paris", "virginia", "tokyo")  # the brokers are called as their sites
GAMES: dict[str, tuple[str, ...]] = {
    "game.paris": ("paris",),
    "game.virginia": ("virginia",),
    "game.tokyo": ("tokyo",),
    "game.atlantic": ("paris", "virginia"),
    "game.pacific": ("tokyo", "virginia"),
    "game.world": SITES,
}
CLIENTS_MIN = 2 * len(SITES) * len(GAMES)  # a publisher and a subscriber at every site of every game

RATE_PER_PUBLISHER_S = 15.0


@dataclass(frozen=True, slots=True)
class MovesPlan:
    seconds: float = 35.0
    clients: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        if self.clients < CLIENTS_MIN:
            raise UsageError(f"{self.clients} clients are too few to play at all sites: use {CLIENTS_MIN} or more")

    def shape(self, topic: str) -> LoadShape:
        """Of one game: its share of the clients, of whom half publish."""
        number, games = list(GAMES).index(topic), len(GAMES)
        clients = self.clients // games + (number < self.clients % games)
        rate_per_s = RATE_PER_PUBLISHER_S * (clients // 2)
        return LoadShape(
            clients // 2, clients - clients // 2, rate_per_s=rate_per_s, seed=self.seed + number, names=(topic,)
        )


def describe(placement: Placement) -> str:
    return f"{placement.mode} {describe_brokers(placement.brokers)}"


def describe_brokers(brokers: tuple[str, ...]) -> str:
    return "all three" if len(brokers) == len(SITES) else "+".join(brokers)
