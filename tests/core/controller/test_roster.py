"""The roster: what follows from the journal about brokers and the topics that name them."""

from __future__ import annotations

import msgspec
import pytest
from parts import DEAD, JOINING, LEAVING, LEFT, MEMBER, MEMBERS, RENTED, Surroundings, broker, journal_of

from nearcast.core.controller.office import Roster
from nearcast.core.model.journal import BrokerState, MoveEntry, Phase, TopicEntry
from nearcast.core.model.membership import BrokerInfo, ring_of
from nearcast.core.model.placement import Mode, Placement, single


@pytest.mark.parametrize(
    ("state", "alive", "carries", "may_be_given_topics"),
    [
        (RENTED, False, False, False),
        (JOINING, True, False, False),
        (MEMBER, True, True, True),
        (LEAVING, True, True, False),
        (LEFT, False, False, False),
        (DEAD, False, False, False),
    ],
)
def test_what_is_expected_of_a_broker_follows_from_its_state(
    state: BrokerState, alive: bool, carries: bool, may_be_given_topics: bool
) -> None:
    roster = Surroundings(journal_of("b1", b2=state)).roster
    assert (roster.alive("b2"), roster.carries("b2")) == (alive, carries)
    assert roster.carriers() == ({"b1", "b2"} if may_be_given_topics else {"b1"})


def test_nothing_is_expected_of_a_broker_that_is_not_in_the_journal() -> None:
    roster = Surroundings(journal_of("b1")).roster
    assert not roster.alive("b9")
    assert not roster.carries("b9")
    assert roster.unknown("b9") == "no broker 'b9'; the cluster has: b1"


def test_the_roster_follows_the_journal() -> None:
    around = Surroundings(journal_of("b1"))
    around.ledger.write_broker("b2", broker("b2"))
    assert around.roster.carriers() == {"b1"}, "it is not in the store yet"
    around.commit()
    assert around.roster.carriers() == {"b1", "b2"}


def come_back() -> Roster:
    """Of a cluster in which b2 was given up, and joined again after the placements of before."""
    journal = journal_of("b1", "b2", "b3")
    brokers = {**journal.membership.brokers, "b2": BrokerInfo("redis://b2", joined=6)}
    journal.membership = msgspec.structs.replace(journal.membership, brokers=brokers)
    return Surroundings(journal).roster


def test_who_came_back_is_not_the_one_that_an_earlier_placement_means() -> None:
    roster = come_back()
    earlier, later = Placement(4, Mode.ALL_SUBSCRIBERS, ("b1", "b2"), 5), single(9, "b2", 6)
    assert [roster.is_at(name, earlier) for name in ("b1", "b2")] == [True, False]
    assert [roster.whole(earlier), roster.whole(later)] == [False, True]


def test_the_directory_is_that_of_the_newest_ring_even_if_it_is_closed() -> None:
    roster = Surroundings(journal_of("b1", "b2", "b3", closed_from=("b1",))).roster
    names = [f"t{number}" for number in range(50)]
    assert [roster.directory(name) for name in names] == [
        ring_of(("b1", "b2", "b3")).owner(name.encode()) for name in names
    ]
    assert Surroundings(journal_of()).roster.directory("t") is None


@pytest.mark.parametrize(
    ("brokers", "mode", "left"),
    [
        (("b1", "b2", "b3"), Mode.ALL_PUBLISHERS, (Mode.ALL_PUBLISHERS, ("b1", "b3"))),
        (("b2", "b3"), Mode.ALL_SUBSCRIBERS, (Mode.SINGLE, ("b3",))),
    ],
)
def test_a_refuge_is_what_is_left_of_a_placement(
    brokers: tuple[str, ...], mode: Mode, left: tuple[Mode, tuple[str, ...]]
) -> None:
    refuge = come_back().refuge("t", Placement(20, mode, brokers, 5), 21)
    assert refuge == Placement(21, *left, MEMBERS)


def test_without_anything_left_the_directory_is_the_refuge() -> None:
    roster = come_back()
    directory = roster.directory("t")
    assert directory is not None
    assert roster.refuge("t", single(20, "b2", 5), 21) == single(21, directory, MEMBERS)
    assert Surroundings(journal_of(b2=DEAD)).roster.refuge("t", single(20, "b2", 5), 21) is None, "there is no ring"


def test_a_refuge_has_no_epoch_that_the_dead_may_know() -> None:
    refuge = come_back().refuge("t", single(3, "b2", 3), 4)
    assert refuge is not None
    assert refuge.epoch == MEMBERS


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        (TopicEntry(single(6, "b2", 5)), True),
        (TopicEntry(single(6, "b1", 5), MoveEntry(Phase.PREPARE, single(7, "b2", 5))), True),
        (TopicEntry(single(6, "b1", 5), MoveEntry(Phase.PREPARE, single(7, "b3", 5))), False),
    ],
)
def test_a_topic_names_a_broker_where_it_is_and_where_it_goes(entry: TopicEntry, names: bool) -> None:
    assert Surroundings(journal_of("b1", topics={"t": entry})).roster.names("b2") is names
