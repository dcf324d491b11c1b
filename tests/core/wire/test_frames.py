"""Frames, control messages and repairs: there and back, and what is not ours is told apart."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nearcast.core.model.placement import Mode, Placement, Record, Unreadable, prepare, settled, switch
from nearcast.core.wire.frames import (
    ASK,
    CRLF,
    DATA,
    HEADER,
    HEADER_BYTES,
    MARK,
    OWN_KINDS,
    SKIP,
    USER_DATA,
    UserPayload,
    decode_control,
    decode_record,
    decode_repair,
    encode_ask,
    encode_record,
    encode_repair,
    publish_command,
    read_record,
    speaker_of,
    split_user,
    word_of,
)
from nearcast.core.wire.link import command

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
names = st.binary(min_size=1, max_size=40)
placements = st.builds(
    Placement,
    u32,
    st.sampled_from(Mode),
    st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3).map(tuple),
    u32,
)
records = st.builds(
    Record, u32, st.integers(0, 2**31 - 1), placements, st.none() | placements, st.none() | placements, st.booleans()
)


def test_a_header_is_32_bytes_and_starts_with_the_magic() -> None:
    assert HEADER_BYTES == 32
    assert HEADER.pack(DATA, 1, 2, 3, 4)[:4] == b"\xfbNC\x01"
    assert {DATA & 0xFF, SKIP & 0xFF, MARK & 0xFF} == {1, 2, 3}


@given(names, st.binary(max_size=300), st.sampled_from(sorted(OWN_KINDS)), u32, u64, u64, u64)
def test_a_packed_publish_is_the_resp_of_the_same_command(
    channel: bytes, payload: bytes, word: int, epoch: int, publisher: int, sequence: int, time_ns: int
) -> None:
    packer, prefix = publish_command(channel, len(payload))
    packed = packer.pack(prefix, word, epoch, publisher, sequence, time_ns, payload, CRLF)
    header = HEADER.pack(word, epoch, publisher, sequence, time_ns)
    assert packed == command("PUBLISH", channel, header + payload)


@given(records)
def test_a_record_survives_the_way_there_and_back(record: Record) -> None:
    assert decode_record(encode_record(record)) == record
    assert decode_control(b"R" + encode_record(record)) == record


@given(st.binary(min_size=1, max_size=20), u64, u64)
def test_a_request_for_repair_survives_the_way_there_and_back(topic: bytes, asker: int, have: int) -> None:
    parts = decode_repair(encode_ask(topic, asker, have))
    assert parts is not None
    assert parts[0] == topic
    assert HEADER.unpack(parts[1]) == (ASK, 0, asker, have, 0)


RECORD = encode_record(settled(Placement(1, Mode.SINGLE, ("b1",)), term=1))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"R",
        b"S",
        b"hello",
        RECORD,
        b"R" + RECORD[:-1],
        b'R{"version": "1"}',
        b"R[]",
        b"Rnull",
        b'S["me", {}]',
        b"S[1]",
        b"\xff\xfe",
        b"R\xff",
        b'P{"brokers":["\xff"]}',
        b'R{"version":1,"placement":[1,"\xff",["b"]]}',
    ],
)
def test_what_is_not_a_control_message_is_ignored(payload: bytes) -> None:
    assert decode_control(payload) is None


# --- what a newer version may write


def test_fields_that_only_a_newer_version_knows_are_ignored() -> None:
    newer = RECORD.replace(b"{", b'{"shade":"blue",', 1).replace(b'["b1"],0]', b'["b1"],0,{"weight":3}]')
    assert newer.count(b"blue") == newer.count(b"weight") == 1
    assert read_record(newer) == decode_control(b"R" + newer) == decode_record(RECORD)


def test_a_mode_that_only_a_newer_version_knows_is_named() -> None:
    newer = RECORD.replace(b"single", b"unheard")
    assert read_record(newer) == decode_control(b"R" + newer) == Unreadable("mode 'unheard'")


def test_a_record_of_another_shape_cannot_be_read() -> None:
    assert isinstance(read_record(b'{"version":"one"}'), Unreadable)


DEEP = b"[" * 1500 + b"]" * 1500


def forged(
    version: object = 5, term: object = 1, epoch: object = 1, brokers: str = '["b1"]', members: int = 1
) -> bytes:
    return f'{{"version":{version},"term":{term},"placement":[{epoch},"single",{brokers},{members}]}}'.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"7",
        b'{"x":' + DEEP + b"}",
        forged(version=1 << 34),
        forged(version=-1),
        forged(term=1 << 31),
        forged(term=-1),
        forged(epoch=1 << 32),
        forged(epoch=-1),
        forged(epoch=10**400),
        forged(members=-1),
        forged(brokers="[]"),
        forged(brokers=str([f"b{number}" for number in range(3000)]).replace("'", '"')),
    ],
)
def test_a_record_that_cannot_be_is_none(data: bytes) -> None:
    assert isinstance(decode_control(b"R" + forged()), Record)
    assert decode_control(b"R" + data) is None


@given(st.binary(max_size=100))
@example(b"R{}")
def test_no_bytes_on_a_control_channel_raise(payload: bytes) -> None:
    for prefix in (b"", b"R", b"S"):
        decode_control(prefix + payload)


@given(st.binary(max_size=600), st.binary(min_size=HEADER_BYTES, max_size=80))
def test_a_repair_survives_the_way_there_and_back(topic: bytes, frame: bytes) -> None:
    assert decode_repair(encode_repair(topic, frame)) == (topic, frame)


@given(st.binary(max_size=100))
def test_bytes_on_an_inbox_are_a_whole_frame_or_nothing(payload: bytes) -> None:
    repair = decode_repair(payload)
    assert repair is None or len(repair[1]) >= HEADER_BYTES


def test_a_repair_whose_frame_is_cut_is_nothing() -> None:
    whole = encode_repair(b"topic", HEADER.pack(DATA, 1, 2, 3, 4))
    assert [decode_repair(whole[:length]) for length in range(len(whole))] == [None] * len(whole)


P, Q = Placement(7, Mode.SINGLE, ("b1",)), Placement(8, Mode.ALL_PUBLISHERS, ("b1", "b2"))


@pytest.mark.parametrize("record", [prepare(P, Q, 3), switch(P, Q, 3, forced=True), settled(Q, 3)])
def test_the_install_script_can_read_version_and_term(record: Record) -> None:
    assert b'"version":%d,"term":3' % record.version in encode_record(record)


@given(st.sampled_from(sorted(OWN_KINDS)), u32, st.binary(max_size=10))
def test_publisher_and_epoch_are_read_from_a_whole_frame_of_ours_only(word: int, epoch: int, payload: bytes) -> None:
    frame = HEADER.pack(word, epoch, 1, 2, 3) + payload
    assert speaker_of(frame) == (1, epoch)
    assert speaker_of(frame[: HEADER_BYTES - 1]) == (None, 0)
    assert speaker_of(b"\0" + frame[1:]) == (None, 0)


@given(st.text(max_size=128), st.binary(max_size=40))
@example("ann", b"")
def test_a_users_name_goes_with_the_payload(user: str, payload: bytes) -> None:
    packed = UserPayload.of(user, payload)
    assert split_user(packed) == split_user(bytes(packed)) == (user, payload)
    assert (word_of(packed), word_of(bytes(packed)), word_of(None)) == (USER_DATA, DATA, SKIP)


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x00\x05ann", b"\x00\x02\xff\xffx"])
def test_what_no_gateway_has_made_is_of_nobody(body: bytes) -> None:
    assert split_user(body) == ("", body)
