"""A move's stages: which record goes where, and when a stage is over."""

from __future__ import annotations

import pytest

from nearcast.core.controller.moves import Move, Stage
from nearcast.core.model.journal import MoveEntry, Phase, TopicEntry
from nearcast.core.model.placement import Mode, Placement, prepare, settled, switch

P = Placement(7, Mode.ALL_SUBSCRIBERS, ("b1", "b2"))
Q = Placement(8, Mode.SINGLE, ("b3",))
TERM = 5


def living(broker: str) -> bool:
    return True


def move(phase: Phase = Phase.PREPARE, *, forced: bool = False, told: tuple[str, ...] = ()) -> Move:
    return Move("t", TopicEntry(P, MoveEntry(phase, Q, forced, told)), now_s=10.0)


def in_stage(stage: Stage, **options: bool | tuple[str, ...]) -> Move:
    found = move(**options)  # type: ignore[arg-type]
    found.enter(stage, 10.0)
    return found


@pytest.mark.parametrize(("phase", "stage"), [(Phase.PREPARE, Stage.PREPARE), (Phase.SWITCH, Stage.SWITCH)])
def test_a_new_leader_takes_a_move_up_where_the_journal_says(phase: Phase, stage: Stage) -> None:
    assert move(phase).stage is stage
    assert move(phase).epoch == 8


@pytest.mark.parametrize(
    ("stage", "targets", "record"),
    [
        (Stage.PREPARE, {"b1", "b2"}, prepare(P, Q, TERM)),
        (Stage.SWITCH, {"b1", "b2"}, switch(P, Q, TERM, forced=True)),
        (Stage.SETTLE, {"b1", "b2", "b3", "b4", "b5"}, settled(Q, TERM, forced=True)),
    ],
)
def test_each_stage_has_its_record_and_its_brokers(stage: Stage, targets: set[str], record: object) -> None:
    found = in_stage(stage, forced=True, told=("b5",))
    assert found.targets(directory="b4") == targets
    assert found.record(TERM) == record


def test_without_a_directory_the_members_are_settled() -> None:
    assert in_stage(Stage.SETTLE).targets(directory=None) == {"b1", "b2", "b3"}


def test_stages_follow_each_other() -> None:
    found = move()
    stages = [found.stage]
    found.advance(11.0)
    stages.append(found.stage)
    found.decided(MoveEntry(Phase.SWITCH, Q), 12.0)
    stages.append(found.stage)
    found.advance(13.0)
    found.advance(14.0)
    assert [*stages, found.stage] == [Stage.PREPARE, Stage.READY, Stage.SWITCH, Stage.SETTLED]
    assert found.since_s == 14.0


def test_a_stage_is_over_when_its_record_is_everywhere() -> None:
    found, version = move(), prepare(P, Q, TERM).version
    found.installed("b1", version, TERM)
    assert not found.complete(None, living)
    found.installed("b2", version + 1, TERM)
    assert found.complete(None, living)


def test_an_older_version_on_a_server_does_not_count() -> None:
    found, version = move(), prepare(P, Q, TERM).version
    for broker in P.brokers:
        found.installed(broker, version - 1, TERM)
        found.installed(broker, -1, TERM)
    assert not found.complete(None, living)


def test_a_dead_broker_counts_as_done() -> None:
    found = move()
    found.installed("b1", prepare(P, Q, TERM).version, TERM)
    assert found.complete(None, lambda broker: broker != "b2")


def test_what_was_installed_in_one_stage_counts_for_no_other() -> None:
    found = move()
    for broker in P.brokers:
        found.installed(broker, prepare(P, Q, TERM).version, TERM)
    found.decided(MoveEntry(Phase.SWITCH, Q), 11.0)
    assert not found.complete(None, living)


def test_a_record_is_sent_again_to_those_who_did_not_answer() -> None:
    found = move()
    assert sorted(found.due(None, living, 10.0, retry_s=0.3)) == ["b1", "b2"]
    assert found.due(None, living, 10.2, retry_s=0.3) == []
    found.installed("b1", prepare(P, Q, TERM).version, TERM)
    assert found.due(None, living, 10.3, retry_s=0.3) == ["b2"]


def test_nothing_is_sent_to_the_dead() -> None:
    assert move().due(None, lambda broker: broker != "b1", 10.0, retry_s=0.3) == ["b2"]
