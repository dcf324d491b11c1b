"""The emergency workload live: people at gateways, reports on topics, channels on Spark, under moves and a kill.

    python -m nearcast.workloads.emergency.run --users 400 --reports 10000 --seconds 240

Subscribers log in at the nearest gateway, so gateways are loaded unevenly, and balancing moves subscribers. Once, all
subscribers are placed again; once, the data cluster is killed and restarted. At the end every subscriber must have got
every notification it was owed, once, as determined by an independent reference.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from itertools import chain
from typing import Any

import msgspec

import nearcast
from nearcast.errors import Refused
from nearcast.testing.load import percentile
from nearcast.workloads.emergency.audit import NotificationAudit, NotificationVerdict, Reading
from nearcast.workloads.emergency.city import Message
from nearcast.workloads.emergency.latency import ChannelLatency, Latencies
from nearcast.workloads.emergency.people import Person
from nearcast.workloads.emergency.scenario import (
    EMERGENCY_CHANNELS,
    REPORTS,
    EmergencyChannel,
    EmergencySettings,
    Interaction,
    emergency_world,
)
from nearcast.workloads.emergency.stage import EmergencyCluster, EmergencyStage

SETTLE_S = 120.0  # for the last executions and deliveries after the last report
POLL_S = 3.0
NEWEST = 20  # notifications that a view may show

Tell = Callable[[str], None]


class EmergencyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does. `shuffle_at` and `kill_at` are shares of its time."""

    settings: EmergencySettings = EmergencySettings(speed=7.5)
    channels: tuple[EmergencyChannel, ...] = EMERGENCY_CHANNELS
    cluster: EmergencyCluster = EmergencyCluster()
    seed: int = 0
    location_s: float = 1.0  # between two locations that a person publishes
    shuffle_at: float = 0.45
    kill_at: float | None = 0.65


class Noticed(msgspec.Struct, frozen=True):
    """A notification that a user got."""

    user: str
    subscription: str
    rows: list[dict[str, Any]]


class EmergencySummary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run."""

    seconds: float
    notifications: NotificationVerdict
    backend_subscriptions: int
    reports: int
    reports_lost: int
    reports_repeated: int
    locations: int  # published
    executions: int
    subscriber_moves: int
    shuffles: int
    kills: int
    missed: int
    p50_s: float | None  # from the report's publication to its delivery
    p99_s: float | None
    channels: dict[str, ChannelLatency]

    @property
    def exact(self) -> bool:
        return self.notifications.exact and not (self.reports_lost or self.reports_repeated or self.missed)


class EmergencyRun:
    """One run on a stage. Public attributes are what a view may show."""

    def __init__(self, stage: EmergencyStage, plan: EmergencyPlan, tell: Tell) -> None:
        self.plan = plan
        self.stage = stage
        self.audit = NotificationAudit()
        self.people = [Person(user, stage.door, self) for user in stage.world.users]
        self.published = 0
        self.locations = 0
        self.shuffles = 0
        self.kills = 0
        self.latencies = Latencies()
        self.newest: deque[Noticed] = deque(maxlen=NEWEST)
        self._begun_s = 0.0
        self._tell = tell

    # --- what people are owed and get

    def subscribed(
        self, user: str, subscription: str, channel: str, parameters: dict[str, Any], from_execution: int
    ) -> None:
        self.latencies.subscribed(subscription, channel)
        self.audit.subscribed(user, subscription, channel, parameters, from_execution)

    def unsubscribed(self, user: str, subscription: str) -> None:
        self.audit.unsubscribed(user, subscription)

    def got(self, user: str, subscription: str, execution: int, rows: list[dict[str, Any]]) -> None:
        self.audit.got(user, subscription, execution, rows)
        self.newest.append(Noticed(user, subscription, rows))
        self.latencies.got(subscription, [self.elapsed_s - row["at_s"] for row in rows])

    # --- the run

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun_s

    @property
    def subscriber_moves(self) -> int:
        return sum(person.moved for person in self.people)

    async def run(self) -> EmergencySummary:
        await self.stage.prepare(self.plan.channels)
        await self.play()
        self._tell("all reports are published; waiting for the last executions and deliveries ...")
        return await self.end()

    async def play(self) -> None:
        """Everything that happens until the last report is published."""
        self._begun_s = time.monotonic()
        locating = asyncio.create_task(self._locate())
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in self._parts():
                    tasks.create_task(part)
        finally:
            locating.cancel()
            await asyncio.gather(locating, return_exceptions=True)

    async def end(self) -> EmergencySummary:
        """Wait for what is in flight, get the verdict, and log everybody out."""
        await self._settle()
        verdict, seconds = await self.verdict(), self.elapsed_s
        await asyncio.gather(*(person.leave() for person in self.people))
        return await self._summary(verdict, seconds)

    def _parts(self) -> list[Coroutine[Any, Any, None]]:
        there = {"", *(channel.name for channel in self.plan.channels)}
        events: dict[str, list[Interaction]] = {person.user: [] for person in self.people}
        for event in self.stage.world.scenario.events:
            if event.channel in there:
                events[event.user].append(event)
        lives = [person.live(events[person.user], self._until) for person in self.people]
        return [*lives, self._publish(), self._shuffle(), self._kill(), self._look()]

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self.elapsed_s))

    async def _publish(self) -> None:
        async with nearcast.connect(*self.stage.cluster.urls.values()) as client:
            for message in self.stage.world.reports():
                await self._until(message.at_s)
                await client.publish(message.topic, message.payload)
                self.published += 1

    async def _locate(self) -> None:
        """Everybody publishes its location, spread over `location_s`, again and again."""
        while True:
            messages = list(self.stage.world.locations(self.elapsed_s))
            pause_s = self.plan.location_s / len(messages)
            telling = [
                asyncio.create_task(self._tell_location(person, message, number * pause_s))
                for number, (person, message) in enumerate(zip(self.people, messages, strict=True))
            ]
            await asyncio.sleep(self.plan.location_s)
            await asyncio.gather(*telling)

    async def _tell_location(self, person: Person, message: Message, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        self.locations += await person.tell(message)

    async def _shuffle(self) -> None:
        await self._until(self.plan.shuffle_at * self.plan.settings.seconds)
        console = await self.stage.cluster.console()
        while True:
            try:
                await console.shuffle_subscribers()
            except Refused:  # a subscriber is moving
                await asyncio.sleep(POLL_S)
            else:
                break
        self.shuffles += 1
        self._tell(f"{self.elapsed_s:4.0f} s  all subscribers are placed again")

    async def _kill(self) -> None:
        if self.plan.kill_at is None:
            return
        await self._until(self.plan.kill_at * self.plan.settings.seconds)
        self.kills += 1
        self._tell(f"{self.elapsed_s:4.0f} s  the data cluster is killed")
        await self.stage.kill_data_cluster()
        self._tell(f"{self.elapsed_s:4.0f} s  the data cluster is back")

    async def _look(self) -> None:
        while self.elapsed_s < self.plan.settings.seconds:
            await asyncio.sleep(min(10.0, self.plan.settings.seconds))
            there = Counter(person.broker for person in self.people if person.broker)
            places = ", ".join(f"{broker} {count}" for broker, count in sorted(there.items()))
            self._tell(
                f"{self.elapsed_s:4.0f} s  reports {self.published:,}, locations {self.locations:,}, "
                f"notifications {self.audit.delivered:,}, moves {self.subscriber_moves}; {places}"
            )

    # --- the end

    async def _settle(self) -> None:
        """Wait until every channel has read every report, and nothing arrives any more."""
        before = -1
        for _ in range(round(SETTLE_S / POLL_S)):
            quiet, before = before == self.audit.delivered, self.audit.delivered
            if quiet and await self.stage.is_done(self.plan.channels, self.published):
                return
            await asyncio.sleep(POLL_S)

    async def verdict(self) -> NotificationVerdict:
        """Compare everything so far with the reference."""
        readings = await self._readings()
        reference = await asyncio.to_thread(self.stage.reference)

        def expected(channel: str, parameters: Any, execution: int) -> list[dict[str, Any]]:
            return reference.expected(channel, parameters, readings[channel][execution])

        return await asyncio.to_thread(self.audit.verdict, readings, expected)

    async def _readings(self) -> dict[str, dict[int, Reading]]:
        found = {channel.name: await self.stage.readings(channel.name) for channel in self.plan.channels}
        return {name: {reading.execution: reading for reading in readings} for name, readings in found.items()}

    async def _summary(self, verdict: NotificationVerdict, seconds: float) -> EmergencySummary:
        ingested = Counter(new.record["id"] for new in self.stage.batched(REPORTS, "id"))
        readings = await self._readings()
        latencies_s = sorted(self.latencies.all_s)
        return EmergencySummary(
            seconds=round(seconds, 1),
            notifications=verdict,
            backend_subscriptions=self.audit.shared,
            reports=self.published,
            reports_lost=self.published - len(ingested),
            reports_repeated=sum(ingested.values()) - len(ingested),
            locations=self.locations,
            executions=len(list(chain.from_iterable(readings.values()))),
            subscriber_moves=self.subscriber_moves,
            shuffles=self.shuffles,
            kills=self.kills,
            missed=sum(person.missed for person in self.people),
            p50_s=percentile(latencies_s, 50),
            p99_s=percentile(latencies_s, 99),
            channels={channel.name: self.latencies.of(channel) for channel in self.plan.channels},
        )


BALANCING = (
    *("--placement", "nr", "--balance", "ldm", "--balance-every", "10"),
    *("--balance-set", "alpha=0.15", "--balance-set", "beta_bytes_per_s=1000"),
    *("--balance-set", "gamma=100"),  # no automatic shuffle, so that there are single moves; one is requested
)


async def run_emergency(plan: EmergencyPlan, tell: Tell) -> EmergencySummary:
    world = emergency_world(plan.settings, plan.seed)
    tell(f"starting {plan.cluster.brokers} brokers with gateways, and a data cluster on {plan.cluster.master} ...")
    async with await EmergencyStage.start(world, plan.cluster) as stage:
        return await EmergencyRun(stage, plan, tell).run()


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m nearcast.workloads.emergency.run", description="Run the emergency workload live."
    )
    parser.add_argument("--users", type=int, default=400)
    parser.add_argument("--reports", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--locations", type=float, default=1.0, help="seconds between a person's locations")
    parser.add_argument("--scheme", default="ldm", choices=("ldm", "sdm"))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    settings = EmergencySettings(users=given.users, reports=given.reports, speed=1800.0 / given.seconds)
    balancing = tuple(given.scheme if word == "ldm" else word for word in BALANCING)
    plan = EmergencyPlan(
        settings=settings,
        cluster=EmergencyCluster(balancing=balancing),
        seed=given.seed,
        location_s=given.locations,
    )
    summary = asyncio.run(run_emergency(plan, lambda line: print(line, file=sys.stderr, flush=True)))
    print(msgspec.json.format(msgspec.json.encode(summary), indent=1).decode())
    sys.exit(not summary.exact)


if __name__ == "__main__":
    _main()
