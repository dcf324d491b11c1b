"""Commands as bytes."""

from __future__ import annotations

import pytest
from hiredis import Reader
from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.wire.link import command


@pytest.mark.parametrize(
    ("parts", "data"),
    [
        (("PING",), b"*1\r\n$4\r\nPING\r\n"),
        (("GET", b"a\r\nb"), b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n"),
        (("HELLO", 3), b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n"),
        (("ECHO", ""), b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n"),
        (("ECHO", "é"), b"*2\r\n$4\r\nECHO\r\n$2\r\n\xc3\xa9\r\n"),
        (("ECHO", "\udcff"), b"*2\r\n$4\r\nECHO\r\n$1\r\n\xff\r\n"),
    ],
)
def test_a_command_is_an_array_of_bulk_strings(parts: tuple[str | bytes | int, ...], data: bytes) -> None:
    assert command(*parts) == data


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=6))
def test_any_bytes_can_be_sent(parts: list[bytes]) -> None:
    reader = Reader()
    reader.feed(command(*parts))
    assert reader.gets() == parts
