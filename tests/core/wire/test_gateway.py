"""Frames: what they look like, and what happens to those that are none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.wire.gateway import (
    Login,
    Publish,
    Refused,
    Result,
    Subscribe,
    decode_for_gateway,
    decode_for_subscriber,
    encode,
    packed,
    unpacked,
)
from nearcast.errors import ProtocolError


def test_frames_are_json_objects_told_apart_by_their_type() -> None:
    text = '{"type": "subscribe", "ref": 3, "channel": "near_me", "parameters": {"kind": "fire", "lat": 48.8566}}'
    assert decode_for_gateway(text) == Subscribe(3, "near_me", {"kind": "fire", "lat": 48.8566})
    assert decode_for_gateway('{"type":"login","user":"ann","token":"t"}') == Login("ann", "t", {})
    shown = json.loads(encode(Result("near_me-1", "near_me", 7, [{"id": 1}])))
    assert shown == {
        "type": "result",
        "subscription": "near_me-1",
        "channel": "near_me",
        "execution": 7,
        "rows": [{"id": 1}],
    }


@pytest.mark.parametrize(
    ("text", "ref", "problem"),
    [
        ("", None, "not a frame"),
        ("[]", None, "not a frame"),
        ('{"type":"shout","ref":4}', 4, "shout"),
        ('{"type":"subscribe","ref":4}', 4, "channel"),
        ('{"type":"subscribe","ref":"x","channel":"c"}', None, "ref"),
        ('{"type":"ack","subscription":"s","execution":1.5}', None, "execution"),
        ('{"type":"publish","ref":1,"topic":"t","payload":{"a":1}}', 1, "payload"),
        ("[" * 100_000, None, "not a frame"),
        (b"\xff\xfe", None, "not a frame"),
    ],
)
def test_a_bad_frame_is_refused_with_what_is_wrong(text: str | bytes, ref: int | None, problem: str) -> None:
    refused = decode_for_gateway(text)
    assert isinstance(refused, Refused)
    assert refused.ref == ref
    assert problem in refused.problem


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_nothing_crashes_the_gateways_decoder(text: bytes | str) -> None:
    decode_for_gateway(text)


def test_what_is_no_frame_of_a_gateway_is_an_error_of_the_peer() -> None:
    with pytest.raises(ProtocolError, match="not a frame"):
        decode_for_subscriber("{}")


@given(st.binary())
def test_any_payload_comes_back(payload: bytes) -> None:
    text, encoding = packed(payload)
    frame = decode_for_gateway(encode(Publish(1, "t", text, encoding)))
    assert isinstance(frame, Publish)
    assert unpacked(frame.payload, frame.encoding) == payload


@pytest.mark.parametrize(("payload", "encoding"), [("a", "base64"), ("a", "rot13")])
def test_a_payload_that_cannot_be_unpacked_is_refused(payload: str, encoding: str) -> None:
    with pytest.raises(ProtocolError, match="base64"):
        unpacked(payload, encoding)
