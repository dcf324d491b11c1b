"""Batches: there and back, and what is not one is told apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.wire.batches import ITEM, decode_batch, encode_batch
from nearcast.core.wire.frames import BATCH, DATA, FIRST, HEADER, HEADER_BYTES, SKIP, USER_DATA, UserPayload, speaker_of

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
messages = st.lists(st.tuples(st.none() | st.binary(max_size=100), u64), min_size=1, max_size=20)


@given(u32, u64, u64, messages)
def test_a_batch_is_what_went_into_it(
    epoch: int, publisher: int, first: int, said: list[tuple[bytes | None, int]]
) -> None:
    batch = encode_batch(epoch, publisher, first, said)
    assert HEADER.unpack_from(batch) == (BATCH, epoch, publisher, first, len(said))
    assert speaker_of(batch) == (publisher, epoch)
    assert decode_batch(batch) == [
        (DATA if payload is not None else SKIP, time_ns, payload or b"") for payload, time_ns in said
    ]


def test_every_kind_of_message_keeps_its_kind() -> None:
    said = [(b"a", 1), (None, 2), (UserPayload.of("ann", b"b"), 3)]
    items = decode_batch(encode_batch(5, 7, 41, said, begins=True))
    assert items is not None
    assert [word for word, _, _ in items] == [FIRST, SKIP, USER_DATA]


@given(st.binary(max_size=300))
def test_no_bytes_behind_a_header_raise(rest: bytes) -> None:
    batch = HEADER.pack(BATCH, 1, 2, 3, 1) + rest
    items = decode_batch(batch)
    assert items is None or sum(ITEM.size + len(body) for _, _, body in items) == len(rest)


@given(messages, st.data())
def test_a_batch_that_was_cut_or_has_more_is_none(said: list[tuple[bytes | None, int]], data: st.DataObject) -> None:
    batch = encode_batch(1, 2, 3, said)
    cut = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
    assert decode_batch(batch[:cut]) is None
    assert decode_batch(batch + b"x") is None


def test_a_count_without_messages_costs_nothing() -> None:
    assert decode_batch(HEADER.pack(BATCH, 1, 2, 3, 2**64 - 1)) is None
    assert decode_batch(HEADER.pack(BATCH, 1, 2, 3, 0)) is None
