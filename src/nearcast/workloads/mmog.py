"""An online game in several cities: players in groups, and a topic per avatar (ePulsar, sections 5.1.2 and 5.8.2).

Every city has one broker and one game server, which serves the players of its city. Game servers are the clients. What
a player's avatar does is published by its game server on the avatar's topic. A game server hears the topics of all
avatars that share a group with one of its own players, except those it publishes itself. Messages must arrive within
100 ms. A player leaves its group after a while and joins another, both drawn uniformly; so the listeners of topics
change all the time, and with them the broker that suits them.

A game server reaches the broker of its city in 5 ms one way. The paper takes the delays between cities from a table of
round trips and adds round trips where a message goes one way; `Distances.PAPER` does the same, `HALVED` takes half of
each. By the second, hardly any placement misses 100 ms within the USA.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import combinations
from pathlib import Path

import msgspec

from nearcast.errors import UsageError
from nearcast.testing.network.sites import Site, World
from nearcast.workloads.located.play import Change, Ignore, Listen, Play, Station

BOUND_S = 0.100  # 5.1.2
ACCESS_S = 0.005  # one way, between a city's game server and its broker
MEAN_LIFE_S = 45.0  # ours, of exponential lifetimes: the mean of figure 9's

# Round trips in ms: round figures of the usual order between these cities, not measurements.
ROUND_TRIPS_MS: Mapping[tuple[str, str], float] = {
    ("newyork", "chicago"): 21.0,
    ("newyork", "dallas"): 41.0,
    ("newyork", "losangeles"): 66.0,
    ("newyork", "seattle"): 68.0,
    ("chicago", "dallas"): 24.0,
    ("chicago", "losangeles"): 48.0,
    ("chicago", "seattle"): 49.0,
    ("dallas", "losangeles"): 34.0,
    ("dallas", "seattle"): 48.0,
    ("losangeles", "seattle"): 30.0,
}
CITIES = ("newyork", "chicago", "dallas", "losangeles", "seattle")


class Distances(StrEnum):
    """What the table of round trips says about one way."""

    PAPER = "paper"  # all of it
    HALVED = "halved"


class Lifetimes(StrEnum):
    """How long a player stays in a group."""

    UNIFORM = "uniform"  # 30 to 60 s, figure 9
    EXPONENTIAL = "exponential"  # 5.1.2


class Game(msgspec.Struct, frozen=True, kw_only=True):
    """The paper's figures of section 5.8.2, where it gives them."""

    players: int = 64
    groups: int = 8  # ours: eight players each, as in figure 4
    rate_per_s: float = 300.0  # of each avatar
    payload_bytes: int = 998
    lifetimes: Lifetimes = Lifetimes.UNIFORM
    distances: Distances = Distances.PAPER
    seed: int = 0

    def __post_init__(self) -> None:
        if self.players < 1 or self.groups < 2 or self.rate_per_s <= 0:
            raise UsageError("mmog needs at least one player, two groups, and rate_per_s above 0")


def read_round_trips(path: Path, cities: tuple[str, ...]) -> dict[tuple[str, str], float]:
    """A square CSV of round trips in ms, cities in the first row and column; both directions are averaged."""
    if len(set(cities)) < max(2, len(cities)):
        raise UsageError("name two or more cities, each of them once")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
        table = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}
        return {
            (one, other): (float(table[one][other]) + float(table[other][one])) / 2
            for one, other in combinations(cities, 2)
        }
    except (OSError, UnicodeDecodeError, ValueError, KeyError, IndexError) as error:
        raise UsageError(f"cannot read round trips of {', '.join(cities)} from {path}: {error}") from None


def mmog_world(round_trips_ms: Mapping[tuple[str, str], float], distances: Distances) -> World:
    cities = list(dict.fromkeys(city for pair in round_trips_ms for city in pair))
    factor = 1e-3 if distances is Distances.PAPER else 0.5e-3
    delays_s = {pair: round_trip_ms * factor for pair, round_trip_ms in round_trips_ms.items()}
    return World(tuple(Site(city, 0.0) for city in cities), delays_s, jitter_share=0.0)


# --- who is in which group


class Joined(msgspec.Struct, frozen=True):
    """A player leaves its group for another."""

    at_s: float
    player: int
    group: int


def homes_of(game: Game, cities: Sequence[str]) -> list[str]:
    """The city of each player."""
    rng = random.Random(f"homes {game.seed}")
    return [rng.choice(cities) for _ in range(game.players)]


def memberships(game: Game, seconds: float) -> tuple[list[int], list[Joined]]:
    """The group of each player at the beginning, and all changes by time."""
    rng = random.Random(f"groups {game.seed}")
    groups = [rng.randrange(game.groups) for _ in range(game.players)]
    joined: list[Joined] = []
    for player, group in enumerate(groups):
        at_s, now = 0.0, group
        while (at_s := at_s + _life_s(game.lifetimes, rng)) < seconds:
            others = [other for other in range(game.groups) if other != now]
            now = rng.choice(others)
            joined.append(Joined(at_s, player, now))
    return groups, sorted(joined, key=lambda change: (change.at_s, change.player))


def _life_s(lifetimes: Lifetimes, rng: random.Random) -> float:
    return rng.uniform(30.0, 60.0) if lifetimes is Lifetimes.UNIFORM else rng.expovariate(1 / MEAN_LIFE_S)


class Met(msgspec.Struct, frozen=True):
    """For a while an avatar is in the same group as a given one."""

    player: int
    from_s: float
    to_s: float


def met_by(game: Game, seconds: float, player: int) -> list[Met]:
    """Whom a player meets, and when: the lines of figure 9."""
    groups, joined = memberships(game, seconds)
    now, since_s, met = list(groups), dict[int, float](), list[Met]()

    def look(at_s: float) -> None:
        beside = {other for other in range(game.players) if other != player and now[other] == now[player]}
        met.extend(Met(other, since_s.pop(other), at_s) for other in sorted(since_s.keys() - beside))
        since_s.update(dict.fromkeys(beside - since_s.keys(), at_s))

    look(0.0)
    for change in joined:
        now[change.player] = change.group
        look(change.at_s)
    met.extend(Met(other, from_s, seconds) for other, from_s in sorted(since_s.items()))
    return met


# --- the play


def mmog_play(game: Game, seconds: float, round_trips_ms: Mapping[tuple[str, str], float] = ROUND_TRIPS_MS) -> Play:
    """All of it for so many seconds; the same for the same seed. The first city has the controller."""
    world = mmog_world(round_trips_ms, game.distances)
    cities = [site.name for site in world.sites]
    homes = homes_of(game, cities)
    groups, joined = memberships(game, seconds)
    heard = _heard(homes, groups)
    return Play(
        world=world,
        brokers={f"b{number}": city for number, city in enumerate(cities, start=1)},
        control_site=cities[0],
        endpoints={server_of(city): Station(city, ACCESS_S) for city in cities},
        clients={server_of(city): server_of(city) for city in cities},
        publications=tuple((server_of(home), avatar(player)) for player, home in enumerate(homes)),
        subscriptions=tuple(sorted(heard)),
        changes=_changes(homes, groups, joined),
        rate_per_s=game.rate_per_s,
        payload_bytes=game.payload_bytes,
        bound_s=BOUND_S,
    )


def avatar(player: int) -> str:
    return f"avatar{player}"


def server_of(city: str) -> str:
    return f"{city}.game"


def _heard(homes: list[str], groups: list[int]) -> set[tuple[str, str]]:
    """Which game server hears which topic."""
    present: dict[int, set[str]] = {}
    for home, group in zip(homes, groups, strict=True):
        present.setdefault(group, set()).add(home)
    return {
        (server_of(city), avatar(player))
        for player, group in enumerate(groups)
        for city in present[group]
        if city != homes[player]
    }


def _changes(homes: list[str], groups: list[int], joined: list[Joined]) -> tuple[Change, ...]:
    """What a game server hears anew or no longer, whenever a player changes its group."""
    now, heard, changes = list(groups), _heard(homes, groups), list[Change]()
    for change in joined:
        now[change.player] = change.group
        after = _heard(homes, now)
        changes += [Listen(change.at_s, *each) for each in sorted(after - heard)]
        changes += [Ignore(change.at_s, *each) for each in sorted(heard - after)]
        heard = after
    return tuple(changes)
