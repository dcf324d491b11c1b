"""A crash at every step boundary of what changes the membership: joins, departures, brokers given up, the ring."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from nearcast.core.agent import records
from nearcast.core.model.placement import Mode
from nearcast.sim.campaign import run_world
from nearcast.sim.faults import LEADER, FaultPlan, Profile
from nearcast.sim.script import Add, Lose, Place, Remove, Step
from nearcast.sim.world import Setup, World

SEED = 4
CHANGE_S = 2.5  # the cluster has formed, and every topic has its directory and its traffic
AWAY_S = (0.05, 0.3, 1.0, 4.0)  # the last is longer than T_dead: an agent so long away costs its broker
SHARE = 61  # `make test` runs every 61st case, so that all victims and times come up; `make test-full` all of them
PARTS = 8  # that the cases are shared out to, so that workers can share the test
TOPICS = tuple(f"topic-{index}" for index in range(8))  # some change their directory with every change of the ring


class Change(msgspec.Struct, frozen=True):
    """What is done to the membership, to which broker, and how long it takes without faults."""

    broker: str
    script: tuple[Step, ...]
    lasts_s: float

    @property
    def victims(self) -> tuple[str, ...]:
        return (LEADER, f"agent {self.broker}", "agent b0")

    @property
    def setup(self) -> Setup:
        return Setup(
            brokers=3,
            controllers=2,
            topic_names=TOPICS,
            publishers=2,
            early_subscribers=2,
            late_subscribers=0,
            hasty_subscribers=0,
            pattern_subscribers=1,
            rate_per_s=40,
            moves_per_s=0,
            traffic_s=CHANGE_S + self.lasts_s - Setup().start_s,
            script=self.script,
        )


SPREAD = Place(2.0, {TOPICS[0]: (Mode.ALL_SUBSCRIBERS, ("b1", "b2")), TOPICS[1]: (Mode.SINGLE, ("b2",))})
CHANGES = {
    "a join": Change("b3", (SPREAD, Add(CHANGE_S, "b3")), 3.4),
    "a departure": Change("b2", (SPREAD, Remove(CHANGE_S, "b2")), 3.4),
    "a broker given up": Change("b2", (SPREAD, Lose(CHANGE_S, "b2", 0.8)), 4.2),
    "a join during a departure": Change("b3", (SPREAD, Remove(CHANGE_S, "b2"), Add(CHANGE_S, "b3")), 5.0),
}
Case = tuple[int, str, float]  # the boundary, who dies there, for how long


def _calm(change: Change) -> World:
    world = World(SEED, change.setup, FaultPlan(Profile.CALM, counted_from_s=CHANGE_S))
    world.run()
    return world


def _cases(change: Change) -> Iterator[Case]:
    for boundary in range(1, _calm(change).faults.boundaries + 1):
        for number, victim in enumerate(change.victims):
            yield boundary, victim, AWAY_S[(boundary + number) % len(AWAY_S)]


@pytest.mark.parametrize("name", CHANGES)
def test_the_boundaries_cover_a_change_from_its_beginning_to_its_end(name: str) -> None:
    change = CHANGES[name]
    world = World(SEED, change.setup, FaultPlan(Profile.CALM, counted_from_s=CHANGE_S))
    seen: list[list[str]] = []
    for at_s in (CHANGE_S + 0.9, CHANGE_S + change.lasts_s - 0.01):
        world.timeline.after(at_s, lambda: seen.append(world.unfinished_members()))
    world.run()
    assert seen[0] != [], "it is under way"
    assert seen[1] == [], "it has ended while boundaries are still counted"
    assert world.faults.boundaries >= 500


def _check(change: Change, case: Case) -> None:
    boundary, victim, down_s = case
    plan = FaultPlan(Profile.CALM, frozenset((boundary,)), counted_from_s=CHANGE_S, victim=victim, down_s=down_s)
    outcome = run_world(SEED, change.setup, plan)
    assert outcome.faults, f"{case}: nobody died"
    assert not outcome.violations, f"{case}: {outcome.violations[:5]} {outcome.faults}"


@pytest.mark.parametrize("name", CHANGES)
def test_a_crash_at_some_step_boundaries_of_a_change(name: str) -> None:
    for case in list(_cases(CHANGES[name]))[::SHARE]:
        _check(CHANGES[name], case)


@pytest.mark.parametrize("name", CHANGES)
def test_records_are_collected_one_by_one_no_matter_who_crashes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BATCH", 1)
    for case in list(_cases(CHANGES[name]))[7 :: 5 * SHARE]:
        _check(CHANGES[name], case)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", CHANGES)
def test_a_crash_at_every_step_boundary_of_a_change(name: str, part: int) -> None:
    for case in list(_cases(CHANGES[name]))[part::PARTS]:
        _check(CHANGES[name], case)
