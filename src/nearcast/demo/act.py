"""An act of the demo: a cluster under load, what a view shows while it runs, and the summary at the end.

    act = MovesAct(MovesPlan(seconds=20), tell=print)
    summary = await act.run()
    assert summary.exact

What a view shows is public: `topics`, `brokers`, `events` and the totals.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice
from typing import Generic, TypedDict, TypeVar

from msgspec.structs import replace

from nearcast.core.model.placement import Placement
from nearcast.core.wire.bus import State
from nearcast.core.wire.views import BrokerView, Decision
from nearcast.errors import ClusterError, Unavailable
from nearcast.runtime.console import Console
from nearcast.testing.audit import Verdict
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.load import RECENT_S, Load, WatchedTopic, percentile

# --- the summary


class Judged(TypedDict):
    """The verdicts of all audits, added up."""

    lost: int
    duplicated: int
    reordered: int
    gaps: int
    interrupted: int
    exact: bool
    examples: list[str]


class Percentiles(TypedDict):
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What an act did, and what subscribers got.

    `exact`: every message arrived once and in order, and no subscriber was interrupted. `finished`: the act was not
    ended early. `missed`: what the act should have shown but did not.
    """

    seconds: float
    clients: int
    seed: int
    messages: int
    deliveries: int
    lost: int
    duplicated: int
    reordered: int
    gaps: int
    interrupted: int
    p50_ms: float | None
    p99_ms: float | None
    exact: bool
    examples: list[str]  # of what went wrong
    finished: bool
    missed: list[str]


def judged(verdicts: list[Verdict]) -> Judged:
    return Judged(
        lost=sum(verdict.lost for verdict in verdicts),
        duplicated=sum(verdict.duplicated for verdict in verdicts),
        reordered=sum(verdict.reordered for verdict in verdicts),
        gaps=sum(verdict.gaps for verdict in verdicts),
        interrupted=sum(verdict.interrupted for verdict in verdicts),
        exact=all(verdict.exact for verdict in verdicts),
        examples=list(chain.from_iterable(verdict.examples for verdict in verdicts)),
    )


def percentiles_ms(latencies_s: Iterable[float]) -> Percentiles:
    ordered_s = sorted(latencies_s)
    return Percentiles(p50_ms=_ms(percentile(ordered_s, 50)), p99_ms=_ms(percentile(ordered_s, 99)))


def noticed(verdict: Verdict) -> int:
    """What subscribers should not have seen so far; not what is missing at the ends of a line, which may yet arrive."""
    wrong = verdict.duplicated + verdict.reordered + verdict.unexpected + verdict.lost_middle
    return wrong + verdict.gaps + verdict.interrupted


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)


LOOK_S = 0.5  # agents report once a second
ANSWER_S = 1.0  # how long to wait for the controller, which may have been killed
EVENTS_KEPT = 100

Tell = Callable[[str], None]


class Kind(StrEnum):
    """The kinds of happenings."""

    MOVE = "move"
    KILL = "kill"
    SCENE = "scene"
    DECISION = "decision"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Happening:
    """An event that a view shows."""

    at_s: float  # since the act began
    text: str
    kind: Kind


# --- the act


SummaryT = TypeVar("SummaryT", bound=Summary)


class Act(ABC, Generic[SummaryT]):
    """One run of an act. `tell` gets a line for every step of the start and the end."""

    clients: int

    def __init__(self, topics: dict[str, WatchedTopic], seed: int, tell: Tell) -> None:
        self.topics = topics
        self.seed = seed
        self.brokers: dict[str, BrokerView] = {}
        self.events: deque[Happening] = deque(maxlen=EVENTS_KEPT)
        self.happened = 0  # number of events, including those no longer kept
        self.controller_kills = 0
        self.noticed = 0  # what subscribers should not have seen, so far
        self.missed: list[str] = []  # what the act should have shown but did not
        self.begun = asyncio.Event()
        self.stopped = False  # it was asked to end early
        self._tell = tell
        self._loads: list[Load] = []
        self._decided_at_s = 0.0
        self._begun_s: float | None = None
        self._begun_at_s = 0.0
        self._ended_s: float | None = None
        self._ended_at_s: float | None = None
        self._ending = asyncio.Event()

    async def run(self) -> SummaryT:
        async with AsyncExitStack() as stack:
            cluster = await self._start(stack)
            console = await cluster.console()
            self._begun_s, self._begun_at_s = time.monotonic(), time.time()
            self.begun.set()
            try:
                await self._play(cluster, console)
            finally:
                self._ended_s, self._ended_at_s = time.monotonic(), time.time()
            self._tell("waiting for the last messages ...")
            verdicts = await self._last_verdicts()
            self._tell("stopping the processes ...")
        return self._summary(self._sum_up(verdicts))

    def stop(self) -> None:
        """End early; `run` then returns the summary so far."""
        self.stopped = True
        self._ending.set()

    # --- what an act is made of

    @abstractmethod
    async def _start(self, stack: AsyncExitStack) -> LocalCluster:
        """Start the cluster, and connect the loads."""

    @abstractmethod
    def _parts(self, cluster: LocalCluster, console: Console) -> list[Coroutine[object, object, None]]:
        """What runs concurrently while messages flow. Everything ends soon after `_ending`."""

    @abstractmethod
    def _summary(self, common: Summary) -> SummaryT:
        """The summary of this act: what is common to all acts, and its own figures."""

    def _moved(self, topic: str, before: Placement, after: Placement) -> None:
        """The controller says that a topic has moved."""

    def _looked(self, state: State) -> None:
        """There is a new state to look at."""

    # --- what a view shows

    @property
    def elapsed_s(self) -> float:
        if self._begun_s is None:
            return 0.0
        return (self._ended_s or time.monotonic()) - self._begun_s

    @property
    def now_s(self) -> float:
        """Seconds since the Unix epoch. It stops at the end of the act, and so does what counts as recent."""
        return self._ended_at_s or time.time()

    @property
    def recent_s(self) -> float:
        """How many seconds the recent latencies cover."""
        return min(RECENT_S, self.elapsed_s) or RECENT_S

    @property
    def messages(self) -> int:
        return sum(load.published for load in self._counted())

    @property
    def deliveries(self) -> int:
        return sum(load.delivered for load in self._counted())

    @property
    def moves(self) -> int:
        return sum(topic.moves for topic in self.topics.values())

    def carried(self, broker: str) -> int:
        """How many topics the broker carries."""
        placements = [topic.placement for topic in self.topics.values() if topic.placement is not None]
        return sum(broker in placement.brokers for placement in placements)

    def events_since(self, number: int) -> list[Happening]:
        """The events after the first `number`, as far as they are kept. They may not be in order of time."""
        fresh = min(self.happened - number, len(self.events))
        return sorted(islice(self.events, len(self.events) - fresh, None), key=lambda event: event.at_s)

    # --- while it runs

    async def _play(self, cluster: LocalCluster, console: Console) -> None:
        for load in self._loads:
            load.begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in (self._look(console), *self._parts(cluster, console)):
                    tasks.create_task(part)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _look(self, console: Console) -> None:
        while await self._going_on(LOOK_S):
            try:
                state = await console.state(*self.topics, timeout_s=ANSWER_S)
            except ClusterError:
                continue  # the controller was killed
            finally:
                self.noticed = sum(map(noticed, self._verdicts()))
            self.brokers = state.brokers
            for topic, view in state.topics.items():
                # Of a topic that was never placed, the controller knows the place but not the epoch.
                self._placed(topic, view.placement if view.planned else replace(view.placement, epoch=0))
            self._looked(state)

    def _placed(self, topic: str, after: Placement) -> None:
        """Count what the controller reports: a failed request counts only if its move was carried out after all."""
        before = self.topics[topic].moved_to(after)
        if before is not None:
            self._moved(topic, before, after)

    def _fresh(self, decisions: Iterable[Decision]) -> list[Decision]:
        """Those not told yet. Those from before the act began are about its start. A new leader lists no old ones."""
        fresh = [decision for decision in decisions if decision.at_s > max(self._decided_at_s, self._begun_at_s)]
        self._decided_at_s = max([self._decided_at_s, *(decision.at_s for decision in fresh)])
        return fresh

    async def _going_on(self, seconds: float) -> bool:
        """Sleep; returns whether the act continues."""
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except TimeoutError:
            return True
        return False

    def _dice(self, whose: str) -> random.Random:
        """A random generator for each part, so that the network's draws do not change the moves."""
        return random.Random(f"{self.seed} {whose}")

    def _happened(self, text: str, kind: Kind, at_s: float | None = None) -> None:
        self.happened += 1
        self.events.append(Happening(self.elapsed_s if at_s is None else at_s, text, kind))

    # --- what it counts

    def _counted(self) -> list[Load]:
        """The loads whose messages and deliveries make up the totals."""
        return self._loads

    def _verdicts(self) -> list[Verdict]:
        """The verdicts so far."""
        return [load.audit.verdict() for load in self._loads]

    async def _last_verdicts(self) -> list[Verdict]:
        try:
            verdicts = await self._end()
        except TimeoutError:
            raise Unavailable("publishers did not get their acknowledgements; is this machine overloaded?") from None
        self.noticed = sum(noticed(verdict) + verdict.lost_prefix + verdict.lost_suffix for verdict in verdicts)
        return verdicts

    async def _end(self) -> list[Verdict]:
        return await asyncio.gather(*(load.end() for load in self._loads))

    def _sum_up(self, verdicts: list[Verdict]) -> Summary:
        return Summary(
            seconds=round(self.elapsed_s, 1),
            clients=self.clients,
            seed=self.seed,
            messages=self.messages,
            deliveries=self.deliveries,
            finished=not self.stopped,
            missed=self.missed,
            **judged(verdicts),
            **percentiles_ms(chain.from_iterable(load.latencies_s for load in self._counted())),
        )
