"""The demo: games played over an emulated world while their topics move, and while agents and controllers are killed.

Three brokers, one per site of `WORLD`. Every game is a topic with players at its sites: half of them publish, half of
them subscribe, each through the delay between its site and the broker it talks to. Operators move every topic all the
time, a killer ends an agent or the controller with SIGKILL now and then, and an audit counts what players noticed.

    demo = Demo(DemoPlan(seconds=20), tell=print)
    summary = await demo.run()
    assert summary.exact

What a view shows while it runs is public: `games`, `brokers`, `events` and the totals.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain

from nearcast.core.bus import BrokerView
from nearcast.core.message import Event, Message
from nearcast.core.placement import Mode, Placement
from nearcast.errors import ClusterError, Unavailable
from nearcast.runtime.console import Console
from nearcast.testbed.audit import Verdict
from nearcast.testbed.cluster import LocalCluster
from nearcast.testbed.games import GAMES, SITES, DemoPlan, Game, Place, describe
from nearcast.testbed.killer import Killer
from nearcast.testbed.load import Load
from nearcast.testbed.paths import Paths
from nearcast.testbed.recent import RECENT_S, percentile
from nearcast.testbed.sites import WORLD

MODES = (Mode.SINGLE, Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS)
REST_S = (1.5, 4.0)  # between two moves of a topic: long enough to see what the last one did to its latency
KILL_S = (2.0, 6.0)  # between two kills
MOVE_S = 20.0
LOOK_S = 1.0  # agents report as often
EVENTS_KEPT = 100

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Happening:
    at_s: float  # since the demo began
    text: str
    kill: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did and what came of it. `exact`: every message came once and in order, and nobody was cut off."""

    seconds: float
    clients: int
    seed: int
    messages: int
    deliveries: int
    moves: int
    mode_changes: int
    agent_kills: int
    controller_kills: int
    lost: int
    duplicated: int
    reordered: int
    gaps: int
    interrupted: int
    p50_ms: float | None
    p99_ms: float | None
    exact: bool
    examples: list[str]  # of what went wrong


class Demo:
    """Make one per run. `tell` gets a line for every step of the start and of the end."""

    def __init__(self, plan: DemoPlan, tell: Tell) -> None:
        self.plan = plan
        self.games = {topic: Game(plan.shape(topic).subscribers) for topic in GAMES}
        self.brokers: dict[str, BrokerView] = {}
        self.events: deque[Happening] = deque(maxlen=EVENTS_KEPT)
        self.agent_kills = 0
        self.controller_kills = 0
        self.noticed = 0  # what subscribers should not have seen, so far
        self.begun = asyncio.Event()
        self._tell = tell
        self._loads: list[Load] = []
        self._begun_s: float | None = None
        self._ended_s: float | None = None
        self._ended_at_s: float | None = None
        self._ending = asyncio.Event()

    async def run(self) -> Summary:
        async with AsyncExitStack() as stack:
            cluster, console = await self._start(stack)
            self._begun_s = time.monotonic()
            self.begun.set()
            timer = asyncio.get_running_loop().call_later(self.plan.seconds, self._ending.set)
            try:
                await self._storm(cluster, console)
            finally:
                timer.cancel()
                self._ended_s, self._ended_at_s = time.monotonic(), time.time()
            self._tell("waiting for the last messages ...")
            verdicts = await self._verdicts()
            self._tell("stopping the processes ...")
        return self._summary(verdicts)

    def stop(self) -> None:
        """End early; `run` then returns the summary so far."""
        self._ending.set()

    # --- what a view shows

    @property
    def elapsed_s(self) -> float:
        if self._begun_s is None:
            return 0.0
        return (self._ended_s or time.monotonic()) - self._begun_s

    @property
    def now_s(self) -> float:
        """Seconds since the Unix epoch; stands still when the end has come, and with it what is recent."""
        return self._ended_at_s or time.time()

    @property
    def messages(self) -> int:
        return sum(load.published for load in self._loads)

    @property
    def deliveries(self) -> int:
        return sum(load.delivered for load in self._loads)

    @property
    def moves(self) -> int:
        return sum(game.moves for game in self.games.values())

    @property
    def recent_s(self) -> float:
        """How many seconds the recent latencies are of."""
        return min(RECENT_S, self.elapsed_s) or RECENT_S

    # --- start

    async def _start(self, stack: AsyncExitStack) -> tuple[LocalCluster, Console]:
        self._tell(f"starting 3 brokers, called {', '.join(SITES)}, and a controller ...")
        sites = dict(zip(SITES, SITES, strict=True))
        cluster = await stack.enter_async_context(await LocalCluster.start(SITES, sites=sites))
        console = await cluster.console()
        places: dict[str, Place] = {topic: (Mode.SINGLE, sites[:1]) for topic, sites in GAMES.items()}
        for topic, state in (await console.move_all(places)).items():
            self.games[topic].placement = state.placement
        self._tell(f"connecting {self.plan.clients} clients at emulated distances ...")
        at = {url: name for name, url in cluster.urls.items()}
        paths = await stack.enter_async_context(await Paths.start(WORLD, at, self._dice("network")))
        self._loads = [self._load(topic, list(at), paths) for topic in GAMES]
        await asyncio.gather(*(stack.enter_async_context(load) for load in self._loads))
        return cluster, console

    def _load(self, topic: str, urls: list[str], paths: Paths) -> Load:
        resolves = [paths.resolve(site) for site in GAMES[topic]]
        return Load(urls, self.plan.shape(topic), partial(self._saw, self.games[topic]), resolves=resolves)

    def _saw(self, game: Game, subscriber: str, events: list[Event]) -> None:
        for event in events:
            if type(event) is Message:
                game.recent.add(event.received_at, event.latency_s)

    # --- moves

    async def _storm(self, cluster: LocalCluster, console: Console) -> None:
        for load in self._loads:
            load.begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._look(console))
                tasks.create_task(self._kill(Killer(cluster, partial(self._happened, kill=True))))
                for topic, game in self.games.items():
                    tasks.create_task(self._operate(console, topic, game))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _operate(self, console: Console, topic: str, game: Game) -> None:
        dice = self._dice(topic)
        while await self._going_on(dice.uniform(*REST_S)):
            mode, brokers = game.target = _elsewhere(game, dice)
            try:
                self._moved(topic, (await console.move(topic, mode, brokers, timeout_s=MOVE_S)).placement)
            except ClusterError as error:
                # The move may go on: the next one, or the next look, tells.
                self._happened(f"{topic}: {error}")
            game.target = None

    def _moved(self, topic: str, after: Placement) -> None:
        """By what the controller says: a move that was asked for in vain does not count, one that went on does."""
        game, before = self.games[topic], self.games[topic].placement
        if before is not None and after.epoch > before.epoch:
            game.moves += 1
            game.mode_changes += before.mode is not after.mode
            game.placement = after
            self._happened(f"{topic}: {describe(before)} -> {describe(after)}")

    async def _look(self, console: Console) -> None:
        while await self._going_on(LOOK_S):
            try:
                state = await console.state(*GAMES, timeout_s=LOOK_S)
            except ClusterError:
                continue  # the controller was killed
            finally:
                self.noticed = sum(_noticed(load.audit.verdict()) for load in self._loads)
            self.brokers = state.brokers
            for topic, view in state.topics.items():
                self._moved(topic, view.placement)

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

    async def _going_on(self, seconds: float) -> bool:
        """Sleep, and say whether the demo is still to go on."""
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except TimeoutError:
            return True
        return False

    def _dice(self, whose: str) -> random.Random:
        """Each has its own: then the network's draws do not change the moves."""
        return random.Random(f"{self.plan.seed} {whose}")

    def _happened(self, text: str, *, kill: bool = False) -> None:
        self.events.append(Happening(self.elapsed_s, text, kill))

    async def _verdicts(self) -> list[Verdict]:
        try:
            verdicts = await asyncio.gather(*(load.end() for load in self._loads))
        except TimeoutError:
            raise Unavailable("publishers wait in vain for acknowledgements; is this machine overloaded?") from None
        self.noticed = sum(_noticed(verdict) + verdict.lost_prefix + verdict.lost_suffix for verdict in verdicts)
        return verdicts

    def _summary(self, verdicts: list[Verdict]) -> Summary:
        latencies_s = list(chain.from_iterable(load.latencies_s for load in self._loads))
        return Summary(
            seconds=round(self.elapsed_s, 1),
            clients=self.plan.clients,
            seed=self.plan.seed,
            messages=self.messages,
            deliveries=self.deliveries,
            moves=self.moves,
            mode_changes=sum(game.mode_changes for game in self.games.values()),
            agent_kills=self.agent_kills,
            controller_kills=self.controller_kills,
            lost=sum(verdict.lost for verdict in verdicts),
            duplicated=sum(verdict.duplicated for verdict in verdicts),
            reordered=sum(verdict.reordered for verdict in verdicts),
            gaps=sum(verdict.gaps for verdict in verdicts),
            interrupted=sum(verdict.interrupted for verdict in verdicts),
            p50_ms=_ms(percentile(latencies_s, 50)),
            p99_ms=_ms(percentile(latencies_s, 99)),
            exact=all(verdict.exact for verdict in verdicts),
            examples=list(chain.from_iterable(verdict.examples for verdict in verdicts)),
        )


def _elsewhere(game: Game, dice: random.Random) -> Place:
    while True:
        mode = dice.choice(MODES)
        count = 1 if mode is Mode.SINGLE else dice.randint(2, len(SITES))
        brokers = tuple(sorted(dice.sample(SITES, count), key=SITES.index))
        if game.placement is None or (mode, brokers) != (game.placement.mode, game.placement.brokers):
            return mode, brokers


def _noticed(verdict: Verdict) -> int:
    """Without what is lost at an end of a line: until the end of the run it may be on its way."""
    wrong = verdict.duplicated + verdict.reordered + verdict.unexpected + verdict.lost_middle
    return wrong + verdict.gaps + verdict.interrupted


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)
