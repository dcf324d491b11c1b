"""Parts of logs on real servers: how far they go, and what lies between two positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nearcast.core.model.logs import Log, totals_of
from nearcast.core.wire.batches import decode_batch, encode_batch
from nearcast.pipeline.sources import parts as parts_module
from nearcast.pipeline.sources.parts import (
    Entry,
    Extent,
    Part,
    entries,
    extents,
    journalled_membership,
    log_of,
    parts_of,
)
from nearcast.pipeline.sources.server import RespConnection

if TYPE_CHECKING:
    from conftest import Brokers

pytestmark = pytest.mark.live


def part_at(brokers: Brokers, log: Log, broker: str) -> Part:
    with RespConnection(brokers.store_url) as store:
        membership = journalled_membership(store)
    assert membership is not None
    found = parts_of(membership, {log.key})
    assert len(found) == 2
    assert all(log_of(stream) == log.key for stream in found)
    return next(part for part in found.values() if part.life.startswith(f"{broker}@"))


def messages(found: list[Entry]) -> list[bytes]:
    batches = [batch for entry in found for batch in entry.batches[1::2]]
    return [payload for batch in batches for _, _, payload in decode_batch(batch) or []]


def read(server: RespConnection, part: Part, after: int, upto: int) -> list[bytes]:
    """The messages of all entries that have some of the range; entries are read whole."""
    return [payload for page in entries(server, part.stream, after, upto) for payload in messages(page)]


def test_a_position_is_a_number_of_messages(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "PAGE_MESSAGES", 7)
    log = brokers.create_log("numbered", "numbered.*")
    brokers.move("numbered.a", "b2")
    sent = [b"%03d" % number for number in range(100)]
    brokers.publish("numbered.a", *sent)  # awaited one by one: one message in each entry
    here, there = part_at(brokers, log, "b2"), part_at(brokers, log, "b1")
    with brokers.server("b2") as server:
        assert extents(server, [here]) == [Extent(0, 100)]
        for after, upto in ((0, 100), (0, 1), (99, 100), (31, 74), (50, 51)):
            assert read(server, here, after, upto) == sent[after:upto]
        server.ask("XTRIM", here.stream, "MAXLEN", 40)
        assert extents(server, [here]) == [Extent(60, 100)]
        assert read(server, here, 20, 63) == sent[60:63]
        server.ask("XTRIM", here.stream, "MAXLEN", 0)
        assert extents(server, [here]) == [Extent(100, 100)]
        assert read(server, here, 20, 100) == []
    with brokers.server("b1") as server:
        assert extents(server, [there]) == [Extent(0, 0)]


def test_entries_that_publishers_did_not_make_are_passed_over(brokers: Brokers) -> None:
    log = brokers.create_log("forged", "forged.*")
    brokers.move("forged.a", "b1")
    brokers.publish("forged.a", b"1")
    part = part_at(brokers, log, "b1")
    with brokers.server("b1") as server:
        for forged in (
            ("a", "b"),
            ("a", "b", "c", "d", "count", "x"),
            ("publisher", "1", "logs", "1", "count", "1", "t", ""),
        ):
            server.ask("XADD", part.stream, "*", *forged)
        brokers.publish("forged.a", b"2")
        assert read(server, part, 0, 2) == [b"1", b"2"]
        server.ask("XTRIM", part.stream, "MAXLEN", 4)
        assert extents(server, [part]) == [Extent(2, 2)]


def test_times_beyond_all_numbers_do_not_keep_the_server_busy(valkey: RespConnection) -> None:
    """Whoever may publish to a log can append with any id: a search between such times must end."""
    fields = ("publisher", "p", "logs", 1, "count")
    far = 10**19 // 2048 * 2048  # here a double has no place for anything between these and the next
    for time_ms, count in ((1000, 1), (far, 2), (far + 2048, 900), ((1 << 64) - 1, 901)):
        valkey.ask("XADD", "far", f"{time_ms}-1", *fields, count)
    for after, found in ((0, [1, 2, 900]), (5, [900]), (900, [901])):
        upto = found[-1]
        assert [entry.position for page in entries(valkey, "far", after, upto) for entry in page] == found


@pytest.mark.parametrize("total", ["none", "1e300", "-5", "nan", "inf"])
def test_a_total_that_is_none_does_not_keep_others_from_being_read(valkey: RespConnection, total: str) -> None:
    parts = [Part("bad", "b1@1", ""), Part("good", "b1@1", "")]
    valkey.ask("HSET", totals_of("b1@1"), "bad", total, "good", 7)
    bad, good = extents(valkey, parts)
    assert (good, 0 <= bad.first <= bad.last <= 1 << 53) == (Extent(7, 7), True)


def test_large_messages_come_in_small_pages(valkey: RespConnection) -> None:
    for count in range(1, 41):
        batch = encode_batch(1, 7, count, [(bytes(10**6), 0)])
        valkey.ask("XADD", "large", "*", "publisher", "p", "logs", 1, "count", count, "topic", batch)
    pages = list(entries(valkey, "large", 0, 40))
    assert [entry.position for page in pages for entry in page] == list(range(1, 41))
    assert max(len(page) for page in pages) <= 10


def test_many_entries_of_one_moment_are_found_by_position(brokers: Brokers) -> None:
    """All with one time: then the time does not tell where a position is."""
    log = brokers.create_log("moment", "moment.*")
    part = part_at(brokers, log, "b1")
    with brokers.server("b1") as server:
        batch = b"\0" * 24 + (1).to_bytes(8, "big")
        for number in range(1, 301):
            fields = ("publisher", "00", "logs", "1", "count", number, "t", batch)
            server.ask("XADD", part.stream, f"5000-{number}", *fields)
        (page,) = [page for page in entries(server, part.stream, 249, 250) if page]
        assert [entry.position for entry in page] == [250]
        assert page[0].at_us == 5_000_250


def test_an_unknown_cluster_has_no_membership(valkey: RespConnection) -> None:
    assert journalled_membership(valkey) is None
