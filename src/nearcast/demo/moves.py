"""Act 1 of the demo: games played over an emulated world while their topics move and processes are killed.

There are three brokers, one per site of `WORLD`. Every game is a topic with players at its sites: half of them publish,
half of them subscribe, each through the delay between its site and the broker it uses. Operators keep moving every
topic, a killer occasionally kills an agent or the controller with SIGKILL, and an audit counts what players noticed.
When the games are over, a broker's server is killed too, and what a log has kept there is read (`ledger.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial

from nearcast.core.model.message import Event
from nearcast.core.model.placement import Mode, Placement
from nearcast.demo.act import Act, Kind, Summary, Tell
from nearcast.demo.ledger import LedgerRead, read_after_a_kill
from nearcast.errors import ClusterError, UsageError
from nearcast.runtime.console import Console
from nearcast.testing.audit import Verdict
from nearcast.testing.chaos import Killer
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.load import Load, LoadShape, WatchedTopic
from nearcast.testing.network.sites import WORLD, Paths

# --- the games


SITES = ("paris", "virginia", "tokyo")  # brokers have the names of their sites
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
    """How long the act lasts, and how many clients play the games."""

    seconds: float = 20.0
    clients: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        if self.clients < CLIENTS_MIN:
            raise UsageError(f"{self.clients} clients are too few to play at all sites: use {CLIENTS_MIN} or more")

    def shape(self, topic: str) -> LoadShape:
        """The load of one game: its share of the clients, half of which publish."""
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


# --- the act


MODES = (Mode.SINGLE, Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS)
REST_S = (1.5, 4.0)  # between two moves of a topic: long enough to see what the last one did to its latency
KILL_S = (2.0, 6.0)  # between two kills
MOVE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesSummary(Summary):
    moves: int
    mode_changes: int
    agent_kills: int
    controller_kills: int
    kept: int  # messages of a log whose broker was killed at the end,
    read: int  # and how many of them were read after that


class MovesAct(Act[MovesSummary]):
    """Act 1: topics move between three sites while processes are killed."""

    def __init__(self, plan: MovesPlan, tell: Tell) -> None:
        super().__init__({topic: WatchedTopic(plan.shape(topic).subscribers) for topic in GAMES}, plan.seed, tell)
        self.plan = plan
        self.clients = plan.clients
        self.agent_kills = 0
        self.ledger = LedgerRead(0, 0)
        self._cluster: LocalCluster | None = None

    # --- start

    async def _start(self, stack: AsyncExitStack) -> LocalCluster:
        self._tell(f"starting 3 brokers ({', '.join(SITES)}) and a controller ...")
        sites = dict(zip(SITES, SITES, strict=True))
        started = await LocalCluster.start(SITES, sites=sites, replicas=1)
        cluster = self._cluster = await stack.enter_async_context(started)
        places = {topic: (Mode.SINGLE, sites[:1]) for topic, sites in GAMES.items()}
        for topic, state in (await (await cluster.console()).move_all(places)).items():
            self._placed(topic, state.placement)
        self._tell(f"connecting {self.plan.clients} clients at emulated distances ...")
        at = {url: name for name, url in cluster.urls.items()}
        paths = await stack.enter_async_context(await Paths.start(WORLD, at, self._dice("network")))
        self._loads = [self._load(topic, list(at), paths) for topic in GAMES]
        await asyncio.gather(*(stack.enter_async_context(load) for load in self._loads))
        return cluster

    def _load(self, topic: str, urls: list[str], paths: Paths) -> Load:
        def saw(_: str, events: list[Event]) -> None:
            self.topics[topic].saw(events)

        resolves = [paths.resolve(site) for site in GAMES[topic]]
        return Load(urls, self.plan.shape(topic), saw, resolves=resolves)

    # --- moves

    def _parts(self, cluster: LocalCluster, console: Console) -> list[Coroutine[object, object, None]]:
        killer = Killer(cluster, partial(self._happened, kind=Kind.KILL))
        operators = [self._operate(console, topic, game) for topic, game in self.topics.items()]
        return [self._time(), self._kill(killer), *operators]

    async def _time(self) -> None:
        await self._going_on(self.plan.seconds)
        self._ending.set()

    async def _operate(self, console: Console, topic: str, game: WatchedTopic) -> None:
        dice = self._dice(topic)
        while await self._going_on(dice.uniform(*REST_S)):
            target = game.target = _elsewhere(game, dice)
            try:
                state = await console.move(topic, target.mode, target.brokers, timeout_s=MOVE_S)
                self._placed(topic, state.placement)
            except ClusterError as error:
                # The move may continue: the next move, or the next look, will show it.
                self._happened(f"{topic}: {error}", Kind.MOVE)
            game.target = None

    def _moved(self, topic: str, before: Placement, after: Placement) -> None:
        self._happened(f"{topic}: {describe(before)} -> {describe(after)}", Kind.MOVE)

    async def _kill(self, killer: Killer) -> None:
        dice = self._dice("killer")
        while await self._going_on(dice.uniform(*KILL_S)):
            broker = dice.choice((None, *SITES))
            if broker is None:
                self.controller_kills += 1
                await killer.controller()
            else:
                self.agent_kills += 1
                await killer.agent(broker)

    # --- end

    async def _end(self) -> list[Verdict]:
        verdicts = await super()._end()
        if self._cluster is not None and not self.stopped:
            self._tell(f"killing the server of {SITES[0]}, and reading what a log has kept there ...")
            self.ledger = await read_after_a_kill(self._cluster, SITES[0])
            if not self.ledger.complete:
                self.missed.append(f"a log is read to its end after its broker was killed ({self.ledger.read} read)")
        return verdicts

    def _summary(self, common: Summary) -> MovesSummary:
        return MovesSummary(
            **asdict(common),
            moves=self.moves,
            mode_changes=sum(game.mode_changes for game in self.topics.values()),
            agent_kills=self.agent_kills,
            controller_kills=self.controller_kills,
            kept=self.ledger.acknowledged,
            read=self.ledger.read,
        )


def _elsewhere(game: WatchedTopic, dice: random.Random) -> Placement:
    """Another place for the game's topic. The controller decides its epoch."""
    while True:
        mode = dice.choice(MODES)
        count = 1 if mode is Mode.SINGLE else dice.randint(2, len(SITES))
        place = Placement(0, mode, tuple(sorted(dice.sample(SITES, count), key=SITES.index)))
        if game.placement is None or not place.same_place(game.placement):
            return place
