"""Random placements of clients, for figures 4 and 5: the players of a game in cities, swarms of drones over a town.

Every placement has a random generator of its own, so the figures do not depend on how placements are divided into jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from nearcast.experiments.epulsar.selection import Selector, Tally, Topics, Way
from nearcast.experiments.epulsar.topology import Floats, Topology
from nearcast.experiments.result import Progress
from nearcast.workloads.uav import nearest_zone

PLACEMENTS = 1000  # section 5.5.1
PLAYERS, GROUPS = 1024, 128  # section 5.5.2
SWARMS, DRONES = 16, 8  # section 5.5.3
PER_JOB = 50  # placements


class Town(msgspec.Struct, frozen=True, eq=False):
    """Where drones fly, and the zones below them. Points are east and north in metres."""

    corners: Floats  # south-west and north-east
    zones: Floats  # the sites, one row each


class Job(msgspec.Struct, frozen=True, eq=False):
    """Some placements on one topology."""

    topology: Topology
    bound_s: float
    seed: int
    first: int
    count: int
    town: Town | None = None  # for swarms; without one, there are players in cities

    def __str__(self) -> str:
        return f"{len(self.topology.brokers)} brokers, placements {self.first} to {self.first + self.count - 1}"


Tallies = dict[Way, Tally]
Engine = Callable[[Callable[[Job], Tallies], Sequence[Job], Progress], list[Tallies]]


def jobs_for(topology: Topology, bound_s: float, seed: int, placements: int, town: Town | None = None) -> list[Job]:
    return [
        Job(topology, bound_s, seed, first, min(PER_JOB, placements - first), town)
        for first in range(0, placements, PER_JOB)
    ]


def run_job(job: Job) -> Tallies:
    selector = Selector(job.topology)
    sums = dict.fromkeys(Way, Tally())
    for number in range(job.first, job.first + job.count):
        rng = np.random.default_rng((job.seed, number))
        topics = players(rng, len(job.topology.brokers)) if job.town is None else swarms(rng, job.town)
        for way in Way:
            sums[way] += selector.tally(topics, way, job.bound_s)
    return sums


def players(rng: np.random.Generator, cities: int) -> Topics:
    """A topic per avatar: published by its city's game server, heard by those of the other members of its group."""
    city = rng.integers(cities, size=PLAYERS)
    members = rng.permutation(PLAYERS).reshape(GROUPS, -1)
    size = members.shape[1]
    # Row i of `rest` names the seats of a group without seat i.
    rest = np.array([[seat for seat in range(size) if seat != own] for own in range(size)])
    others = members[:, rest].reshape(PLAYERS, size - 1)
    avatars = members.reshape(PLAYERS)
    return Topics(tuple(f"avatar{avatar}" for avatar in avatars.tolist()), city[avatars], city[others])


def swarms(rng: np.random.Generator, town: Town) -> Topics:
    """Two topics per swarm: the leader to its followers, and the followers to their leader. All fly together."""
    zone = nearest_zone(rng.uniform(town.corners[0], town.corners[1], (SWARMS, 2)), town.zones)
    names = [f"swarm{number}.{topic}" for number in range(SWARMS) for topic in ("follow_leader", "sensor_data")]
    one = np.repeat(zone, 2)
    return Topics(tuple(names), one, np.repeat(one[:, None], DRONES - 1, axis=1))
