"""A handover alone: records are collected at old directories, installed at new ones, and then the ring opens."""

from __future__ import annotations

import parts
from parts import DEAD, MEMBERS, TERM, Surroundings, calls, journal_of, resting

from nearcast.core.controller.handover import Handover, Restoring
from nearcast.core.controller.office import INSTALL_BATCH
from nearcast.core.model.journal import Journal, MoveEntry, Phase, TopicEntry
from nearcast.core.model.membership import Membership, ring_of
from nearcast.core.model.placement import Record, first_use, settled, single
from nearcast.core.wire import bus

BEFORE, AFTER = ("b1", "b2"), ("b1", "b2", "b3")


def moving_to(owner: str, number: int = 1) -> list[str]:
    """Topics whose directory is this one by the ring after, and was another one by the ring before."""
    names, before, after = [], ring_of(BEFORE), ring_of(AFTER)
    for n in range(100_000):
        name = f"m{n:05d}".encode()
        if after.owner(name) == owner != before.owner(name):
            names.append(name.decode())
        if len(names) == number:
            break
    return names


TOPIC, OTHER, THIRD = moving_to("b3", 3)


class Handing(Surroundings):
    """b3 joins the ring of b1 and b2, which is closed for what moves to it."""

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal or journal_of(*AFTER, closed_from=BEFORE))
        self.evacuated: list[str] = []
        restoring = Restoring(self.office.orders, TERM)
        self.handover = Handover(self.office, self.roster, restoring, self.evacuated.append)

    def drive(self, now_s: float) -> None:
        self.handover.drive(self.journal.membership, now_s)

    def collects(self) -> dict[str, bus.Collect]:
        found = dict(self.orders())
        assert all(isinstance(order, bus.Collect) for order in found.values())
        return found  # type: ignore[return-value]

    def collect(self, now_s: float, **found: dict[str, Record]) -> None:
        """Both old directories hand over everything they have."""
        self.drive(now_s)
        for name, order in self.collects().items():
            self.answer(name, order, now_s, records=found.get(name, {}))
        self.commit(now_s)

    def opened(self) -> bool:
        membership = self.commit().get("membership")
        assert membership is None or isinstance(membership, Membership)
        return membership is not None and (membership.version, membership.previous_ring) == (MEMBERS + 1, None)


def at(name: str) -> Record:
    return first_use(5, name)


def test_old_directories_are_asked_for_what_moves_and_an_empty_ring_opens_at_once() -> None:
    one = Handing()
    one.drive(0.0)
    collects = one.collects()
    assert collects.keys() == {"b1", "b2"}
    assert (collects["b1"].old_ring, collects["b1"].new_ring, collects["b1"].members) == (BEFORE, AFTER, MEMBERS)
    for name, order in collects.items():
        assert not one.opened(), "one has not answered yet"
        one.answer(name, order, 0.1)
    one.commit(0.1)
    one.drive(0.1)
    assert one.opened()


def test_what_is_found_is_written_down_installed_at_the_new_directory_and_then_the_ring_opens() -> None:
    one = Handing()
    one.drive(0.0)
    for name, order in one.collects().items():
        one.answer(name, order, 0.0, records={TOPIC: at("b1")} if name == "b1" else {})
    assert one.commit(0.0) == {f"topic/{TOPIC}": TopicEntry(at("b1").placement)}
    one.drive(0.1)
    ((name, install),) = one.orders()
    assert (name, install.records) == ("b3", {TOPIC: settled(at("b1").placement, TERM)})
    one.drive(0.2)
    assert not one.opened()
    one.answer("b3", install, 0.3)
    one.drive(0.4)
    assert one.opened()


def test_the_next_batch_is_asked_for_when_the_last_one_is_in_the_journal() -> None:
    one = Handing()
    one.drive(0.0)
    first = one.collects()["b1"]
    one.answer("b1", first, 0.1, records={TOPIC: at("b1"), OTHER: at("b1")}, more=True)
    one.drive(0.1)
    assert "b1" not in one.collects()
    one.commit(0.2)
    assert one.collects()["b1"].after == max(TOPIC, OTHER)


def test_an_unanswered_question_is_repeated_and_a_batch_counts_once() -> None:
    one = Handing()
    one.drive(0.0)
    first = one.collects()["b1"]
    one.drive(0.1)
    assert one.collects() == {}
    one.drive(0.4)
    second = one.collects()["b1"]
    one.answer("b1", second, 0.5, records={TOPIC: at("b1")}, more=True)
    one.answer("b1", first, 0.5, records={TOPIC: at("b1")}, more=True)  # before it is written
    one.commit(0.5)
    assert [(name, order.after) for name, order in one.collects().items()] == [("b1", TOPIC)]


def test_a_late_answer_to_the_first_question_does_not_end_the_second() -> None:
    one = Handing()
    one.drive(0.0)
    first = one.collects()["b1"]
    one.drive(0.4)
    again = one.collects()["b1"]
    one.answer("b1", again, 0.5, records={TOPIC: at("b1")}, more=True)
    one.commit(0.5)
    (after,) = one.collects().values()
    one.answer("b1", first, 0.6, records={TOPIC: at("b1")}, more=False)
    assert one.commit(0.6) == {}
    one.drive(0.9)
    assert one.collects()["b1"].after == after.after == TOPIC, "there is more"


def test_what_the_journal_knows_is_believed_more_than_what_is_found() -> None:
    known = TopicEntry(single(9, "b2", 5))
    one = Handing(journal_of(*AFTER, closed_from=BEFORE, topics={TOPIC: known}))
    one.collect(0.0, b1={TOPIC: at("b1")})
    assert one.journal.topics == {TOPIC: known}
    one.drive(0.1)
    assert one.order().records == {TOPIC: settled(known.placement, TERM)}


def test_topics_whose_directory_stays_are_not_installed() -> None:
    staying = next(name for name in resting(100, "b1") if ring_of(BEFORE).owner(name.encode()) == "b1" == _after(name))
    one = Handing(journal_of(*AFTER, closed_from=BEFORE, topics={staying: TopicEntry(single(6, "b2", 5))}))
    one.collect(0.0)
    one.drive(0.1)
    assert one.orders() == []
    assert one.opened()


def _after(name: str) -> str:
    return ring_of(AFTER).owner(name.encode())


def test_the_ring_stays_closed_while_a_topic_switches() -> None:
    switching = TopicEntry(single(6, "b1", 5), MoveEntry(Phase.SWITCH, single(7, "b2", 5)))
    one = Handing(journal_of(*AFTER, closed_from=BEFORE, topics={TOPIC: switching}))
    one.collect(0.0)
    one.drive(0.1)
    assert one.orders() == []
    assert not one.opened(), "its move installs the record when it settles"
    one.ledger.write_topic(TOPIC, TopicEntry(single(7, "b2", 5)))
    one.commit(0.2)
    one.drive(0.2)
    assert one.order().records == {TOPIC: settled(single(7, "b2", 5), TERM)}


def test_a_topic_that_is_found_on_a_dead_broker_is_brought_elsewhere() -> None:
    one = Handing(journal_of(*AFTER, closed_from=BEFORE, b4=DEAD))
    one.collect(0.0, b1={TOPIC: settled(single(4, "b4", 3), 1), OTHER: at("b1")})
    assert one.evacuated == ["b4"]


# --- brokers that die in the middle


def lose(one: Handing, name: str) -> None:
    one.ledger.write_broker(name, parts.broker(name, DEAD))
    one.commit()


def test_an_old_directory_that_dies_is_not_waited_for() -> None:
    one = Handing()
    one.drive(0.0)
    one.answer("b1", one.collects()["b1"], 0.1)
    one.commit(0.1)
    one.drive(0.1)
    assert not one.opened()
    lose(one, "b2")
    one.drive(0.2)
    assert one.opened()


def test_a_new_directory_that_dies_is_not_waited_for() -> None:
    one = Handing(journal_of(*AFTER, closed_from=BEFORE, topics={TOPIC: TopicEntry(single(6, "b1", 5))}))
    one.collect(0.0)
    one.drive(0.1)
    assert [name for name, _ in one.orders()] == ["b3"]
    lose(one, "b3")
    one.drive(0.2)
    assert one.opened()


def test_a_ring_that_changes_again_meanwhile_is_collected_again() -> None:
    one = Handing()
    one.collect(0.0)
    changed = one.journal.membership
    one.ledger.write({"membership": _next(changed)})
    one.commit()
    one.drive(0.1)
    assert one.collects().keys() == {"b1", "b2"}
    assert one.commit() == {}


def _next(membership: Membership) -> Membership:
    return Membership(MEMBERS + 1, TERM, membership.brokers, ("b1", "b3"), membership.previous_ring)


# --- very many topics


def test_many_topics_are_looked_at_and_installed_a_part_at_a_time() -> None:
    names = moving_to("b3", 3_000)
    topics = resting(17_000, "b1") | dict.fromkeys(names, TopicEntry(single(6, "b1", 5)))
    one = Handing(journal_of(*AFTER, closed_from=BEFORE, topics=topics))
    one.collect(0.0)
    costs, installed, now_s = [], list[str](), 0.0
    while not one.ledger.pending("membership"):
        now_s += 0.1
        assert now_s < 10
        costs.append(calls(one.drive, now_s))
        for name, order in one.orders():
            assert len(order.records) <= INSTALL_BATCH  # type: ignore[union-attr]
            installed += order.records  # type: ignore[union-attr]
            one.answer(name, order, now_s)
    assert set(names) <= set(installed)
    assert len(installed) == len(set(installed)), "each of them once"
    assert max(costs) < 120_000, max(costs)
