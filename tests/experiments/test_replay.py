"""Plan changes made again at message level: the script follows them, and a message taken out is found missing."""

from __future__ import annotations

import pytest

from nearcast.core.model.message import Message
from nearcast.core.model.placement import Mode
from nearcast.errors import UsageError
from nearcast.experiments.checks import BEGIN_S, ReplaySettings, judge, replay, script_of
from nearcast.flow.model import ChangeKind, PlanChange
from nearcast.sim.faults import FaultPlan, Profile
from nearcast.sim.script import Add, Place, Remove
from nearcast.sim.world import Setup, World


def placed(began_s: float, topic: str, *brokers: str, mode: Mode = Mode.SINGLE) -> PlanChange:
    return PlanChange(
        at_s=began_s + 1, kind=ChangeKind.PLACED, topic=topic, mode=mode, brokers=brokers, began_s=began_s
    )


CHANGES = [
    PlanChange(at_s=100.0, kind=ChangeKind.JOINED, broker="b2"),
    placed(100.0, "t1", "b2"),
    placed(100.0, "t2", "b1", "b2", mode=Mode.ALL_SUBSCRIBERS),
    PlanChange(at_s=110.0, kind=ChangeKind.DRAINING, broker="b1"),
    placed(110.0, "t3", "b2"),
    placed(110.2, "t2", "b2"),
    PlanChange(at_s=112.0, kind=ChangeKind.RELEASED, broker="b1"),
]


def test_changes_that_began_together_are_one_step_and_quiet_time_is_cut_short() -> None:
    script = script_of(CHANGES, quiet_max_s=0.5)
    single, both = Mode.SINGLE, Mode.ALL_SUBSCRIBERS
    assert [type(step) for step in script] == [Add, Place, Place, Place, Remove]
    assert script[1] == Place(BEGIN_S, {"t1": (single, ("b2",)), "t2": (both, ("b1", "b2"))})
    assert script[2] == Place(BEGIN_S + 0.5, {"t3": (single, ("b2",))})
    assert [step.at_s - BEGIN_S for step in script] == pytest.approx([0.0, 0.0, 0.5, 0.7, 1.2])
    assert script[4].broker == "b1"


def test_a_replay_makes_every_change_and_loses_nothing() -> None:
    settings = ReplaySettings(publishers=2, subscribers=6, rate_per_s=20.0)
    replayed = replay(("t1", "t2", "t3"), ("b1",), CHANGES, settings)
    assert (replayed.joined, replayed.left, replayed.steps) == (1, 1, 5)
    assert replayed.moves >= 4
    assert (replayed.lost, replayed.duplicated, replayed.reordered, replayed.forced) == (0, 0, 0, 0)
    assert replayed.faults == []
    assert replayed.deliveries > 100


def test_a_message_taken_out_of_what_a_subscriber_got_is_found() -> None:
    setup = Setup(topic_names=("t1",), broker_names=("b1", "b2"), moves_per_s=0.0, traffic_s=3.0, cancelled_share=0.0)
    world = World(0, setup, FaultPlan(Profile.CALM))
    world.run()
    assert judge(world, ()).lost == 0
    events = world.subscribers[0].events
    messages = [index for index, (_, event) in enumerate(events) if isinstance(event, Message)]
    del events[messages[-1]]
    found = judge(world, ())
    assert found.lost == 1
    assert found.faults


def test_settings_are_checked() -> None:
    with pytest.raises(UsageError, match="at least one client"):
        ReplaySettings(publishers=0)
