"""Chaos on a local cluster: a storm of moves and kills under load, which no subscriber may notice.

A `Killer` kills an agent or the controller with SIGKILL, restarts it and waits until it works again.

A `Storm` is a load on a cluster whose topics constantly move and change mode, while agents and controllers are killed.
The outcome says whether any subscriber noticed, and counts what was done:

    async with await LocalCluster.start(brokers=3) as cluster:
        outcome = await Storm(cluster, StormPlan(messages=20_000)).run()
        assert outcome.verdict.exact, outcome

`run_storm(StormPlan())` and `python -m nearcast.testing.chaos` also start the cluster and the event loop.

All goals of the plan are minimums: publishers continue until the topics have moved often enough, and topics keep moving
until enough was published, so that neither happens without the other.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

from nearcast.core.model.placement import Mode, Placement
from nearcast.core.wire.bus import State
from nearcast.errors import ClusterError, ServerFailed, UsageError
from nearcast.runtime.console import Console
from nearcast.testing.audit import Verdict
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.load import Load, LoadShape

# --- the killer


BACK_S = 20.0
POLL_S = 0.1


class Killer:
    """Kills processes of a cluster with one controller. `tell` gets a line for every kill and every return."""

    def __init__(self, cluster: LocalCluster, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._tell = tell

    async def agent(self, broker: str) -> None:
        self._tell(f"kill -9: the agent of {broker}")
        begun_s, killed_at_s = time.monotonic(), time.time()
        await self._cluster.restart_agent(broker)
        # A broker outlives its agent for a while: only a later report proves that there is a new one.
        await self._until(lambda state: _reported_s(state, broker) > killed_at_s)
        self._tell(f"the agent of {broker} is back: it reports after {time.monotonic() - begun_s:.1f} s")

    async def controller(self) -> None:
        before = (await (await self._cluster.console()).overview()).leader
        self._tell("kill -9: the controller")
        begun_s = time.monotonic()
        await self._cluster.restart_controller(0)
        await self._until(lambda state: state.leader != before)
        self._tell(f"the controller is back: it answers after {time.monotonic() - begun_s:.1f} s")

    async def _until(self, condition: Callable[[State], bool]) -> None:
        console, ends_s = await self._cluster.console(), time.monotonic() + BACK_S
        while time.monotonic() < ends_s:
            try:
                if condition(await console.overview(timeout_s=1.0)):
                    return
            except ClusterError:
                continue  # no controller leads at the moment
            await asyncio.sleep(POLL_S)
        raise ServerFailed(f"a killed process is not back after {BACK_S:g} s; is this machine overloaded?")


def _reported_s(state: State, broker: str) -> float:
    report = state.brokers[broker].report
    return report.at_s if report is not None else 0.0


# --- the storm


HANDS = 3  # operators, each with its own topics, so that topics move at the same time and at unrelated times
LOOK_S = 0.1
MOVE_S = 20.0

Move = tuple[Mode, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class StormPlan:
    """The load, and the minimums to reach."""

    load: LoadShape = field(default_factory=LoadShape)
    messages: int = 20_000
    moves: int = 3  # of each topic
    mode_changes: int = 1  # of each topic; each is also a move
    agent_kills: int = 1
    controller_kills: int = 1
    kill_every_s: float = 2.0
    seed: int = 0


@dataclass(slots=True)
class Progress:
    """What has been done so far; changes while the storm runs."""

    seconds: float = 0.0
    published: int = 0
    acknowledged: int = 0
    delivered: int = 0
    agent_kills: int = 0
    controller_kills: int = 0
    moves: dict[str, int] = field(default_factory=dict)  # by topic
    mode_changes: dict[str, int] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    refused: int = 0  # moves requested again, because the controller or a broker was away


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict of the audit, what was done, and the latencies."""

    verdict: Verdict
    progress: Progress
    p50_s: float
    p99_s: float
    longest_s: float

    def __str__(self) -> str:
        done = self.progress
        return "\n".join(
            [
                f"{done.published} messages in {done.seconds:.0f} s, {done.delivered} deliveries; latency p50 "
                f"{self.p50_s * 1e3:.1f} ms, p99 {self.p99_s * 1e3:.1f} ms, longest {self.longest_s * 1e3:.0f} ms",
                f"{sum(done.moves.values())} moves (each topic at least {min(done.moves.values())}), "
                f"{sum(done.mode_changes.values())} changes of mode (at least {min(done.mode_changes.values())}), "
                f"{done.refused} requested again; "
                f"{done.agent_kills} agents and {done.controller_kills} controllers killed",
                str(self.verdict),
            ]
        )


class Storm:
    """One storm on a cluster. `watch` is called several times a second with the progress, to show it."""

    def __init__(
        self, cluster: LocalCluster, plan: StormPlan, watch: Callable[[Progress], None] = lambda progress: None
    ) -> None:
        if len(cluster.urls) < 2 and plan.moves:
            raise UsageError("topics need at least two brokers to move between")
        self.plan = plan
        topics = plan.load.topic_names
        self.progress = Progress(moves=dict.fromkeys(topics, 0), mode_changes=dict.fromkeys(topics, 0))
        self._cluster = cluster
        self._watch = watch
        self._rng = random.Random(plan.seed)
        self._places = list(_places(tuple(cluster.urls)))
        self._enough = asyncio.Event()

    async def run(self) -> Outcome:
        begun_s = time.monotonic()
        console = await self._cluster.console()
        async with Load(self._cluster.urls.values(), self.plan.load) as load:
            load.begin()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._observe(load, begun_s))
                tasks.create_task(self._kill())
                for hand in range(HANDS):
                    topics = self.plan.load.topic_names[hand::HANDS]
                    if topics and self.plan.moves:
                        tasks.create_task(self._operate(console, topics))
            verdict = await load.end()
            self._look(load, begun_s)
            return self._outcome(verdict, load)

    def _outcome(self, verdict: Verdict, load: Load) -> Outcome:
        sample = sorted(load.latencies_s) or [0.0]
        p50_s, p99_s = sample[len(sample) // 2], sample[len(sample) * 99 // 100]
        return Outcome(verdict, self.progress, p50_s, p99_s, sample[-1])

    # --- progress

    async def _observe(self, load: Load, begun_s: float) -> None:
        while not self._reached(load):
            await asyncio.sleep(LOOK_S)
            self._look(load, begun_s)
        self._enough.set()

    def _look(self, load: Load, begun_s: float) -> None:
        done = self.progress
        done.seconds = time.monotonic() - begun_s
        done.published, done.acknowledged, done.delivered = load.published, load.acknowledged, load.delivered
        self._watch(done)

    def _reached(self, load: Load) -> bool:
        plan, done = self.plan, self.progress
        return (
            load.published >= plan.messages
            and min(done.moves.values()) >= plan.moves
            and min(done.mode_changes.values()) >= plan.mode_changes
            and done.agent_kills >= plan.agent_kills
            and done.controller_kills >= plan.controller_kills
        )

    # --- the operator

    async def _operate(self, console: Console, topics: tuple[str, ...]) -> None:
        while not self._enough.is_set():
            wanted = {topic: self._rng.choice(self._others(topic)) for topic in topics}
            try:
                await console.move_all(wanted, timeout_s=MOVE_S)
            except ClusterError:
                self.progress.refused += 1
                await self._pause(LOOK_S)
            await self._count_moves(console, topics)

    def _others(self, topic: str) -> list[Move]:
        """Where the topic can go from here; a change of mode is as likely as a change of brokers alone."""
        now = self.progress.placements.get(topic)
        places = [place for place in self._places if now is None or place != (now.mode, now.brokers)]
        if now is not None and self._rng.random() < 0.5:
            return [place for place in places if place[0] is not now.mode]
        return places

    async def _count_moves(self, console: Console, topics: tuple[str, ...]) -> None:
        """Count what the controller reports: a failed request counts only if its move was carried out after all."""
        try:
            state = await console.state(*topics)
        except ClusterError:
            return
        done = self.progress
        for topic in topics:
            before, after = done.placements.get(topic), state.topics[topic].placement
            if before is not None and after.epoch > before.epoch:
                done.moves[topic] += 1
                done.mode_changes[topic] += before.mode is not after.mode
            done.placements[topic] = after

    # --- chaos

    async def _kill(self) -> None:
        plan, done, killer = self.plan, self.progress, Killer(self._cluster, lambda line: None)
        while plan.agent_kills + plan.controller_kills:
            await self._pause(plan.kill_every_s * self._rng.uniform(0.5, 1.5))
            if self._enough.is_set():
                return
            # Kill the kind that is further behind its goal.
            behind = done.agent_kills * plan.controller_kills <= done.controller_kills * plan.agent_kills
            if plan.agent_kills and behind:
                await killer.agent(self._rng.choice(list(self._cluster.urls)))
                done.agent_kills += 1
            else:
                await killer.controller()
                done.controller_kills += 1

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._enough.wait(), seconds)
        except TimeoutError:
            return


def _places(brokers: tuple[str, ...]) -> Iterator[Move]:
    for broker in brokers:
        yield Mode.SINGLE, (broker,)
    for count in range(2, len(brokers) + 1):
        for chosen in combinations(brokers, count):
            yield Mode.ALL_SUBSCRIBERS, chosen
            yield Mode.ALL_PUBLISHERS, chosen


def run_storm(plan: StormPlan, watch: Callable[[Progress], None] = lambda progress: None) -> Outcome:
    """A storm on a cluster of three brokers, on the fastest event loop available."""

    async def main() -> Outcome:
        async with await LocalCluster.start(brokers=3) as cluster:
            return await Storm(cluster, plan, watch).run()

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


FULL = StormPlan(
    LoadShape(publishers=20, subscribers=20, topics=10, rate_per_s=1600),
    messages=200_000,
    moves=50,
    mode_changes=10,
    agent_kills=8,
    controller_kills=4,
    kill_every_s=8.0,
)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m nearcast.testing.chaos", description="A storm on a local cluster.")
    parser.add_argument("--messages", type=int, default=FULL.messages)
    parser.add_argument("--moves", type=int, default=FULL.moves, help="of each topic")
    parser.add_argument("--seed", type=int, default=FULL.seed)
    given = parser.parse_args()
    outcome = run_storm(replace(FULL, messages=given.messages, moves=given.moves, seed=given.seed))
    print(outcome)
    sys.exit(not outcome.verdict.exact)


if __name__ == "__main__":
    _main()
