"""Act 2 of the demo: people come and go, and a policy adds servers, replicates hot topics, and undoes both.

There is one broker of small capacity, a controller with a policy, and a provider that starts and stops real servers.
The scenes of an evening set the load; each lasts until the policy has done what the scene should show, or until a time
limit.

Capacity, thresholds and rates are chosen together, for a machine with two cores: a server carries a quiet evening, but
not a busy one. One delivery of 300 bytes was measured to cost a server about 400 bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial

from nearcast.core.model.journal import BrokerState
from nearcast.core.model.message import Event, Message
from nearcast.core.model.placement import Mode, Placement
from nearcast.core.wire.bus import State
from nearcast.demo.act import Act, Kind, Summary, Tell
from nearcast.runtime.console import Console
from nearcast.runtime.provider import ProviderDesk
from nearcast.testing.audit import Verdict
from nearcast.testing.chaos import Killer
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.load import Crowd, Load, LoadShape, WatchedTopic
from nearcast.testing.provider import LocalProvider

# --- the evening


CHATS = tuple(f"chat.{number}" for number in range(1, 5))
VOTES = "votes"  # many publications for few subscribers
SCORES = "scores"  # few publications for many subscribers

FIRST_BROKER = "b1"
BROKERS_MAX = 4
CAPACITY_BYTES_PER_S = 300e3
PAYLOAD_BYTES = 300

POLICY = "dynamoth"
WAIT_S = 3.0  # between two changes of the plan; a real cluster would wait longer
LR_HIGH = 0.8
LR_SAFE = 0.6
THRESHOLDS = (
    f"lr_high={LR_HIGH}",
    f"lr_safe={LR_SAFE}",
    "publication_threshold=130",  # per second; votes has 20 in quiet times and 240 in busy ones
    "all_subs_threshold=65",  # publications per second and subscriber; votes has 2
    "subscriber_threshold=8",  # scores has 3 in quiet times and 17 in busy ones
    "all_pubs_threshold=0.5",  # subscribers per publication per second
)
CONTROLLER_OPTIONS = (
    *("--policy", POLICY, "--wait", str(WAIT_S), "--max-brokers", str(BROKERS_MAX)),
    *(word for threshold in THRESHOLDS for word in ("--set", threshold)),
)


class Goal(StrEnum):
    """What the policy should do, as a sentence that is shown if it does not."""

    SERVER_ADDED = "a server is added and carries topics"
    VOTES_REPLICATED = "votes is replicated, all_subscribers"
    SCORES_REPLICATED = "scores is replicated, all_publishers"
    COLLAPSED = "every topic is on one server again"
    SERVERS_REMOVED = "the added servers are drained and stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What people do. A scene lasts until the policy has reached the goals, and then for `seconds` more."""

    title: str
    chats_per_s: float = 60.0  # messages of all chats together
    votes_per_s: float = 20.0
    guests: int = 0  # people who come to follow the scores
    seconds: float = 2.0  # to look at the result
    kill: bool = False  # kill the controller with SIGKILL and restart it
    goals: tuple[Goal, ...] = ()


CHATS_BUSY_PER_S = 420.0
VOTES_BUSY_PER_S = 240.0
GUESTS = 14

EVENING = (
    Scene(title="a quiet evening: one server is enough", seconds=4.0),
    Scene(title="the chats fill up", chats_per_s=CHATS_BUSY_PER_S, goals=(Goal.SERVER_ADDED,)),
    Scene(
        title="voting begins: many publications on one topic",
        chats_per_s=CHATS_BUSY_PER_S,
        votes_per_s=VOTES_BUSY_PER_S,
        goals=(Goal.VOTES_REPLICATED,),
    ),
    Scene(
        title="a crowd comes to watch the scores: many subscribers on one topic",
        chats_per_s=CHATS_BUSY_PER_S,
        votes_per_s=VOTES_BUSY_PER_S,
        guests=GUESTS,
        kill=True,
        goals=(Goal.SCORES_REPLICATED,),
    ),
    Scene(title="everybody goes home", goals=(Goal.COLLAPSED, Goal.SERVERS_REMOVED)),
)


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """The scenes of the evening."""

    seed: int = 0
    scenes: tuple[Scene, ...] = EVENING

    @property
    def guests(self) -> int:
        return max(scene.guests for scene in self.scenes)

    def shapes(self) -> dict[str, LoadShape]:
        """The load of people who stay all evening, by what they use."""
        quiet = Scene(title="")
        return {
            "chats": self._shape(4, 2, quiet.chats_per_s, *CHATS),
            VOTES: self._shape(8, 2, quiet.votes_per_s, VOTES),
            SCORES: self._shape(2, 3, 10.0, SCORES),
        }

    def _shape(self, publishers: int, subscribers: int, rate_per_s: float, *topics: str) -> LoadShape:
        return LoadShape(
            publishers, subscribers, rate_per_s=rate_per_s, payload_bytes=PAYLOAD_BYTES, seed=self.seed, names=topics
        )


# --- the act


PATIENCE_S = 40.0  # time limit for the goals of one scene; the policy needs about 8
POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySummary(Summary):
    servers_added: int
    servers_removed: int
    topics_replicated: int
    topics_collapsed: int
    moves: int
    decisions: int
    controller_kills: int


class PolicyAct(Act[PolicySummary]):
    """Act 2: the scenes of an evening, and what the policy does in each."""

    def __init__(self, plan: PolicyPlan, tell: Tell) -> None:
        self._shapes = plan.shapes()
        topics = {
            topic: WatchedTopic(shape.subscribers) for shape in self._shapes.values() for topic in shape.topic_names
        }
        super().__init__(topics, plan.seed, tell)
        self.plan = plan
        self.clients = plan.guests + sum(shape.publishers + shape.subscribers for shape in self._shapes.values())
        self.scene = plan.scenes[0]
        self.servers_added = 0
        self.servers_removed = 0
        self.topics_replicated = 0
        self.topics_collapsed = 0
        self.decisions = 0
        self._crowd = Crowd()

    def subscribers(self, topic: str) -> int:
        """How many there are now."""
        return self.topics[topic].subscribers + (self._crowd.present if topic == SCORES else 0)

    # --- start

    async def _start(self, stack: AsyncExitStack) -> LocalCluster:
        self._tell(f"starting broker {FIRST_BROKER}, and a controller with the policy {POLICY} ...")
        cluster = await stack.enter_async_context(
            await LocalCluster.start(
                [FIRST_BROKER], controller_options=CONTROLLER_OPTIONS, capacity_bytes_per_s=CAPACITY_BYTES_PER_S
            )
        )
        provider = _CountingProvider(cluster, self._started, self._stopped)
        await stack.enter_async_context(ProviderDesk(cluster.store_url, provider))
        self._tell(f"connecting {self.clients - self.plan.guests} clients ...")
        self._loads = [Load(cluster.urls.values(), shape, self._saw) for shape in self._shapes.values()]
        await stack.enter_async_context(self._crowd)
        self._crowd.listen_to(self._load_of(SCORES))
        await asyncio.gather(*(stack.enter_async_context(load) for load in self._loads))
        return cluster

    def _load_of(self, name: str) -> Load:
        return self._loads[list(self._shapes).index(name)]

    def _saw(self, _: str, events: list[Event]) -> None:
        for event in events:
            if type(event) is Message:
                self.topics[event.topic].saw((event,))

    def _started(self, broker: str) -> None:
        self.servers_added += 1
        self._happened(f"server {broker} was started", Kind.SERVER)

    def _stopped(self, broker: str) -> None:
        self.servers_removed += 1
        self._happened(f"server {broker} no longer carries topics and was stopped", Kind.SERVER)

    # --- the evening

    def _parts(self, cluster: LocalCluster, console: Console) -> list[Coroutine[object, object, None]]:
        return [self._evening(cluster)]

    async def _evening(self, cluster: LocalCluster) -> None:
        for scene in self.plan.scenes:
            if not self.stopped:
                await self._play_scene(scene, cluster)
        self._ending.set()

    async def _play_scene(self, scene: Scene, cluster: LocalCluster) -> None:
        self.scene = scene
        self._happened(scene.title, Kind.SCENE)
        self._load_of("chats").rate_per_s = scene.chats_per_s
        self._load_of(VOTES).rate_per_s = scene.votes_per_s
        if scene.kill:
            self.controller_kills += 1
            await Killer(cluster, partial(self._happened, kind=Kind.KILL)).controller()
        if scene.guests and not self._crowd.present:
            await self._crowd.come(cluster.urls.values(), scene.guests)
        elif not scene.guests and self._crowd.present:
            await self._crowd.leave()
        await self._await(scene.goals)
        await self._going_on(scene.seconds)

    async def _await(self, goals: tuple[Goal, ...]) -> None:
        ends_s = self.elapsed_s + PATIENCE_S
        while missing := [goal for goal in goals if not self._reached(goal)]:
            if not await self._going_on(POLL_S):
                return
            if self.elapsed_s > ends_s:
                self.missed += [f"not within {PATIENCE_S:.0f} s: {goal}" for goal in missing]
                return

    def _reached(self, goal: Goal) -> bool:
        modes = {topic: watched.placement.mode for topic, watched in self.topics.items() if watched.placement}
        if goal is Goal.VOTES_REPLICATED:
            return modes.get(VOTES) is Mode.ALL_SUBSCRIBERS
        if goal is Goal.SCORES_REPLICATED:
            return modes.get(SCORES) is Mode.ALL_PUBLISHERS
        if goal is Goal.COLLAPSED:
            return all(mode is Mode.SINGLE for mode in modes.values())
        added = {name: view.state for name, view in self.brokers.items() if name != FIRST_BROKER}
        if goal is Goal.SERVER_ADDED:
            return any(state == BrokerState.MEMBER and self.carried(name) for name, state in added.items())
        left = all(state == BrokerState.LEFT for state in added.values())
        return left and self.servers_removed == self.servers_added > 0

    # --- what the controller says

    def _looked(self, state: State) -> None:
        for topic, view in state.topics.items():
            self.topics[topic].target = view.target
        for decision in self._fresh(state.decisions):
            self.decisions += 1
            text = decision.text.removeprefix(f"{POLICY}: ")
            self._happened(text, Kind.DECISION, decision.at_s - self._begun_at_s)

    def _moved(self, topic: str, before: Placement, after: Placement) -> None:
        self.topics_replicated += before.mode is Mode.SINGLE and after.mode is not Mode.SINGLE
        self.topics_collapsed += before.mode is not Mode.SINGLE and after.mode is Mode.SINGLE

    # --- what it counts

    def _counted(self) -> list[Load]:
        return [*self._loads, self._crowd.load] if self._crowd.load is not None else self._loads

    def _verdicts(self) -> list[Verdict]:
        return [*super()._verdicts(), self._crowd.verdict()]

    async def _end(self) -> list[Verdict]:
        crowd = await self._crowd.leave()
        return [*await super()._end(), crowd]

    def _summary(self, common: Summary) -> PolicySummary:
        return PolicySummary(
            **asdict(common),
            servers_added=self.servers_added,
            servers_removed=self.servers_removed,
            topics_replicated=self.topics_replicated,
            topics_collapsed=self.topics_collapsed,
            moves=self.moves,
            decisions=self.decisions,
            controller_kills=self.controller_kills,
        )


class _CountingProvider:
    """A local provider that reports what it really did: it may be asked repeatedly for the same thing."""

    def __init__(self, cluster: LocalCluster, started: Callable[[str], None], stopped: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._provider = LocalProvider(cluster)
        self._started = started
        self._stopped = stopped

    async def rent(self, broker: str) -> None:
        before = broker in self._cluster.urls
        await self._provider.rent(broker)
        if not before:
            self._started(broker)

    async def release(self, broker: str, url: str) -> None:
        before = broker in self._cluster.urls
        await self._provider.release(broker, url)
        if before and broker not in self._cluster.urls:
            self._stopped(broker)
