"""Act 4 of the demo: people of a city get enriched notifications computed by Spark, while their gateways are balanced.

It is the emergency workload at a small scale: three gateways, of which one has most of the people; reports on topics;
channels that join them with people's locations and with shelters. Balancing moves people, and one shuffle places them
all again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any

from msgspec.structs import replace

from nearcast.core.wire.views import GatewayView
from nearcast.demo.act import ANSWER_S, LOOK_S, Act, Kind, Summary, Tell, percentiles_ms
from nearcast.errors import ClusterError
from nearcast.runtime.console import Console
from nearcast.testing.audit import Verdict
from nearcast.testing.cluster import LocalCluster
from nearcast.workloads.emergency.run import BALANCING, EmergencyPlan, EmergencyRun, EmergencySummary
from nearcast.workloads.emergency.scenario import EMERGENCY_CHANNELS, EmergencySettings, emergency_world
from nearcast.workloads.emergency.stage import EmergencyCluster, EmergencyStage

NOTIFICATIONS_MIN = 50  # fewer would show nothing

_SHOWN = ("reports_of_kind", "reports_near_place", "shelters_near_me")
_PERIOD_S = 4
_SCENARIO_S = 1800.0


def channels_plan(seed: int, seconds: float = 40.0, users: int = 30) -> EmergencyPlan:
    chosen = [channel for channel in EMERGENCY_CHANNELS if channel.name in _SHOWN]
    return EmergencyPlan(
        settings=EmergencySettings(users=users, reports=round(10 * seconds), speed=_SCENARIO_S / seconds),
        channels=tuple(replace(channel, period_s=_PERIOD_S) for channel in chosen),
        cluster=EmergencyCluster(brokers=3, balancing=BALANCING),
        seed=seed,
        location_s=2.0,
        shuffle_at=0.7,
        kill_at=None,
    )


async def open_stage(plan: EmergencyPlan) -> EmergencyStage:
    """Everything the act needs. Spark takes a while to start, so call this early."""
    stage = await EmergencyStage.start(emergency_world(plan.settings, plan.seed), plan.cluster)
    try:
        await stage.prepare(plan.channels)
    except BaseException:
        await stage.close()
        raise
    return stage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelsSummary(Summary):
    """The summary of act 4. `messages` are reports and locations, `deliveries` are notifications."""

    rows: int
    subscriptions: int
    backend_subscriptions: int
    executions: int
    subscriber_moves: int
    shuffles: int


class ChannelsAct(Act[ChannelsSummary]):
    """Act 4. `stage` opens the cluster and its data cluster, which may have begun before the act."""

    def __init__(self, plan: EmergencyPlan, stage: Awaitable[EmergencyStage], tell: Tell) -> None:
        super().__init__({}, plan.seed, tell)
        self.plan = plan
        self.clients = plan.settings.users
        self.gateways: dict[str, GatewayView] = {}
        self.play: EmergencyRun | None = None
        self._stage = stage
        self._outcome: EmergencySummary | None = None

    # --- start

    async def _start(self, stack: AsyncExitStack) -> LocalCluster:
        self._tell("starting 3 brokers with gateways, and a data cluster with Spark ...")
        stage = await stack.enter_async_context(await self._stage)
        self.play = EmergencyRun(stage, self.plan, lambda line: None)  # the view shows progress in its own way
        return stage.cluster

    # --- while it runs

    def _parts(self, cluster: LocalCluster, console: Console) -> list[Coroutine[object, object, None]]:
        return [self._scenario()]

    async def _scenario(self) -> None:
        assert self.play is not None
        playing, ending = asyncio.create_task(self.play.play()), asyncio.create_task(self._ending.wait())
        try:
            done, _ = await asyncio.wait([playing, ending], return_when=asyncio.FIRST_COMPLETED)
            if playing in done:
                playing.result()
        finally:
            for task in (playing, ending):
                task.cancel()
            await asyncio.gather(playing, ending, return_exceptions=True)
        self._ending.set()

    async def _look(self, console: Console) -> None:
        while await self._going_on(LOOK_S):
            try:
                self.gateways = (await console.subscribers(timeout_s=ANSWER_S)).gateways
                state = await console.overview(timeout_s=ANSWER_S)
            except ClusterError:
                continue
            self.brokers = state.brokers
            for decision in self._fresh(state.decisions):
                self._happened(decision.text, Kind.DECISION, decision.at_s - self._begun_at_s)

    # --- what it counts

    @property
    def messages(self) -> int:
        return self.play.published + self.play.locations if self.play is not None else 0

    @property
    def deliveries(self) -> int:
        return self.play.audit.delivered if self.play is not None else 0

    @property
    def moves(self) -> int:
        return self.play.subscriber_moves if self.play is not None else 0

    async def _end(self) -> list[Verdict]:
        assert self.play is not None
        self._outcome = await self.play.end()
        return []

    def _sum_up(self, verdicts: list[Verdict]) -> Summary:
        assert self._outcome is not None
        assert self.play is not None
        found = self._outcome.notifications
        if not self.stopped and found.delivered < NOTIFICATIONS_MIN:
            self.missed.append(f"at least {NOTIFICATIONS_MIN} notifications (there were {found.delivered})")
        if not self.stopped and not self._outcome.subscriber_moves:
            self.missed.append("subscribers move between gateways")
        return Summary(
            seconds=round(self.elapsed_s, 1),
            clients=self.clients,
            seed=self.seed,
            messages=self.messages,
            deliveries=found.delivered,
            lost=found.lost + self._outcome.reports_lost,
            duplicated=found.repeated + self._outcome.reports_repeated,
            reordered=found.reordered,
            gaps=self._outcome.missed,
            interrupted=0,
            exact=self._outcome.exact,
            examples=found.examples,
            finished=not self.stopped,
            missed=self.missed,
            **percentiles_ms(self.play.latencies.all_s),
        )

    def _summary(self, common: Summary) -> ChannelsSummary:
        outcome: Any = self._outcome
        return ChannelsSummary(
            **asdict(common),
            rows=outcome.notifications.rows,
            subscriptions=outcome.notifications.subscriptions,
            backend_subscriptions=outcome.backend_subscriptions,
            executions=outcome.executions,
            subscriber_moves=outcome.subscriber_moves,
            shuffles=outcome.shuffles,
        )
