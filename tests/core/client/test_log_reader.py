"""Readers of logs over simulated servers: order between parts, what is missing, and entries nobody should write."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nearcast.core.client import advance
from nearcast.core.client.group import COMMITS_MAX
from nearcast.core.client.log_reader import LogReader, Start
from nearcast.core.model.cursors import decode_cursor
from nearcast.core.model.logs import FormerLife, Log, cursors_of, format_id, stream_of, totals_of
from nearcast.core.model.message import Lost, Message
from nearcast.core.model.names import INBOX
from nearcast.core.wire.batches import encode_batch
from nearcast.core.wire.effects import Done, Failed
from nearcast.core.wire.link import command
from nearcast.errors import LimitReached, UsageError

LOG = Log("all", 1, ("*",), 3600.0, 1 << 30)


class Reading:
    """A log on some servers, written to as servers write it."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.counts: dict[str, int] = {}
        self.announce(logs=(LOG,), logs_version=2)

    def announce(self, **changes: Any) -> None:
        world = self.world
        changes = {"version": world.membership.version + 1, **changes}
        world.membership = msgspec.structs.replace(world.membership, **changes)
        for broker in world.servers:
            world.prepare(broker)

    def life(self, broker: str) -> str:
        return str(self.world.membership.life(broker))

    def keep(self, broker: str, *payloads: bytes, version: int = 2, topic: bytes = b"t", publisher: int = 7) -> None:
        """One entry."""
        life = self.life(broker)
        first = self.counts.get(broker, 0) + 1
        self.counts[broker] = first + len(payloads) - 1
        batch = encode_batch(5, publisher, first, ((payload, 0) for payload in payloads))
        self.add(broker, "publisher", b"%016x" % publisher, "logs", version, "count", self.counts[broker], topic, batch)
        self.world.ask(broker, "HSET", totals_of(life), stream_of(LOG, life), self.counts[broker])

    def mark(self, broker: str, after: dict[str, str], version: int = 2) -> None:
        count = self.counts.get(broker, 0)
        self.add(broker, "begin", msgspec.json.encode(after), "logs", version, "count", count)

    def add(self, broker: str, *fields: bytes | str | int) -> None:
        self.world.now_s += 0.001
        stream = stream_of(LOG, self.life(broker))
        self.world.ask(broker, "XADD", stream, "*", *fields)
        self.world.ask(broker, "PUBLISH", stream, "")

    def last(self, broker: str) -> str:
        stream = self.world.servers[broker].keys.stream(stream_of(LOG, self.life(broker)))
        return format_id(stream.records[-1][0])

    def read(self, client: Any, group: str = "", start: Start | float = Start.EARLIEST) -> LogReader:
        world = self.world
        reader = client.machine.readers.read("all", start, group=group, token="begun", now_s=world.now_s)
        world.settle()
        return reader

    def got(self, reader: LogReader, seconds: float = 0.0) -> list[Any]:
        """What a reader has now: payloads, and what is lost as (part, count)."""
        self.world.run(seconds)
        found: list[Any] = []
        while reader.ready:
            delivery = reader.ready.popleft()
            if reader.taken(delivery):
                event = delivery.event
                found.append((event.part, event.count) if isinstance(event, Lost) else event.payload)
        reader.go_on(self.world.now_s)
        self.world.settle()
        return found

    def cursor(self, broker: str, group: str) -> Any:
        fields = self.world.servers[broker].keys.fields(cursors_of(LOG, self.life(broker)))
        return decode_cursor(fields[b"g:" + group.encode()])


@pytest.fixture
def two(rig: Any) -> Reading:
    return Reading(rig("b1", "b2"))


def test_everything_is_read_and_what_is_appended_later_is_heard_of(two: Reading) -> None:
    two.keep("b1", b"1", b"2")
    two.keep("b2", b"3")
    client = two.world.client()
    reader = two.read(client)
    assert Done("begun") in client.effects
    assert sorted(two.got(reader)) == [b"1", b"2", b"3"]
    two.keep("b2", b"4")
    assert two.got(reader) == [b"4"], "without a tick"
    first = two.read(client, start=Start.LATEST)
    assert two.got(first) == []
    two.keep("b1", b"5")
    assert two.got(first) == [b"5"]


def test_numbers_that_were_given_up_are_counted_and_not_delivered(two: Reading) -> None:
    client = two.world.client()
    reader = two.read(client)
    two.keep("b1", b"1")
    batch = encode_batch(5, 7, 2, ((None, 0), (b"3", 0), (None, 0)))
    two.add("b1", "publisher", "p", "logs", 2, "count", 4, "t", batch)
    two.counts["b1"] = 4
    two.keep("b1", b"5")
    assert two.got(reader) == [b"1", b"3", b"5"]


def test_nothing_behind_a_mark_is_delivered_before_what_it_names(two: Reading) -> None:
    two.keep("b1", b"1")
    end = two.last("b1")
    two.keep("b1", b"2")
    two.mark("b2", {two.life("b1"): end})
    two.keep("b2", b"3")
    got = two.got(two.read(two.world.client()))
    assert got.index(b"1") < got.index(b"3")
    assert sorted(got) == [b"1", b"2", b"3"]


def test_a_mark_waits_for_a_broker_that_does_not_answer(two: Reading) -> None:
    client = two.world.client()
    reader = two.read(client)
    two.world.silent.add("b1")
    two.keep("b1", b"1")
    two.mark("b2", {two.life("b1"): two.last("b1")})
    two.keep("b2", b"2")
    assert two.got(reader, 0.5) == []
    two.world.speak("b1")
    assert two.got(reader, 0.5) == [b"1", b"2"]


def test_a_mark_that_names_what_retention_has_removed_waits_for_nothing(two: Reading) -> None:
    two.keep("b1", b"1")
    end = two.last("b1")
    two.world.ask("b1", "XTRIM", stream_of(LOG, two.life("b1")), "MINID", "9999999999999-0")
    two.mark("b2", {two.life("b1"): end, "gone@1": "1-1", "to come@1000": "1-1"})
    two.keep("b2", b"2")
    reader = two.read(two.world.client())
    assert two.got(reader, 0.5) == [], "a life that will begin later is waited for"
    two.announce(version=1000)
    assert two.got(reader, 0.5) == [b"2"]


@pytest.mark.parametrize("left", [0, 1], ids=["all of it", "not all of it"])
def test_a_mark_and_what_retention_has_removed_do_not_wait_for_each_other(two: Reading, left: int) -> None:
    """The mark waits until the loss is reported. By then, the broker that has lost it has later logs."""
    client = two.world.client()
    reader = two.read(client)
    two.got(reader, 0.5)
    client.deaf |= {"b1", "b2"}
    two.keep("b1", b"1")
    two.mark("b2", {two.life("b1"): two.last("b1")})
    two.keep("b2", b"2")
    two.world.ask("b1", "XTRIM", stream_of(LOG, two.life("b1")), "MINID", "9999999999999-0")
    two.announce(logs_version=5)
    for _ in range(left):
        two.keep("b1", b"3", version=5)
    client.deaf.clear()
    client.hear()
    assert two.got(reader, 3.0) == [(two.life("b1"), 1), b"2", *[b"3"] * left]


def test_a_new_version_of_the_logs_waits_for_everything_older(two: Reading) -> None:
    client = two.world.client()
    reader = two.read(client)
    two.world.silent.add("b1")
    two.keep("b1", b"old")
    two.keep("b2", b"new", version=3)
    assert two.got(reader, 0.5) == [], "the membership of that version is not known"
    two.announce(logs_version=3)
    assert two.got(reader, 0.5) == [], "and b1 may have something older"
    two.world.speak("b1")
    assert two.got(reader, 1.0) == [b"old", b"new"]


def test_a_broker_that_is_waited_for_is_asked_now_and_then(two: Reading) -> None:
    reader = two.read(two.world.client())
    two.got(reader, 0.2)
    version = two.world.membership.version + 1
    two.world.membership = msgspec.structs.replace(two.world.membership, version=version, logs_version=version)
    two.world.prepare("b1")  # and b2 does not know it yet
    two.keep("b1", b"new", version=version)
    before = reader.parts[two.life("b2")].fetches
    assert two.got(reader, 1.0) == []
    assert 10 < reader.parts[two.life("b2")].fetches - before < 30
    two.world.prepare("b2")
    assert two.got(reader, 0.1) == [b"new"]


def test_a_broker_without_a_lease_is_not_believed(two: Reading) -> None:
    client = two.world.client()
    reader = two.read(client)
    two.world.unleased.add("b1")
    two.world.run(4.0)
    two.keep("b1", b"1")
    assert two.got(reader, 1.0) == []
    two.world.unleased.discard("b1")
    assert two.got(reader, 1.0) == [b"1"]


def test_a_page_that_comes_when_the_lease_is_over_is_not_believed(two: Reading) -> None:
    reader = two.read(two.world.client())
    two.got(reader, 0.5)
    two.world.silent.add("b1")
    two.keep("b1", b"1")
    reader.parts[two.life("b1")].fetch(two.world.now_s, again=True)
    two.world.settle()
    two.world.unleased.add("b1")
    two.world.run(2.4)
    two.world.speak("b1")
    assert two.got(reader, 0.5) == []
    two.world.unleased.discard("b1")
    assert two.got(reader, 1.0) == [b"1"]


@pytest.mark.parametrize("quorum", [1, 2])
def test_a_page_that_comes_when_the_reader_is_closed_is_nothing(two: Reading, quorum: int) -> None:
    two.announce(logs=(msgspec.structs.replace(LOG, quorum=quorum),))
    reader = two.read(two.world.client())
    two.got(reader, 0.5)
    two.world.silent.add("b1")
    two.keep("b1", b"1")
    reader.parts[two.life("b1")].fetch(two.world.now_s, again=True)
    two.world.settle()
    reader.close()
    two.world.speak("b1")
    assert two.got(reader, 1.0) == []


def test_what_retention_removed_is_reported_with_its_number(two: Reading) -> None:
    client = two.world.client()
    reader = two.read(client)
    two.keep("b1", b"1", b"2")
    assert two.got(reader) == [b"1", b"2"]
    two.world.silent.add("b1")
    two.keep("b1", b"3", b"4", b"5")
    two.keep("b1", b"6")
    end = two.last("b1")
    two.keep("b1", b"7")
    two.world.ask("b1", "XTRIM", stream_of(LOG, two.life("b1")), "MINID", end)
    client.machine.links.drop("b1", UsageError("cut"), two.world.now_s)
    two.world.speak("b1")
    assert two.got(reader, 3.0) == [(two.life("b1"), 3), b"6", b"7"]
    client.machine.links.drop("b1", UsageError("cut"), two.world.now_s)
    two.keep("b1", b"8")
    two.world.ask("b1", "XTRIM", stream_of(LOG, two.life("b1")), "MINID", "9999999999999-0")
    assert two.got(reader, 3.0) == [(two.life("b1"), 1)], "all of it"
    two.keep("b1", b"9")
    assert two.got(reader, 1.0) == [b"9"]


def test_a_life_that_ends_is_reported_and_the_next_one_is_read_from_its_beginning(two: Reading) -> None:
    reader = two.read(two.world.client(), start=Start.LATEST)
    two.keep("b1", b"1")
    two.got(reader, 0.2)
    life, brokers = two.life("b1"), two.world.membership.brokers
    version = two.world.membership.version + 1
    again = {**brokers, "b1": msgspec.structs.replace(brokers["b1"], began=version)}
    two.counts["b1"] = 0
    two.announce(brokers=again, former=(FormerLife(life, version),), logs_version=version)
    two.keep("b1", b"2", version=version)
    assert two.got(reader, 1.0) == [(life, None), b"2"]


def test_a_life_that_began_later_is_read_from_its_first_message(two: Reading) -> None:
    client = two.world.client()
    reader = two.read(client, start=Start.LATEST)
    two.got(reader, 0.5)
    client.deaf |= {"b1", "b2"}
    brokers, version = two.world.membership.brokers, two.world.membership.version + 1
    again = {**brokers, "b1": msgspec.structs.replace(brokers["b1"], began=version)}
    two.announce(
        brokers=again, former=(FormerLife(two.life("b1"), version, counts={LOG.key: 0}),), logs_version=version
    )
    two.keep("b1", b"1", version=version)  # before the reader has heard of it
    client.deaf.clear()
    client.hear()
    assert two.got(reader, 1.0)[-1:] == [b"1"]


@pytest.mark.parametrize("group", ["", "g"])
def test_a_life_that_began_and_ended_unseen_is_reported(two: Reading, group: str) -> None:
    reader = two.read(two.world.client(), group, start=Start.LATEST)
    two.got(reader, 1.0)
    first, brokers, version = two.life("b1"), two.world.membership.brokers, two.world.membership.version + 5
    again = {**brokers, "b1": msgspec.structs.replace(brokers["b1"], began=version)}
    ended = (FormerLife(first, version - 4), FormerLife(f"b1@{version - 4}", version))
    two.announce(version=version, brokers=again, former=ended, logs_version=version)
    assert two.got(reader, 1.0) == [(life.life, None) for life in ended]
    two.announce(version=version + 1)
    assert two.got(reader, 1.0) == [], "once"


@pytest.mark.parametrize(("start", "reported"), [(Start.EARLIEST, True), (Start.LATEST, False), (50.0, True)])
def test_a_reader_of_the_past_hears_of_the_lives_that_were_lost(two: Reading, start: Any, reported: bool) -> None:
    two.announce(former=(FormerLife("gone@1", 3),))
    reader = two.read(two.world.client(), start=start)
    assert two.got(reader, 1.0) == ([("gone@1", None)] if reported else [])


@pytest.mark.parametrize(("kept", "reports"), [(1, []), (3, [2])], ids=["all of it was read", "not all of it"])
def test_a_broker_that_left_in_good_order_says_how_much_it_had(two: Reading, kept: int, reports: list[int]) -> None:
    reader = two.read(two.world.client())
    two.keep("b2", b"1")
    assert two.got(reader, 0.2) == [b"1"]
    life, version = two.life("b2"), two.world.membership.version + 1
    left = FormerLife(life, version, counts={LOG.key: kept})
    two.announce(brokers={"b1": two.world.membership.brokers["b1"]}, ring=("b1",), former=(left,), logs_version=version)
    assert two.got(reader, 1.0) == [(life, count) for count in reports]
    assert list(reader.parts) == [two.life("b1")]


@pytest.mark.parametrize("removed", [0, 2], ids=["it kept nothing", "retention has removed it"])
def test_a_broker_that_left_with_nothing_to_read_is_not_reported(two: Reading, removed: int) -> None:
    for _ in range(removed):
        two.keep("b2", b"x")
    two.world.ask("b2", "XTRIM", stream_of(LOG, two.life("b2")), "MINID", "9999999999999-0")
    reader = two.read(two.world.client())
    assert two.got(reader, 0.2) == []
    life, version = two.life("b2"), two.world.membership.version + 1
    left = FormerLife(life, version, counts={LOG.key: removed})
    two.announce(brokers={"b1": two.world.membership.brokers["b1"]}, ring=("b1",), former=(left,), logs_version=version)
    assert two.got(reader, 1.0) == []


@pytest.mark.parametrize(("unread", "reports"), [(0, []), (2, [2])])
def test_a_member_that_never_read_a_part_knows_from_its_group_what_is_lost(
    two: Reading, unread: int, reports: list[int]
) -> None:
    members = [two.read(two.world.client(number), "g") for number in (1, 2)]
    two.keep("b1", b"1", b"2")
    two.keep("b2", b"3", b"4")
    two.world.run(2.0)
    life, version = two.life("b2"), two.world.membership.version + 1
    other = next(member for member in members if not member.parts[life].owned)
    left = FormerLife(life, version, counts={LOG.key: 2}, unread={LOG.key: {"g": unread, "h": 1}})
    two.announce(brokers={"b1": two.world.membership.brokers["b1"]}, ring=("b1",), former=(left,), logs_version=version)
    assert [lost for lost in two.got(other, 1.0) if isinstance(lost, tuple)] == [(life, count) for count in reports]


def test_a_dropped_log_ends_its_readers(two: Reading) -> None:
    client = two.world.client()
    reader = two.read(client)
    two.announce(logs=(), logs_version=3)
    assert reader.closed
    assert "was dropped" in str(reader.failure)
    assert two.world.channels("b1").isdisjoint({stream_of(LOG, two.life("b1"))})


@pytest.mark.parametrize(
    "fields",
    [
        ("a", "b"),
        ("publisher", "p", "logs", "x", "count", "1", "t", "b"),
        ("publisher", "p", "logs", "2", "count", "-1", "t", "b"),
        ("publisher", "p", "logs", "2", "count", "1", "t", "not a batch"),
        ("publisher", "p", "logs", "2", "count", "1", "t", encode_batch(5, 7, 1, ((b"x", 0),))[:-1]),
        ("publisher", "p", "logs", "2", "count", "1", "t"),
        ("publisher", "p", "logs", "9" * 5000, "count", "1", "t", "b"),
        ("publisher", "p", "logs", "2", "count", "9" * 5000, "t", "b"),
        ("begin", "{}", "logs", "9" * 5000, "count", "1"),
    ],
)
def test_what_nearcast_has_not_written_is_reported_and_passed(two: Reading, fields: tuple[Any, ...]) -> None:
    reader = two.read(two.world.client())
    if len(fields) % 2:
        fields = (*fields, b"")
    two.add("b1", *fields)
    two.keep("b1", b"1")
    got = two.got(reader, 0.5)
    assert got[-1] == b"1"
    assert got[0] == (two.life("b1"), None)


@pytest.mark.parametrize(
    "mark",
    [
        b"",
        b"[]",
        b'{"b1@0": 5}',
        b'{"b1@0": "x"}',
        b'{"": ""}',
        b'{"a": "1-1"}',
        b'{"\xff": "1-1"}',
        '{"a@²": "1-1"}'.encode(),
        b'{"a@%s": "1-1"}' % (b"9" * 5000),
    ],
)
def test_a_mark_that_is_none_holds_nothing_up(two: Reading, mark: bytes) -> None:
    reader = two.read(two.world.client())
    two.add("b2", "begin", mark, "logs", 2, "count", 0)
    two.keep("b2", b"1")
    assert two.got(reader, 2.0) == [b"1"]


# --- groups


def test_a_group_continues_behind_what_was_committed(two: Reading) -> None:
    for number in range(6):
        two.keep("b1" if number % 2 else "b2", b"%d" % number)
    first = two.world.client(1)
    reader = two.read(first, "g")
    two.world.run(1.0)
    taken = [reader.ready.popleft() for _ in range(4)]
    assert all(reader.taken(delivery) for delivery in taken[:3])
    reader.commit("commit", two.world.now_s)
    two.world.settle()
    assert Done("commit") in first.effects
    two.world.wired.remove(first)
    for session in first.sessions.values():
        session.close()
    second = two.read(two.world.client(2), "g")
    seen = {delivery.event.payload for delivery in taken[:3] if isinstance(delivery.event, Message)}
    assert sorted([*two.got(second, 5.0), *seen]) == [b"%d" % number for number in range(6)]


def test_members_share_the_parts_and_give_away_what_is_not_theirs(two: Reading) -> None:
    one, other = (two.world.client(number) for number in (1, 2))
    first = two.read(one, "g")
    two.world.run(1.0)
    assert all(part.owned for part in first.parts.values())
    second = two.read(other, "g")
    two.world.run(3.0)
    owned = [{life for life, part in reader.parts.items() if part.owned} for reader in (first, second)]
    assert sorted(map(len, owned)) == [1, 1]
    assert owned[0] != owned[1]
    for broker in ("b1", "b2"):
        two.keep(broker, broker.encode())
    assert sorted(two.got(first, 0.5) + two.got(second)) == [b"b1", b"b2"]


def test_a_commit_of_what_another_member_reads_by_now_fails(two: Reading) -> None:
    one = two.world.client(1)
    first = two.read(one, "g")
    two.keep("b1", b"1")
    assert two.got(first, 1.0) == [b"1"]
    for broker in ("b1", "b2"):
        two.world.ask(broker, "HSET", cursors_of(LOG, two.life(broker)), "g:g", b"9 somebody 1 0 2 0 0-0 0 0")
    first.commit("commit", two.world.now_s)
    two.world.run(1.0)
    (failed,) = [effect for effect in one.effects if isinstance(effect, Failed)]
    assert "another member of the group reads there now" in str(failed.error)


def test_a_commit_after_a_part_was_lost_fails_once(two: Reading) -> None:
    one = two.world.client(1)
    first = two.read(one, "g")
    two.keep("b1", b"1")
    assert two.got(first, 1.0) == [b"1"]
    two.read(two.world.client(2))  # it is connected, and owns what we give it
    cursor = f"9 {2:016x} 1 0 2 0 0-0 0 0"
    two.world.ask("b1", "HSET", cursors_of(LOG, two.life("b1")), "g:g", cursor)
    two.world.run(1.0)
    assert not first.parts[two.life("b1")].owned
    first.commit("late", two.world.now_s)
    first.commit("later", two.world.now_s)
    two.world.settle()
    (failed,) = [effect for effect in one.effects if isinstance(effect, Failed)]
    assert failed.token == "late"
    assert Done("later") in one.effects, "what was taken since then is none"


def test_a_cursor_that_has_vanished_makes_no_commit_fail_if_nothing_was_taken(two: Reading) -> None:
    one = two.world.client(1)
    reader = two.read(one, "g")
    two.keep("b1", b"1")
    assert two.got(reader, 1.0) == [b"1"]
    two.world.ask("b2", "HDEL", cursors_of(LOG, two.life("b2")), "g:g")
    two.world.run(1.0)
    reader.commit("commit", two.world.now_s)
    two.world.run(0.5)
    assert Done("commit") in one.effects
    two.world.ask("b1", "HDEL", cursors_of(LOG, two.life("b1")), "g:g")
    two.world.run(1.0)
    reader.commit("again", two.world.now_s)
    two.world.settle()
    assert any(isinstance(effect, Failed) for effect in one.effects), "what was committed is read again"


def test_a_commit_does_not_wait_for_what_the_program_has_not_taken(two: Reading) -> None:
    one = two.world.client(1)
    reader = two.read(one, "g")
    two.keep("b1", b"1")
    two.keep("b1", b"2")
    two.mark("b2", {two.life("b1"): two.last("b1")})
    two.world.run(1.0)
    assert not reader.parts[two.life("b2")].lines, "the mark is passed: both messages wait for the program"
    assert reader.taken(reader.ready.popleft())
    reader.commit("commit", two.world.now_s)
    two.world.run(0.1)
    assert Done("commit") in one.effects


def test_commits_that_wait_for_answers_have_a_limit(two: Reading) -> None:
    one = two.world.client(1)
    reader = two.read(one, "g")
    two.keep("b1", b"1")
    assert two.got(reader, 1.0) == [b"1"]
    two.world.silent.add("b1")
    for number in range(COMMITS_MAX):
        reader.commit(number, two.world.now_s)
    with pytest.raises(LimitReached, match="1000 commits of the group 'g' wait for answers: await earlier ones"):
        reader.commit("one too many", two.world.now_s)
    two.world.speak("b1")
    assert all(Done(number) in one.effects for number in range(COMMITS_MAX))
    reader.commit("again", two.world.now_s)
    assert Done("again") in one.machine.effects


def test_marks_that_a_cursor_has_not_passed_have_a_limit(two: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advance, "SILENT_MAX", 2)
    reader = two.read(two.world.client(1), "g")
    for number in range(4):
        two.keep("b2", b"a%d" % number)
        two.mark("b1", {two.life("b2"): two.last("b2")})
        two.keep("b1", b"b%d" % number)
    assert sorted(two.got(reader, 1.0)) == [b"a0", b"a1", b"a2", b"a3", b"b0", b"b1"]
    reader.commit("commit", two.world.now_s)
    assert two.got(reader, 0.1) == [b"b2", b"b3"], "without a tick"


def test_a_cursor_never_goes_back(two: Reading) -> None:
    reader = two.read(two.world.client(1), "g")
    two.keep("b1", b"1")
    two.mark("b1", {"gone@1": "1-1"})
    assert two.got(reader, 1.0) == [b"1"]
    reader.commit("commit", two.world.now_s)
    two.world.run(1.5)
    before = two.cursor("b1", "g")
    assert before.position.entry == reader.parts[two.life("b1")].delivered, "it has passed the mark too"
    reader.commit("again", two.world.now_s)
    two.world.run(1.5)
    assert two.cursor("b1", "g").position == before.position


def test_a_member_that_is_stuck_loses_its_parts(two: Reading) -> None:
    one = two.world.client(1)
    two.keep("b1", b"1")
    first = two.read(one, "g")
    assert two.got(first, 1.0) == [b"1"]
    two.world.wired.remove(one)  # it holds its connections, and does nothing
    second = two.read(two.world.client(2), "g")
    assert two.got(second, 8.0) == [b"1"]


def test_what_a_member_loses_before_it_was_delivered_is_waited_for_again(two: Reading) -> None:
    other = two.world.client(2)
    two.read(other)  # it is connected, and owns what we give it
    reader = two.read(two.world.client(1), "g")
    two.got(reader, 1.0)
    two.mark("b1", {"to come@1000": "1-1"})
    two.keep("b1", b"old")
    two.announce(logs_version=3)
    two.keep("b2", b"new", version=3)
    assert two.got(reader, 1.0) == []
    key, position = cursors_of(LOG, two.life("b1")), two.cursor("b1", "g").position
    cursor = f"9 {2:016x} 1 0 2 0 {format_id(position.entry)} 0 {position.count}"
    two.world.ask("b1", "HSET", key, "g:g", cursor)
    assert two.got(reader, 1.5) == [], "nobody has read b1 yet"


def test_a_mark_waits_for_what_a_member_loses_before_it_was_delivered(two: Reading) -> None:
    other = two.world.client(2)
    two.read(other)
    reader = two.read(two.world.client(1), "g")
    two.got(reader, 1.0)
    two.mark("b1", {"to come@1000": "1-1"})
    two.keep("b1", b"1")
    two.mark("b2", {two.life("b1"): two.last("b1")})
    two.keep("b2", b"2")
    assert two.got(reader, 1.5) == []
    key, position = cursors_of(LOG, two.life("b1")), two.cursor("b1", "g").position
    cursor = f"9 {2:016x} 1 0 2 0 {format_id(position.entry)} 0 {position.count}"
    two.world.ask("b1", "HSET", key, "g:g", cursor)
    assert two.got(reader, 1.5) == [], "nobody has read b1 yet"


def test_what_was_delivered_and_not_committed_still_comes_before_later_versions(two: Reading) -> None:
    first = two.world.client(1)
    reader = two.read(first, "g")
    two.keep("b2", b"old")
    two.announce(logs_version=3)
    two.keep("b1", b"new", version=3)
    assert two.got(reader, 2.0) == [b"old", b"new"]
    two.world.wired.remove(first)
    for session in first.sessions.values():
        session.close()
    assert two.got(two.read(two.world.client(2), "g"), 5.0) == [b"old", b"new"]


def test_a_client_reads_a_log_once_in_a_group(two: Reading) -> None:
    client = two.world.client(1)
    reader = two.read(client, "g")
    with pytest.raises(UsageError, match="this client reads the log 'all' in the group 'g' already"):
        two.read(client, "g")
    two.read(client, "h")
    reader.close()
    two.read(client, "g")


def test_a_group_begins_at_a_time(two: Reading) -> None:
    two.keep("b1", b"1")
    two.world.now_s += 10
    start = two.world.now_s
    two.keep("b1", b"2")
    assert two.got(two.read(two.world.client(1), "g", start=start), 1.0) == [b"2"]


@pytest.mark.parametrize("beat", [b"x", b"", b"9" * 5000, b"1.5"])
def test_members_that_somebody_else_has_written_are_none(two: Reading, beat: bytes) -> None:
    stranger = two.world.servers["b1"].connect(lambda _: None)
    for member in (b"\xff", b"somebody"):
        stranger.feed(command("HELLO", 3) + command("SUBSCRIBE", INBOX + member))
        two.world.ask("b1", "HSET", cursors_of(LOG, two.life("b1")), b"m:g", member + b" " + beat)
    reader = two.read(two.world.client(1), "g")
    two.keep("b1", b"1")
    assert two.got(reader, 8.0) == [b"1"]


@pytest.mark.parametrize("group", ["", "g"])
def test_the_last_entry_may_be_anything(two: Reading, group: str) -> None:
    two.add("b1", "publisher", "p", "logs", "9" * 5000, "count", "9" * 5000)
    reader = two.read(two.world.client(1), group, start=Start.LATEST)
    two.got(reader, 1.0)
    two.keep("b1", b"1")
    assert b"1" in two.got(reader, 1.0)


def test_a_cursor_does_not_pass_a_mark_before_what_it_names_is_committed(two: Reading) -> None:
    first = two.world.client(1)
    reader = two.read(first, "g")
    two.keep("b2", b"1")
    two.mark("b1", {two.life("b2"): two.last("b2")})
    two.keep("b1", b"2")
    assert two.got(reader, 2.0) == [b"1", b"2"]
    two.world.wired.remove(first)
    for session in first.sessions.values():
        session.close()
    assert two.got(two.read(two.world.client(2), "g"), 5.0) == [b"1", b"2"], "nothing was committed"


def test_what_is_behind_a_mark_is_committed_after_what_it_names(two: Reading) -> None:
    first = two.world.client(1)
    reader = two.read(first, "g")
    two.keep("b2", b"1")
    two.mark("b1", {two.life("b2"): two.last("b2")})
    two.keep("b1", b"2")
    assert two.got(reader, 1.0) == [b"1", b"2"]
    two.world.silent.add("b2")
    reader.commit("commit", two.world.now_s)
    two.world.settle()
    assert two.cursor("b1", "g").position.count == 0
    assert Done("commit") not in first.effects
    two.world.speak("b2")
    assert Done("commit") in first.effects, "without a tick"
    assert two.cursor("b1", "g").position.count == 1


def test_a_report_of_a_loss_is_given_again_if_nobody_has_committed_it(two: Reading) -> None:
    first = two.world.client(1)
    reader = two.read(first, "g")
    two.keep("b1", b"0")
    assert two.got(reader, 1.0) == [b"0"]
    reader.commit("commit", two.world.now_s)
    two.world.silent.add("b1")
    two.keep("b1", b"1", b"2")
    two.world.ask("b1", "XTRIM", stream_of(LOG, two.life("b1")), "MINID", "9999999999999-0")
    two.mark("b1", {"gone@1": "1-1"})
    two.world.speak("b1")
    two.world.run(1.5)
    assert reader.ready, "the report waits for the program, and the mark stands behind it"
    two.world.wired.remove(first)
    for session in first.sessions.values():
        session.close()
    client = two.world.client(2)
    second = two.read(client, "g")
    assert two.got(second, 5.0) == [(two.life("b1"), 2)]
    second.commit("commit", two.world.now_s)
    two.world.settle()
    assert Done("commit") in client.effects
    assert two.cursor("b1", "g").position.count == 3


@pytest.mark.parametrize("kept", [0, 1])
def test_what_retention_removes_before_the_first_commit_is_reported_by_the_next_member(two: Reading, kept: int) -> None:
    first = two.world.client(1)
    for number in range(kept):
        two.keep("b1", b"%d" % number)
    reader = two.read(first, "g")
    two.world.run(2.0)
    assert len(reader.ready) == kept
    two.world.wired.remove(first)
    for session in first.sessions.values():
        session.close()
    two.keep("b1", b"a", b"b")
    two.world.ask("b1", "XTRIM", stream_of(LOG, two.life("b1")), "MINID", "9999999999999-0")
    assert two.got(two.read(two.world.client(2), "g"), 5.0) == [(two.life("b1"), kept + 2)]
