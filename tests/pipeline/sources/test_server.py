"""The blocking connection and what the source asks over it, against a real server."""

from __future__ import annotations

import pytest

from nearcast.errors import ClusterError, ConnectFailed
from nearcast.pipeline.sources.offsets import View
from nearcast.pipeline.sources.server import PAGE_RECORDS, RespConnection, StreamServer

pytestmark = pytest.mark.live


def fill(valkey: RespConnection, stream: str, ids: range) -> None:
    valkey.ask_all([("XADD", stream, f"{i}-0", "n", str(i)) for i in ids])


def test_several_commands_are_answered_in_order(valkey: RespConnection) -> None:
    assert valkey.ask_all([("SET", "k", b"\x00\xff"), ("GET", "k"), ("GET", "none")]) == [b"OK", b"\x00\xff", None]


def test_an_error_of_the_server_is_raised_with_the_command(valkey: RespConnection) -> None:
    with pytest.raises(ClusterError, match=r"refused INCR: .*not an integer"):
        valkey.ask_all([("SET", "k", "x"), ("INCR", "k")])


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(ConnectFailed, match=r"redis://127\.0\.0\.1:1: "):
        RespConnection("redis://127.0.0.1:1")


def test_names_are_those_given_and_those_found(valkey: RespConnection) -> None:
    for stream in ("t.a", "t.b", "tx", "t*", "[t]"):
        fill(valkey, stream, range(1, 2))
    valkey.ask("SET", "t.no-stream", "1")
    server = StreamServer(valkey)
    assert server.names(["t.*", "later"]) == ["later", "t.a", "t.b"]
    assert server.names(["t**"]) == ["t*"]
    assert server.names(["[*"]) == ["[t]"]


def test_a_view_tells_what_was_added_and_what_is_left(valkey: RespConnection) -> None:
    fill(valkey, "s", range(1, 11))
    valkey.ask("XTRIM", "s", "MAXLEN", 4)
    fill(valkey, "empty", range(1, 3))
    valkey.ask("XTRIM", "empty", "MAXLEN", 0)
    assert StreamServer(valkey).views(["s", "none", "empty"]) == {
        "s": View(length=4, added=10, first_id="7-0", last_id="10-0"),
        "none": None,
        "empty": View(length=0, added=2, first_id="0-0", last_id="2-0"),
    }


def test_a_key_that_is_no_stream_is_an_error(valkey: RespConnection) -> None:
    valkey.ask("SET", "k", "1")
    with pytest.raises(ClusterError, match="WRONGTYPE"):
        StreamServer(valkey).views(["k"])


def test_steps_and_pages_count_the_same_records(valkey: RespConnection) -> None:
    count = 2 * PAGE_RECORDS + 500
    fill(valkey, "s", range(1, count + 1))
    server = StreamServer(valkey)
    assert server.step("s", "0-0", 3) == ("3-0", 3)
    assert server.step("s", "3-0", PAGE_RECORDS + 7) == (f"{PAGE_RECORDS + 10}-0", PAGE_RECORDS + 7)
    assert server.step("s", "0-0", count * 2) == (f"{count}-0", count)
    ids = [record_id for page in server.pages("s", "3-0", f"{2 * PAGE_RECORDS + 3}-0") for record_id, _ in page]
    assert ids == [b"%d-0" % i for i in range(4, 2 * PAGE_RECORDS + 4)]
