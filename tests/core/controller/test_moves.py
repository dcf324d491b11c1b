"""Moves: which record of a move goes where and when a stage is over; what all moves together ask for."""

from __future__ import annotations

from typing import Any

import msgspec
import parts
import pytest
from parts import DEAD, LEAVING, MEMBERS, TERM, Surroundings, calls, journal_of, resting

from nearcast.core.controller.moves import COUNT_EVERY_S, EVACUATED_MAX, LAZY_SLOTS, Move, Moves, Stage
from nearcast.core.controller.office import INSTALL_BATCH
from nearcast.core.model.journal import Journal, MoveEntry, Pace, Phase, TopicEntry
from nearcast.core.model.logs import Log
from nearcast.core.model.placement import Mode, Placement, Record, prepare, settled, single, switch
from nearcast.core.model.settings import DEFAULT_TIMING
from nearcast.core.wire import bus

P = Placement(7, Mode.ALL_SUBSCRIBERS, ("b1", "b2"))
Q = Placement(8, Mode.SINGLE, ("b3",))


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


def answer(broker: str, **fields: Any) -> bus.Answer:
    return bus.Answer(broker, 1, **fields)


def test_a_stage_is_over_when_its_record_is_everywhere() -> None:
    found, version = move(), prepare(P, Q, TERM).version
    found.installed(answer("b1"), version, TERM)
    assert not found.complete(None, living)
    found.installed(answer("b2"), version + 1, TERM)
    assert found.complete(None, living)


def test_an_older_version_on_a_server_does_not_count() -> None:
    found, version = move(), prepare(P, Q, TERM).version
    for broker in P.brokers:
        found.installed(answer(broker), version - 1, TERM)
        found.installed(answer(broker), -1, TERM)
    assert not found.complete(None, living)


def test_a_dead_broker_counts_as_done() -> None:
    found = move()
    found.installed(answer("b1"), prepare(P, Q, TERM).version, TERM)
    assert found.complete(None, lambda broker: broker != "b2")


def test_what_was_installed_in_one_stage_counts_for_no_other() -> None:
    found = move()
    for broker in P.brokers:
        found.installed(answer(broker), prepare(P, Q, TERM).version, TERM)
    found.decided(MoveEntry(Phase.SWITCH, Q), 11.0)
    assert not found.complete(None, living)


def test_a_record_is_sent_again_to_those_who_did_not_answer() -> None:
    found = move()
    assert sorted(found.due(None, living, 10.0, retry_s=0.3)) == ["b1", "b2"]
    assert found.due(None, living, 10.2, retry_s=0.3) == []
    found.installed(answer("b1"), prepare(P, Q, TERM).version, TERM)
    assert found.due(None, living, 10.3, retry_s=0.3) == ["b2"]


def test_the_ends_of_switched_parts_go_with_the_settled_record() -> None:
    found = move()
    found.decided(MoveEntry(Phase.SWITCH, Q), 11.0)
    version = switch(P, Q, TERM, forced=False).version
    found.installed(answer("b1", life="b1@1", ends={"orders@3": "7-1", "all@5": "7-2"}), version - 1, TERM)
    assert found.ends == {}, "it has not switched"
    found.installed(answer("b1", life="b1@1", ends={"orders@3": "7-1", "all@5": "7-2"}), version, TERM)
    found.installed(answer("b1", life="b1@1", ends={"orders@3": "10-0"}), version, TERM)
    found.installed(answer("b2", life="b2@1", ends={"orders@3": "6-9"}), version, TERM)
    assert found.ends == {"orders@3": {"b1@1": "10-0", "b2@1": "6-9"}, "all@5": {"b1@1": "7-2"}}


def test_nothing_is_sent_to_the_dead() -> None:
    assert move().due(None, lambda broker: broker != "b1", 10.0, retry_s=0.3) == ["b2"]


# --- all moves

OLD, NEW = single(6, "b1", 5), single(7, "b2", 5)
FIRST, LATER = TopicEntry(OLD, MoveEntry(Phase.PREPARE, NEW)), TopicEntry(OLD, MoveEntry(Phase.SWITCH, NEW))
RETRY_S, READY_S = DEFAULT_TIMING.retry_s, DEFAULT_TIMING.ready_s


class Moving(Surroundings):
    """The moves of a cluster of three brokers, of which the third is every topic's directory."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.moves = Moves(self.office, self.roster, now_s=0.0)

    def tick(self, now_s: float) -> None:
        self.moves.tick(now_s)
        self.moves.go_on(now_s)

    def installs(self) -> dict[str, dict[str, Record]]:
        """The records to be installed since the last look, by broker; in one order for each."""
        orders = self.orders()
        assert len({name for name, _ in orders}) == len(orders)
        return {name: order.records for name, order in orders if isinstance(order, bus.Install)}

    def run(self, until_s: float, from_s: float = 0.0) -> None:
        """With agents that obey and a store that answers."""
        for step in range(round((until_s - from_s) / 0.1) + 1):
            now_s = from_s + step / 10
            self.tick(now_s)
            self.obey(now_s)
            self.moves.go_on(now_s)
            self.commit(now_s)

    def lose(self, name: str) -> None:
        """The journal says that the broker was given up."""
        self.ledger.write_broker(name, parts.broker(name, DEAD))
        self.commit()


def moving(**topics: TopicEntry) -> Moving:
    return Moving(journal_of("b1", "b2", "b3", ring=("b3",), topics=topics))


def test_a_move_goes_through_its_stages_and_each_waits_for_its_own() -> None:
    one = moving(t=FIRST)
    seen = []
    for now_s in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
        one.tick(now_s)
        orders = [(name, type(order).__name__) for name, order in one.obey(now_s)]
        one.moves.go_on(now_s)
        seen.append((one.moves.stage("t"), orders, list(one.commit(now_s).values())))
    assert seen == [
        (Stage.READY, [("b1", "Install")], []),
        (Stage.READY, [("b1", "Count")], [LATER]),
        (Stage.SETTLE, [("b1", "Install")], []),
        (Stage.SETTLED, [("b1", "Install"), ("b2", "Install"), ("b3", "Install")], [TopicEntry(NEW)]),
        *[(None, [], [])] * 4,
    ]
    assert (len(one.moves), one.moves.done) == (0, 1)


def test_where_topics_are_kept_they_settle_only_at_brokers_that_know_who_has_died() -> None:
    journal = journal_of("b1", "b2", "b3", ring=("b3",), topics={"t": LATER})
    logs = (Log("all", 1, ("*",), 3600.0, 1 << 30),)
    journal.membership = msgspec.structs.replace(journal.membership, logs=logs)
    one = Moving(journal)
    one.roster.membership_at.update(b1=MEMBERS, b2=MEMBERS - 1, b3=MEMBERS)
    one.tick(0.0)
    one.obey(0.0)
    one.moves.go_on(0.1)
    one.tick(0.1)
    assert set(one.installs()) == {"b1", "b3"}
    one.roster.membership_at["b2"] = MEMBERS
    one.tick(0.2)
    assert set(one.installs()) == {"b2"}


def test_nothing_is_fenced_before_the_decision_is_in_the_store() -> None:
    one = moving(t=FIRST)
    one.run(0.0)
    one.tick(0.1)
    one.obey(0.1)
    one.moves.go_on(0.1)
    for now_s in (0.2, 0.6, 1.0):
        one.tick(now_s)
    assert one.orders() == []
    one.commit(1.0)
    one.moves.go_on(1.0)
    assert one.installs() == {"b1": {"t": switch(OLD, NEW, TERM, forced=False)}}


def test_a_record_is_sent_again_after_a_while_and_an_answer_counts_once() -> None:
    one = moving(t=FIRST)
    one.tick(0.0)
    first = one.order()
    one.tick(RETRY_S / 2)
    assert one.orders() == []
    one.tick(RETRY_S)
    second = one.order()
    assert first.records == second.records == {"t": prepare(OLD, NEW, TERM)}
    one.answer("b1", second, 0.4, versions={"t": prepare(OLD, NEW, TERM).version})
    one.moves.go_on(0.4)
    one.answer("b1", first, 0.5, versions={"t": prepare(OLD, NEW, TERM).version})
    one.moves.go_on(0.5)
    assert one.moves.stage("t") is Stage.READY


def test_what_two_answers_of_one_moment_make_possible_is_ordered_at_that_moment() -> None:
    """Several messages may be read from the bus at once."""
    two = moving(t=LATER, u=TopicEntry(single(6, "b3", 5), MoveEntry(Phase.SWITCH, NEW)))
    two.tick(0.0)
    for name, order in two.orders():
        two.answer(name, order, 0.1, versions={topic: record.version for topic, record in order.records.items()})
        two.moves.go_on(0.1)
        two.moves.go_on(0.1)
    settled_at = sorted((name, topic) for name, order in two.orders() for topic in order.records)
    assert settled_at == [("b1", "t"), ("b2", "t"), ("b2", "u"), ("b3", "t"), ("b3", "u")]


def test_an_answer_from_an_earlier_stage_ends_no_later_one() -> None:
    one = moving(t=LATER)
    one.tick(0.0)
    one.answer("b1", one.order(), 0.1, versions={"t": prepare(OLD, NEW, TERM).version})
    one.moves.go_on(0.1)
    assert one.moves.stage("t") is Stage.SWITCH


def test_subscribers_are_awaited_and_counted_a_few_times_a_second() -> None:
    one = moving(t=FIRST)
    one.run(0.0)
    counted = []
    for step in range(10):
        one.tick(0.1 + step * 0.6 * COUNT_EVERY_S)
        for name, order in one.orders():
            counted.append(order.epochs)
            one.answer(name, order, 0.1, counts={"t": (2, 1)})
    assert counted == [{"t": NEW.epoch}] * 5
    assert one.moves.stage("t") is Stage.READY


def test_a_move_is_forced_when_subscribers_take_too_long() -> None:
    one = moving(t=FIRST)
    one.run(0.0)
    one.tick(READY_S)
    assert one.commit() == {}
    one.tick(READY_S + 0.01)
    assert one.commit() == {"topic/t": TopicEntry(OLD, MoveEntry(Phase.SWITCH, NEW, forced=True))}
    assert "is moved by force" in one.office.notes[-1]


def test_a_count_that_was_asked_for_another_epoch_does_not_count() -> None:
    one = moving(t=FIRST)
    one.run(0.0)
    one.tick(0.1)
    count = one.order()
    one.ledger.write_topic("t", TopicEntry(OLD, MoveEntry(Phase.PREPARE, single(9, "b3", 5))))
    one.commit()
    one.moves.began("t", Pace.EAGER, 0.2)
    one.moves.go_on(0.2)
    one.obey(0.2)
    one.moves.go_on(0.2)
    assert one.moves.stage("t") is Stage.READY
    one.answer("b1", count, 0.3, counts={"t": (4, 4)})
    one.moves.go_on(0.3)
    assert one.commit() == {}


def test_lazy_moves_take_turns_and_none_begins_too_late() -> None:
    lazy = moving(**{f"t{number}": FIRST for number in range(2 * LAZY_SLOTS)})
    for topic in lazy.journal.topics:
        lazy.moves.began(topic, Pace.LAZY, 0.0)
    begun, seen = set(), []
    for now_s in (0.0, 0.101, 0.201, DEFAULT_TIMING.lazy_s):
        lazy.tick(now_s)
        begun |= {topic for _, order in lazy.orders() for topic in order.records}
        seen.append(len(begun))
    assert seen == [0, 5, 10, 2 * LAZY_SLOTS]


# --- brokers that die


def test_an_old_broker_that_dies_counts_as_done_and_the_move_is_forced() -> None:
    one = moving(t=LATER)
    one.tick(0.0)
    one.orders()
    one.lose("b1")
    one.tick(0.1)
    assert one.commit() == {"topic/t": TopicEntry(OLD, MoveEntry(Phase.SWITCH, NEW, forced=True))}
    one.tick(0.2)
    one.tick(0.3)
    assert one.installs().keys() == {"b2", "b3"}


def test_a_new_broker_that_dies_before_the_switch_sends_the_topic_back_in_a_fresh_epoch() -> None:
    one = moving(t=FIRST)
    one.run(0.0)
    one.lose("b2")
    one.tick(0.1)
    back = MoveEntry(Phase.SWITCH, single(8, "b1", MEMBERS), forced=False, told=("b2",))
    assert one.commit() == {"topic/t": TopicEntry(OLD, back)}


def test_a_new_broker_that_dies_after_the_switch_is_left_when_the_move_has_ended() -> None:
    one = moving(t=LATER)
    one.lose("b2")
    one.run(1.0)
    entry = one.journal.topics["t"]
    assert (entry.placement.brokers, entry.move) == (("b3",), None)
    assert one.moves.done == 2


def test_a_server_that_lost_its_memory_gets_the_record_again_at_once() -> None:
    one = moving(t=TopicEntry(Placement(6, Mode.ALL_SUBSCRIBERS, ("b1", "b3"), 5), MoveEntry(Phase.PREPARE, NEW)))
    one.tick(0.0)
    (first, _), _ = (orders := one.orders())
    one.answer(first, orders[0][1], 0.05, versions={"t": 4 * 6 + 2})
    one.moves.forget(first)
    one.tick(0.1)
    assert one.installs().keys() == {first}


def test_topics_that_rest_on_a_dead_broker_are_moved_by_force() -> None:
    left = moving(t=TopicEntry(OLD), u=TopicEntry(single(6, "b2", 5)))
    left.lose("b1")
    left.tick(0.0)
    assert left.commit() == {}, "nobody has said so yet"
    left.moves.evacuate("b1")
    left.tick(0.1)
    rescue = MoveEntry(Phase.SWITCH, single(7, "b3", MEMBERS), forced=True)
    assert left.commit() == {"topic/t": TopicEntry(OLD, rescue)}


def test_a_new_leader_finds_topics_that_were_left_behind() -> None:
    left = Moving(journal_of("b2", "b3", topics={"t": TopicEntry(OLD)}, b1=DEAD))
    left.run(1.0)
    assert left.journal.topics["t"].placement.brokers != ("b1",)


def test_a_topic_that_is_being_written_is_evacuated_afterwards() -> None:
    left = moving(t=TopicEntry(OLD))
    left.lose("b1")
    left.ledger.write_topic("t", TopicEntry(OLD))
    left.ledger.commit(0.0)
    left.moves.evacuate("b1")
    left.tick(0.0)
    left.ledger.committed(0.0)
    left.run(1.0)
    assert left.journal.topics["t"].placement.brokers == ("b3",)


def test_nothing_is_evacuated_while_there_is_no_ring() -> None:
    left = Moving(journal_of(topics={"t": TopicEntry(OLD)}, b1=DEAD))
    left.tick(0.0)
    assert left.commit() == {}
    left.ledger.write({"broker/b2": parts.broker("b2"), "membership": journal_of("b2").membership})
    left.commit()
    left.run(1.0)
    assert left.journal.topics["t"].placement.brokers == ("b2",), "it was not forgotten"


# --- very many topics


def test_many_moves_share_orders() -> None:
    many = Moving(journal_of("b1", "b2", topics=dict.fromkeys(resting(1200, "b1"), FIRST)))
    many.tick(0.0)
    assert [len(order.records) for _, order in many.orders()] == [INSTALL_BATCH, INSTALL_BATCH, 200]


def test_a_dead_brokers_many_topics_leave_a_part_at_a_time_and_all_of_them() -> None:
    many = Moving(journal_of("b2", "b3", topics=resting(20_000, "b1"), b1=DEAD))
    most, moving_at_once, costs = 0, [], []
    for step in range(200):
        costs.append(calls(many.tick, step / 10))
        many.obey(step / 10)
        many.commit(step / 10)
        moving_at_once.append(len(many.moves))
        most = max(most, many.ledger.waiting)
        if many.moves.done == 20_000:
            break
    assert max(moving_at_once) <= EVACUATED_MAX
    assert max(costs) < 60 * EVACUATED_MAX
    assert not many.roster.names("b1")


def test_an_answer_about_one_topic_drives_one_move() -> None:
    many = Moving(journal_of("b1", "b2", topics=dict.fromkeys(resting(20000, "b1"), FIRST)))
    many.tick(0.0)
    _, order = many.orders()[0]
    topic, record = next(iter(order.records.items()))
    many.answer("b1", order, 0.1, versions={topic: record.version})
    assert calls(many.moves.go_on, 0.1) < 100
    assert many.moves.stage(topic) is Stage.READY


def test_a_leaving_broker_takes_part_until_it_has_left() -> None:
    one = Moving(journal_of("b2", "b3", topics={"t": FIRST}, b1=LEAVING))
    one.run(1.0)
    assert one.journal.topics["t"] == TopicEntry(NEW)
