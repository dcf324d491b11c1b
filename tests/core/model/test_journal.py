"""The journal: entries there and back, and the record each broker must carry in each phase of a move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.model.journal import (
    MEMBERSHIP_KEY,
    BrokerEntry,
    BrokerState,
    Journal,
    MoveEntry,
    Phase,
    TopicEntry,
    broker_key,
    decode_entry,
    encode_entry,
    read_journal,
    record_at,
    records_for,
    topic_key,
)
from nearcast.core.model.membership import BrokerInfo, Membership, ring_of
from nearcast.core.model.placement import Mode, Placement, Record, prepare, settled, switch

P = Placement(7, Mode.ALL_SUBSCRIBERS, ("b1", "b2"), 3)
Q = Placement(8, Mode.SINGLE, ("b3",), 3)
RING = ("b1", "b2", "b3", "b4")
MEMBERS = Membership(version=3, term=1, brokers={}, ring=RING)
TERM = 5


def topic_of(directory: str) -> str:
    """A topic with this directory."""
    return next(name for number in range(1000) if ring_of(RING).owner((name := f"t{number}").encode()) == directory)


entries = st.one_of(
    st.builds(
        TopicEntry,
        st.just(P),
        st.none() | st.builds(MoveEntry, st.sampled_from(Phase), st.just(Q), st.booleans(), st.just(("b9",))),
    ),
    st.builds(BrokerEntry, st.text(), st.text(), st.text(), st.sampled_from(BrokerState)),
    st.builds(Membership, st.integers(0, 9), st.integers(0, 9), st.just({"b1": BrokerInfo("u")}), st.just(RING)),
)


@given(entries, st.text(max_size=20))
def test_an_entry_survives_the_way_there_and_back(entry: TopicEntry | BrokerEntry | Membership, name: str) -> None:
    key = {TopicEntry: topic_key(name), BrokerEntry: broker_key(name)}.get(type(entry), MEMBERSHIP_KEY)
    assert decode_entry(key, encode_entry(entry)) == entry


def test_an_entry_of_before_profiling_is_read() -> None:
    stored = b'{"url":"redis://b1","site":"s","run_id":"r","state":"member","capacity_bytes_per_s":5.0}'
    entry = BrokerEntry("redis://b1", "s", "r", BrokerState.MEMBER, 5.0, messages_high_per_s=0.0)
    assert decode_entry(broker_key("b1"), stored) == entry


def test_a_journal_is_read_from_the_entries_of_the_store() -> None:
    topic, broker = TopicEntry(P), BrokerEntry("redis://b1", "paris", "run", BrokerState.MEMBER)
    stored = {
        topic_key("a/b"): topic,
        topic_key("membership"): topic,
        broker_key("b1"): broker,
        MEMBERSHIP_KEY: MEMBERS,
    }
    journal = read_journal({key: encode_entry(entry) for key, entry in stored.items()})
    assert journal == Journal(MEMBERS, {"a/b": topic, "membership": topic}, {"b1": broker})


def test_an_empty_store_is_an_empty_journal() -> None:
    assert read_journal({}) == Journal(Membership(version=0, term=0, brokers={}), {}, {})


REST = None
PREPARE = MoveEntry(Phase.PREPARE, Q)
SWITCH = MoveEntry(Phase.SWITCH, Q, forced=True)


@pytest.mark.parametrize(
    ("move", "at_member", "at_new_member", "at_directory"),
    [
        (REST, settled(P, TERM), None, settled(P, TERM)),
        (PREPARE, prepare(P, Q, TERM), None, settled(P, TERM)),
        (SWITCH, switch(P, Q, TERM, forced=True), None, settled(P, TERM)),
    ],
    ids=["at rest", "prepare", "switch"],
)
def test_each_phase_has_its_record_at_each_broker(
    move: MoveEntry | None, at_member: Record, at_new_member: Record | None, at_directory: Record
) -> None:
    topic, entry = topic_of("b4"), TopicEntry(P, move)
    expected = {"b1": at_member, "b2": at_member, "b3": at_new_member, "b4": at_directory, "b5": None}
    assert {broker: record_at(broker, topic, entry, MEMBERS, TERM) for broker in expected} == expected


@pytest.mark.parametrize("move", [REST, PREPARE, SWITCH], ids=["at rest", "prepare", "switch"])
def test_a_directory_that_is_a_member_carries_the_record_of_a_member(move: MoveEntry | None) -> None:
    entry = TopicEntry(P, move)
    records = {record_at(broker, topic_of("b1"), entry, MEMBERS, TERM) for broker in ("b1", "b2")}
    assert len(records) == 1
    assert records != {None}


def test_while_the_ring_changes_both_directories_carry_the_record() -> None:
    topic = topic_of("b4")
    smaller = ("b1", "b2", "b3")
    changing = Membership(version=4, term=1, brokers={}, ring=smaller, previous_ring=RING)
    elsewhere = TopicEntry(Placement(2, Mode.SINGLE, ("b9",)))
    carrying = {broker for broker in RING if record_at(broker, topic, elsewhere, changing, TERM) is not None}
    assert carrying == {"b4", ring_of(smaller).owner(topic.encode())}


def test_without_a_ring_only_members_carry_records() -> None:
    nobody = Membership(version=0, term=0, brokers={})
    assert record_at("b1", "t", TopicEntry(P), nobody, TERM) == settled(P, TERM)
    assert record_at("b4", "t", TopicEntry(P), nobody, TERM) is None


def test_a_server_gets_all_records_that_concern_it() -> None:
    elsewhere = Placement(2, Mode.SINGLE, ("b2",))
    topics = {
        topic_of("b1"): TopicEntry(elsewhere),
        topic_of("b3"): TopicEntry(P),
        topic_of("b2"): TopicEntry(elsewhere),
    }
    journal = Journal(MEMBERS, topics)
    found = {topic: record for topic, record in records_for("b1", journal, TERM) if record is not None}
    assert found == {
        topic_of("b1"): settled(elsewhere, TERM),
        topic_of("b3"): settled(P, TERM),
    }
