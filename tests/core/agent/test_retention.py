"""Retention, on a simulated server: what is removed, and when."""

from __future__ import annotations

import msgspec
import pytest

from nearcast.core.agent.retention import LOOK_S, SWEEP_S, Retention, count_unread
from nearcast.core.model.cursors import Cursor, Position, encode_state
from nearcast.core.model.logs import Log, PartLoad, bytes_field, cursors_of, last_numbers, stream_of, totals_of
from nearcast.core.model.membership import BrokerInfo, Membership
from nearcast.core.model.settings import DEFAULT_TIMING
from nearcast.core.wire.backend import OnKeys
from nearcast.core.wire.parts import PartLink
from nearcast.core.wire.valkey import ValkeyLink
from nearcast.sim.valkey.server import SimServer

LIFE = "b1@4"
LOG = Log("orders", 3, ("order.*",), 100.0, 1 << 20)
MEMBERSHIP = Membership(version=4, term=1, brokers={"b1": BrokerInfo("redis://b1", began=4)}, logs=(LOG,))
STREAM = stream_of(LOG, LIFE)


class Place:
    """One agent's retention, and its server."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.server = SimServer("b1", lambda: 1_000.0 + self.now_s, run_id="run")
        self._said: list[bytes] = []
        self._session = self.server.connect(self._said.append)
        self.link = ValkeyLink("b1")
        self.link.send(None, "HELLO", 3)
        self.retention = Retention("b1", DEFAULT_TIMING)
        self.count = 0

    def keep(self, messages: int, size: int = 100, stream: bytes = STREAM) -> None:
        """Entries of one message each."""
        for _ in range(messages):
            self.count += 1
            fields = ("publisher", "p", "logs", 4, "count", self.count, "order.1", "x" * size)
            self.link.send(None, "XADD", stream, "*", *fields)
            self.link.send(None, "HSET", totals_of(LIFE), stream, self.count, bytes_field(stream), self.count * size)
        self.settle()

    def settle(self) -> None:
        while self.link.waiting or self._said:
            self._session.feed(self.link.take())
            data, self._said[:] = b"".join(self._said), []
            self.link.feed(data, self.now_s)

    def run(self, for_s: float, membership: Membership = MEMBERSHIP) -> None:
        """Ticks, every second."""
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s += LOOK_S
            self.retention.membership = membership
            self.retention.tick(self.link, self.now_s)
            self.settle()

    def left(self, stream: bytes = STREAM) -> int:
        found = self.server.keys.stream(stream)
        return len(found.records) if found is not None else -1

    def note(self, group: str, entries: int, *, holds: bool) -> None:
        """A group has read this many entries."""
        stream = self.server.keys.stream(STREAM)
        assert stream is not None
        place = Position(stream.records[entries - 1][0], 0, entries)
        state = encode_state(Cursor(position=place, holds=holds))
        self.link.send(None, "HSET", cursors_of(LOG, LIFE), f"g:{group}", b"1 me 1 " + state)
        self.settle()


@pytest.fixture
def place() -> Place:
    return Place()


def test_what_is_older_than_its_time_is_removed_and_nothing_else(place: Place) -> None:
    place.run(1)
    place.keep(10)
    place.run(50)
    place.keep(5)
    place.run(49)
    assert place.left() == 15, "the first are 99 seconds old"
    place.run(4)
    assert place.left() == 5
    place.run(50)
    assert place.left() == 0


def test_what_is_too_much_is_removed_before_its_time(place: Place) -> None:
    for _ in range(30):
        place.run(1)
        place.keep(100, 1000)
    place.run(2)
    assert place.left() * 1000 <= LOG.retain_bytes + 100 * 1000 * 2
    assert place.left() * 1000 > LOG.retain_bytes - 100 * 1000 * 2


def test_a_group_that_holds_keeps_what_it_has_not_read_but_not_too_much(place: Place) -> None:
    place.run(1)
    place.keep(10)
    place.note("spool", 4, holds=True)
    place.note("other", 1, holds=False)
    place.run(110)
    assert place.left() == 6, "what was read is removed, the rest is held"
    for _ in range(30):
        place.keep(100, 1000)
        place.run(1)
    assert place.left() * 1000 <= LOG.retain_bytes + 100 * 1000 * 2
    stream = place.server.keys.stream(STREAM)
    assert stream is not None
    assert int(stream.records[0][1][5]) > 10, "too much is too much"


def test_a_clock_that_is_set_back_removes_nothing_early(place: Place) -> None:
    place.run(1)
    place.keep(3)
    place.run(20)
    stream = place.server.keys.stream(STREAM)
    assert stream is not None
    last = stream.last_id
    place.server.keys._clock = lambda: 1.0  # the server's wall clock
    place.keep(3)
    assert stream.last_id == (last[0], last[1] + 3), "ids do not go back with it"
    place.run(70)
    assert place.left() == 6
    place.run(40)
    assert place.left() == 0


def test_a_new_agent_counts_from_its_own_start(place: Place) -> None:
    place.run(1)
    place.keep(3)
    place.run(90)
    place.retention = Retention("b1", DEFAULT_TIMING)
    place.run(90)
    assert place.left() == 3
    place.run(20)
    assert place.left() == 0


def test_parts_of_dropped_logs_go_and_those_of_earlier_lives_expire(place: Place) -> None:
    dropped = stream_of(msgspec.structs.replace(LOG, created=2), LIFE)
    earlier = stream_of(LOG, "b1@1")
    for stream in (dropped, earlier):
        place.keep(2, stream=stream)
    place.link.send(None, "HSET", totals_of("b1@1"), "s", 1)
    place.link.send(None, "HSET", totals_of("b1@2"), "s", 1)
    place.link.send(None, "HSET", cursors_of(LOG, "b1@2"), "g:x", "y")
    place.run(2)
    assert place.left(dropped) == -1
    assert place.left(earlier) == 2
    assert totals_of("b1@1") in place.server.keys, "it belongs to a part that is still there"
    assert totals_of("b1@2") not in place.server.keys
    assert cursors_of(LOG, "b1@2") not in place.server.keys
    place.run(100 + 2 * SWEEP_S)
    assert place.left(earlier) == -1
    assert totals_of("b1@1") not in place.server.keys


def test_last_numbers_are_forgotten_when_they_were_not_used_for_two_rounds(place: Place) -> None:
    lately, older = last_numbers(LIFE)
    place.run(1)
    place.link.send(None, "HSET", lately, "t:p", 5)
    place.run(2 * DEFAULT_TIMING.idle_s + 1)
    assert lately not in place.server.keys
    assert place.server.keys.fields(older) == {b"t:p": b"5"}
    place.link.send(None, "HSET", lately, "u:p", 6)
    place.run(2 * DEFAULT_TIMING.idle_s + 1)
    assert place.server.keys.fields(older) == {b"u:p": b"6"}


def test_what_groups_have_not_read_is_counted(place: Place) -> None:
    place.keep(10)
    place.note("billing", 4, holds=False)
    place.note("done", 10, holds=False)
    found: list[dict[str, PartLoad]] = []
    other = msgspec.structs.replace(LOG, name="empty")
    count_unread(place.link, (LOG, other), LIFE, found.append)
    place.settle()
    assert found == [{LOG.key: PartLoad(10, 10, 1000, {"billing": 6, "done": 0}), other.key: PartLoad(0, 0, 0)}]
    assert [load.is_read for load in found[0].values()] == [False, True]


def test_what_a_new_membership_brings_is_not_swept_by_a_search_that_began_before(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[tuple[bytes, OnKeys]] = []
    monkeypatch.setattr(PartLink, "find_keys", lambda self, prefix, then: searches.append((prefix, then)))
    place.run(1)
    created = msgspec.structs.replace(LOG, name="new", created=5)
    brokers = {"b1": BrokerInfo("redis://b1", began=5)}
    later = msgspec.structs.replace(MEMBERSHIP, version=5, logs=(LOG, created), brokers=brokers)
    ((_, found),) = searches
    found([])  # the streams; now for what stands beside them
    place.retention.membership = later
    stream, numbers = stream_of(created, "b1@5"), last_numbers("b1@5")[0]
    place.keep(3, stream=stream)
    place.link.send(None, "HSET", numbers, "t:p", 5)
    for prefix, then in searches:
        then([key for key in (stream, numbers) if key.startswith(prefix)])
    place.settle()
    assert place.left(stream) == 3
    assert numbers in place.server.keys
    searches.clear()
    place.run(1, later)
    assert searches, "it is repeated soon"


def test_parts_of_the_last_log_go_when_it_is_dropped(place: Place) -> None:
    place.keep(3)
    place.run(2)
    place.note("g", 1, holds=True)
    without = msgspec.structs.replace(MEMBERSHIP, version=5, logs=(), logs_version=5)
    place.run(SWEEP_S + 2, without)
    assert place.left() == -1
    assert not any(key in place.server.keys for key in (totals_of(LIFE), cursors_of(LOG, LIFE)))


@pytest.mark.parametrize("number", [b"9" * 5000, b"1" + b"0" * 30, b"-5", b"x"])
def test_what_somebody_else_has_written_does_not_stop_the_agent(place: Place, number: bytes) -> None:
    place.keep(3)
    place.link.send(None, "HSET", totals_of(LIFE), STREAM, number, bytes_field(STREAM), number)
    for group in (b"g:\xff", b"g:x"):
        for cursor in (b"x", b"1 - 1 1 1 1 1-1 0 " + number, b"\xff"):
            place.link.send(None, "HSET", cursors_of(LOG, LIFE), group, cursor)
            place.run(2)
            found: list[dict[str, PartLoad]] = []
            count_unread(place.link, (LOG,), LIFE, found.append)
            place.settle()
            assert msgspec.json.encode(found)
