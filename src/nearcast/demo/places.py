"""Act 3 of the demo: two groups of players swap continents, and the topics that have a latency bound follow them.

There are three brokers, one per site of `WORLD`, and the policy epulsar. Every topic with a bound has a twin without
one, which stays where hashing puts it, on the same brokers, for the same players, at the same time. The names are such
that hashing puts one twin of each group on each broker: what it achieves here is its average, and not its luck.

The players' connections stay open when they swap. Only the emulated distances change, as if they had flown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass

from nearcast.core.model.bounds import Bound
from nearcast.core.model.message import Event, Message
from nearcast.core.model.placement import Placement
from nearcast.core.wire.bus import State
from nearcast.demo.act import Act, Kind, Summary, Tell
from nearcast.demo.delays import Delays, Series, Side, Timeline
from nearcast.runtime.console import Console
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.load import Load, LoadShape, WatchedTopic
from nearcast.testing.network.emulated import EmulatedNetwork, Endpoint
from nearcast.testing.network.placed import place_cluster
from nearcast.testing.network.sites import WORLD
from nearcast.workloads.located.recording import Recording

# --- the players


SITES = ("paris", "virginia", "tokyo")  # brokers have the names of their sites
HOMES = {"red": "paris", "blue": "tokyo"}  # where the groups are at first
GAMES = ("arena", "court", "maze")
BOUND_S = 0.060  # a message takes 8 ms over the broker next door, and 80 ms or more over any other
RATE_PER_TOPIC_S = 20.0

POLICY = "epulsar"
CONTROLLER_OPTIONS = ("--policy", POLICY, "--wait", "1")


def topic_of(series: Series, game: str) -> str:
    name = f"{series.group}.{game}"
    return name if series.side is Side.BOUND else f"hashed.{name}"


SERIES = tuple(Series(group, side) for group in HOMES for side in Side)
TOPICS = {topic_of(series, game): series for series in SERIES for game in GAMES}


@dataclass(frozen=True, slots=True)
class PlacesPlan:
    """How many players each group has, and how long there is to look."""

    players: int = 6  # of each group; half of them publish
    seed: int = 0
    before_s: float = 3.0  # to look at the topics in their places, before the groups swap
    after_s: float = 4.0  # and after the topics have followed

    def shape(self, group: str) -> LoadShape:
        names = tuple(topic for topic, series in TOPICS.items() if series.group == group)
        return LoadShape(
            self.players // 2,
            self.players - self.players // 2,
            rate_per_s=RATE_PER_TOPIC_S * len(names),
            seed=self.seed + list(HOMES).index(group),
            names=names,
        )


# --- the act


SETTLE_S = 25.0  # time limit at the beginning, when agents do not know yet how far clients are; they need about 6
FOLLOW_S = 15.0  # time limit for following
POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Both sides in the same while."""

    bound: Delays
    hashed: Delays


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesSummary(Summary):
    """`during`: from the swap until all topics with a bound had followed."""

    bound_ms: float
    before: Compared | None  # None: the act ended earlier
    during: Compared | None
    after: Compared | None
    followed_s: float | None  # after the swap, all topics with a bound were on their players' brokers
    back_s: float | None  # 95 % of their messages were within the bound, for a second
    moves: int
    decisions: int


@dataclass(slots=True)
class Moments:
    """When the parts of the act began, in seconds since its own beginning. None: not yet."""

    settled_s: float | None = None
    swapped_s: float | None = None
    followed_s: float | None = None


class PlacesAct(Act[PlacesSummary]):
    """Act 3: both groups swap places once."""

    def __init__(self, plan: PlacesPlan, tell: Tell) -> None:
        shapes = {group: plan.shape(group) for group in HOMES}
        topics = {topic: WatchedTopic(shapes[series.group].subscribers) for topic, series in TOPICS.items()}
        super().__init__(topics, plan.seed, tell)
        self.plan = plan
        self.clients = plan.players * len(HOMES)
        self.moments = Moments()
        self.sites = dict(HOMES)  # where the groups are now
        self.timeline = Timeline(BOUND_S)
        self.decisions = 0
        self._shapes = shapes
        self._groups: dict[str, Endpoint] = {}
        self._recording = Recording(BOUND_S, 0.0)  # of topics with a bound, by group

    # --- start

    async def _start(self, stack: AsyncExitStack) -> LocalCluster:
        self._tell(f"starting 3 brokers ({', '.join(SITES)}), and a controller with the policy {POLICY} ...")
        sites = {site: site for site in SITES}
        cluster = await stack.enter_async_context(
            await LocalCluster.start(SITES, sites=sites, controller_options=CONTROLLER_OPTIONS, emulated=True)
        )
        network = await stack.enter_async_context(EmulatedNetwork(WORLD, self._dice("network")))
        await place_cluster(network, cluster, sites)
        console = await cluster.console()
        for group in HOMES:
            await console.set_bound(f"{group}.*", Bound(BOUND_S))
        self._tell(f"connecting {self.clients} players at emulated distances ...")
        for group, home in HOMES.items():
            self._groups[group] = await network.attach(group, home)
        self._loads = [self._load(group, list(cluster.urls.values())) for group in HOMES]
        await asyncio.gather(*(stack.enter_async_context(load) for load in self._loads))
        return cluster

    def _load(self, group: str, urls: list[str]) -> Load:
        return Load(urls, self._shapes[group], self._saw, resolves=[self._groups[group].resolve])

    def _saw(self, _: str, events: list[Event]) -> None:
        for event in events:
            if type(event) is Message:
                self.topics[event.topic].saw((event,))
                series, at_s = TOPICS[event.topic], event.published_at - self._begun_at_s
                self.timeline.note(series, at_s, event.latency_s)
                if series.side is Side.BOUND:
                    self._recording.note(series.group, at_s, event.latency_s)

    # --- the swap

    def _parts(self, cluster: LocalCluster, console: Console) -> list[Coroutine[object, object, None]]:
        return [self._swap()]

    async def _swap(self) -> None:
        if await self._gathered(SETTLE_S, "topics with a bound come to their players at the beginning"):
            self.moments.settled_s = self.elapsed_s
            await self._going_on(self.plan.before_s)
        if self.moments.settled_s is not None and not self.stopped:
            self._fly()
            if await self._gathered(FOLLOW_S, "topics with a bound follow their players"):
                self.moments.followed_s = self.elapsed_s
                await self._going_on(self.plan.after_s)
        self._ending.set()

    def _fly(self) -> None:
        self.moments.swapped_s = self.elapsed_s
        for group, site in zip(HOMES, reversed(HOMES.values()), strict=True):
            self.sites[group] = site
            self._groups[group].move(site)
        self._happened("the two groups swap places", Kind.SCENE)

    async def _gathered(self, within_s: float, goal: str) -> bool:
        """Wait until every topic with a bound is where its players are; False if it is not, or the act ends."""
        ends_s = self.elapsed_s + within_s
        while away := self.away():
            if not await self._going_on(POLL_S):
                return False
            if self.elapsed_s > ends_s:
                self.missed.append(f"not within {within_s:.0f} s: {goal} ({', '.join(away)} did not)")
                return False
        return True

    def away(self) -> list[str]:
        """The topics with a bound that are not on their players' broker."""
        return [
            topic
            for topic, series in TOPICS.items()
            if series.side is Side.BOUND and not _is_on(self.topics[topic].placement, self.sites[series.group])
        ]

    # --- what the controller says

    def _looked(self, state: State) -> None:
        for topic, view in state.topics.items():
            self.topics[topic].target = view.target
        for decision in self._fresh(state.decisions):
            self.decisions += 1
            self._happened(_briefly(decision.text), Kind.DECISION, decision.at_s - self._begun_at_s)

    # --- what it shows

    def _summary(self, common: Summary) -> PlacesSummary:
        moments, ended_s = self.moments, self.elapsed_s
        return PlacesSummary(
            **asdict(common),
            bound_ms=BOUND_S * 1e3,
            before=self._compared(moments.settled_s, moments.swapped_s or ended_s),
            during=self._compared(moments.swapped_s, moments.followed_s or ended_s),
            after=self._compared(moments.followed_s, ended_s),
            followed_s=_between(moments.swapped_s, moments.followed_s),
            back_s=self._back_s(),
            moves=self.moves,
            decisions=self.decisions,
        )

    def _compared(self, from_s: float | None, until_s: float) -> Compared | None:
        if from_s is None:
            return None
        sides = {side: [series for series in SERIES if series.side is side] for side in Side}
        found = {side: self.timeline.delays(series, from_s, until_s) for side, series in sides.items()}
        return Compared(bound=found[Side.BOUND], hashed=found[Side.HASHED])

    def _back_s(self) -> float | None:
        """How long after the swap the messages of both groups were within the bound again, and stayed there."""
        if self.moments.swapped_s is None:
            return None
        back_s = self._recording.back_after_s(HOMES, self.moments.swapped_s, self.elapsed_s)
        return None if back_s is None else round(back_s, 1)


def _briefly(decision: str) -> str:
    """It should fit a line: what the policy is called, and how far the nearer clients are, is left out."""
    return re.sub(r", 90 % within [\d.]+ ms", "", decision.removeprefix(f"{POLICY}: "))


def _is_on(placement: Placement | None, broker: str) -> bool:
    return placement is not None and placement.brokers == (broker,)


def _between(from_s: float | None, until_s: float | None) -> float | None:
    return None if from_s is None or until_s is None else round(until_s - from_s, 1)
