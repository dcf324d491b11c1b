"""Planting: what a planted bug is, and the worlds in which planted bugs show soon."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from nearcast.core.model.placement import Mode
from nearcast.core.model.settings import Limits, Timing
from nearcast.sim.campaign import BRISK, PATIENT
from nearcast.sim.faults import Profile
from nearcast.sim.readers import Read
from nearcast.sim.script import Add, Deafen, Drop, Intrude, Keep, Lose, LoseStore, Part, Pause, Place, Readdress
from nearcast.sim.world import Setup

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


class World(msgspec.Struct, frozen=True):
    """Where a planted bug shows soon."""

    setup: Setup
    profile: Profile


MOVES = World(Setup(topics=1, brokers=4, publishers=4, rate_per_s=60, moves_per_s=10), Profile.CALM)
REPLICAS = World(
    Setup(topics=1, brokers=4, publishers=4, rate_per_s=80, moves_per_s=10, modes=(Mode.ALL_PUBLISHERS,)), Profile.CALM
)
CUTS = World(Setup(topics=1, late_subscribers=14, moves_per_s=10, rate_per_s=60), Profile.NETWORK)
# Some publishers begin while subscribers come back from a cut and the topic moves.
NEWCOMERS = World(Setup(topics=1, late_subscribers=6, publishers=8, moves_per_s=10, rate_per_s=100), Profile.NETWORK)
PATTERNS = World(Setup(topics=1, brokers=4, pattern_subscribers=4, rate_per_s=60, moves_per_s=10), Profile.CALM)
LEAVING = World(
    Setup(topics=1, brokers=4, pattern_subscribers=4, rate_per_s=120, moves_per_s=4, drains=4), Profile.CALM
)
JOINING = World(
    Setup(
        topics=1,
        pattern_subscribers=3,
        late_pattern_subscribers=1,
        early_subscribers=0,
        late_subscribers=0,
        rate_per_s=60,
        moves_per_s=12,
        script=(Add(7.0, "b3"), Add(8.0, "b4"), Add(9.0, "b5")),
        sites=True,
        slow_connects=0.4,
        start_s=4.0,
        traffic_s=8.0,
    ),
    Profile.CALM,
)
KEPT = World(
    Setup(topics=2, publishers=4, rate_per_s=60, moves_per_s=10, script=(Keep(2.5, "topic-*"),)), Profile.NETWORK
)
READ = World(
    Setup(topics=2, brokers=4, publishers=4, rate_per_s=80, moves_per_s=12, script=(Keep(1.6, "topic-*"),), readers=2),
    Profile.CALM,
)
LOST_LIVES = World(
    Setup(topics=4, publishers=4, rate_per_s=60, moves_per_s=6, script=(Keep(1.6, "*"),), readers=2), Profile.SERVERS
)
SHARED = World(
    Setup(topics=4, publishers=4, rate_per_s=60, moves_per_s=6, script=(Keep(1.6, "*"),), members=6), Profile.NETWORK
)
# Two logs, one of them created again under its name; readers sleep longer than it keeps messages.
EXPIRING = World(
    Setup(
        topics=2,
        publishers=4,
        rate_per_s=60,
        moves_per_s=6,
        traffic_s=6.0,
        script=(Keep(1.6, "*"), Keep(1.7, "topic-*", "more"), Drop(2.0, "more"), Keep(2.1, "*", "more", retain_s=1.0)),
        reads=(Read("more", nap_s=3.0), Read("more", group="group", holds=True, nap_s=3.0)),
    ),
    Profile.CALM,
)
DRAINED = World(
    Setup(topics=4, brokers=4, publishers=4, rate_per_s=60, script=(Keep(1.6, "*"),), members=3, drains=3), Profile.CALM
)
# The store and a broker are lost together; replicas have what the broker had kept.
LOST_WITH_A_LIFE = World(
    Setup(
        topics=2,
        publishers=4,
        traffic_s=5.0,
        replicas=2,
        quorum=2,
        readers=1,
        script=(Keep(2.2, "topic-*"), Lose(4.0, "b0", 6.0), LoseStore(4.2, 1.0)),
    ),
    Profile.NETWORK,
)
# Servers die, one after the other; the last one comes back empty so soon that it is not given up.
REPLICATED = World(
    Setup(
        topics=2,
        publishers=4,
        rate_per_s=60,
        moves_per_s=3,
        traffic_s=6.0,
        replicas=2,
        quorum=2,
        readers=1,
        members=1,
        script=(Keep(2.2, "topic-*"), Lose(4.0, "b0", 2.0), Lose(5.0, "b1", 0.2, told=False)),
    ),
    Profile.NETWORK,
)
# Replicas are far behind when servers die, and publishers have lost connections.
LAGGING = World(
    Setup(
        topics=4,
        publishers=12,
        early_subscribers=1,
        late_subscribers=0,
        hasty_subscribers=0,
        rate_per_s=15,
        moves_per_s=0,
        traffic_s=5.0,
        replicas=2,
        replica_lag_s=0.5,
        quorum=2,
        readers=1,
        script=(Keep(2.2, "topic-*"), Lose(4.0, "b0", 2.0), Lose(4.8, "b1", 2.0), Lose(5.6, "b2", 0.2, told=False)),
    ),
    Profile.NETWORK,
)
MANY_TOPICS = World(
    Setup(
        topics=1,
        brokers=1,
        publishers=1,
        early_subscribers=1,
        late_subscribers=0,
        moves_per_s=0,
        many_topics=100,
        many_topics_scale=4000,
        traffic_s=12.0,
    ),
    Profile.NETWORK,
)
CANCELS = World(Setup(topics=1, brokers=4, cancelled_share=0.5, rate_per_s=60, moves_per_s=10), Profile.CALM)
# Servers come back with empty memories while the ring closes: the records are lost before they could be handed over.
EMPTIED = World(
    Setup(
        topics=8,
        brokers=2,
        publishers=2,
        early_subscribers=6,
        late_subscribers=0,
        hasty_subscribers=0,
        moves_per_s=0,
        rate_per_s=10,
        script=(Add(2.5, "b2"), Lose(3.3, "b0", 0.05, told=False), Lose(3.3, "b1", 0.05, told=False)),
    ),
    Profile.NETWORK,
)
CONTROL = World(Setup(topics=2, controllers=2, moves_per_s=6), Profile.CONTROL)
HANDOVERS = World(
    Setup(topics=8, controllers=2, moves_per_s=0, drains=2, script=(Add(2.5, "b3"), Add(3.5, "b4"))), Profile.CONTROL
)
NETWORK = World(Setup(topics=2), Profile.NETWORK)
BUSY_NETWORK = World(
    Setup(topics=1, brokers=2, publishers=8, moves_per_s=1, rate_per_s=60, traffic_s=8.0), Profile.NETWORK
)
SERVERS = World(Setup(topics=2), Profile.SERVERS)
PAUSES = World(
    Setup(topics=1, brokers=2, publishers=6, early_subscribers=4, moves_per_s=1, rate_per_s=60, traffic_s=8.0),
    Profile.CLOCKS,
)
RIGHTS = World(Setup(topics=1, publishers=4, rate_per_s=60, early_subscribers=4), Profile.RIGHTS)
CROWDED = World(
    Setup(topics=1, brokers=4, publishers=6, rate_per_s=80, moves_per_s=10, limits=Limits(window=256, held=4)),
    Profile.NETWORK,
)
FAR = World(Setup(topics=1, moves_per_s=1, client_distances_s=(0.2, 0.35, 0.45)), Profile.NETWORK)
_SELDOM = Setup(
    topics=8,
    rate_per_s=2.5,
    early_subscribers=4,
    late_subscribers=6,
    hasty_subscribers=4,
    moves_per_s=0,
    drains=2,
    traffic_s=10.0,
    script=(Add(3.0, "b3"), Add(6.0, "b4")),
    timing=Timing(idle_s=1.3),
)
SELDOM = World(_SELDOM, Profile.CALM)
SELDOM_NETWORK = World(_SELDOM, Profile.NETWORK)
LARGE = World(Setup(topics=2, controllers=2, load_s=1.5), Profile.STORE)
ASLEEP = World(
    Setup(topics=1, brokers=2, publishers=16, early_subscribers=10, late_subscribers=0, moves_per_s=1, rate_per_s=8),
    Profile.CLOCKS,
)
DEPOSED = World(
    Setup(
        topics=4,
        controllers=2,
        publishers=4,
        rate_per_s=20,
        moves_per_s=0,
        traffic_s=9.0,
        script=(Deafen(3.0, 7.0), Pause(3.1, 3.5)),
    ),
    Profile.CLOCKS,
)
RESTARTS = World(
    Setup(
        topics=1,
        brokers=3,
        publishers=4,
        rate_per_s=60,
        moves_per_s=8,
        traffic_s=7.0,
        echoed_share=0.4,
        echoes_s=(3.0, 4.0, 5.0),
        script=(Lose(1.6, "b0", 0.1), Lose(2.0, "b1", 0.1)),
    ),
    Profile.CONTROL,
)
# While a subscriber reaches nobody, its topic's broker dies and comes back as another one. The subscriber finds it
# before the topic's directory, b2, which alone could tell it that the topic has moved.
CAME_BACK = World(
    Setup(
        topics=1,
        publishers=2,
        late_subscribers=0,
        hasty_subscribers=0,
        moves_per_s=0,
        rate_per_s=20,
        traffic_s=9.5,
        script=(
            Place(2.0, {"topic-0": (Mode.SINGLE, ("b0",))}),
            *(Part(2.9, "subscriber 0", server, away_s) for server, away_s in (("b0", 4.5), ("b1", 4.5), ("b2", 6.5))),
            Lose(3.0, "b0", 0.8),
        ),
    ),
    Profile.NETWORK,
)
# Publishers lose the only server, some between a message and its acknowledgement, and repeat it when it is back.
REPEATED = World(
    Setup(
        topics=1,
        brokers=1,
        publishers=4,
        late_subscribers=0,
        hasty_subscribers=0,
        moves_per_s=0,
        rate_per_s=20,
        traffic_s=8.0,
        script=tuple(Part(4.0, f"publisher {number}", "b0", 4.0) for number in range(4)),
        timing=Timing(idle_s=1.3),
    ),
    Profile.NETWORK,
)
READDRESSED = World(
    Setup(topics=1, brokers=1, moves_per_s=0, front=True, script=(Readdress(3.0, "b0"),)), Profile.NETWORK
)
INTRUDED = World(
    Setup(topics=1, brokers=2, moves_per_s=1, rate_per_s=10, script=(Intrude(2.5, "b0", "b1"),)), Profile.CONTROL
)
LOST = World(
    Setup(topics=1, brokers=3, publishers=4, rate_per_s=60, moves_per_s=6, script=(LoseStore(3.5, 1.0),)),
    Profile.NETWORK,
)
LOST_WITH_A_BROKER = World(
    Setup(
        topics=2,
        brokers=3,
        publishers=4,
        rate_per_s=60,
        moves_per_s=10,
        script=(LoseStore(3.5, 0.3), Lose(3.5, "b1", 6.0)),
        traffic_s=7.0,
    ),
    Profile.NETWORK,
)
WENT_BACK = World(
    Setup(
        topics=2,
        brokers=3,
        controllers=2,
        publishers=4,
        rate_per_s=60,
        moves_per_s=20,
        script=(LoseStore(3.5, 0.05, 1),),
    ),
    Profile.CONTROL,
)
# Only b0 hears of the last commit before the store loses it, and b0 is not heard again before it is given up.
UNHEARD = World(
    Setup(
        topics=1,
        brokers=2,
        controllers=2,
        publishers=3,
        late_subscribers=0,
        hasty_subscribers=0,
        rate_per_s=20,
        moves_per_s=0,
        traffic_s=9.0,
        script=(
            Place(2.2, {"topic-0": (Mode.SINGLE, ("b0",))}),
            Part(3.2, "agent b1", "store", 1.2),
            Place(3.3, {"topic-0": (Mode.SINGLE, ("b1",))}),
            LoseStore(3.5, 0.05, 1),
            Part(3.5, "agent b0", "store", 6.0),
        ),
    ),
    Profile.NETWORK,
)
OTHER_TIMERS = World(
    Setup(
        topics=2,
        brokers=2,
        publishers=4,
        moves_per_s=0,
        traffic_s=7.0,
        leaders=(BRISK,),
        script=(Part(3.0, "agent b0", "store", 4.0),),
    ),
    Profile.CLOCKS,
)
OTHER_LEADER = World(
    Setup(
        topics=2,
        brokers=2,
        publishers=4,
        moves_per_s=0,
        traffic_s=9.0,
        controllers=2,
        leaders=(PATIENT, BRISK),
        script=(Pause(3.0, 5.0), Part(3.0, "agent b0", "store", 5.0)),
    ),
    Profile.CLOCKS,
)
PLANNED = World(Setup(topics=1, moves_per_s=0, policy=True, traffic_s=3.0), Profile.CONTROL)


class Mutation(msgspec.Struct, frozen=True):
    plant: Plant
    caught_by: str  # what the finding must say
    world: World


Register = Callable[[str, World], Callable[[Plant], Plant]]


def planting() -> tuple[dict[str, Mutation], Register]:
    """The planted bugs of a module, by name, and how to add one: what the finding must say, and where it shows."""
    mutations: dict[str, Mutation] = {}

    def mutation(caught_by: str, world: World) -> Callable[[Plant], Plant]:
        def register(plant: Plant) -> Plant:
            mutations[plant.__name__] = Mutation(plant, caught_by, world)
            return plant

        return register

    return mutations, mutation
