"""Topic names: which are allowed, and what the refusal of the others says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.model.names import (
    CONTROL,
    RESERVED,
    TOPIC_BYTES_MAX,
    decode_topic,
    encode_topic,
    inbox_channel,
    readiness_channel,
)
from nearcast.errors import InvalidTopic


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("a", b"a"),
        (b"a", b"a"),
        ("größe/東京", "größe/東京".encode()),
        ("with space\r\n*?[", b"with space\r\n*?["),
        ("\0", b"\0"),
        ("nc", b"nc"),
        ("Nc:x", b"Nc:x"),
        ("x" * TOPIC_BYTES_MAX, b"x" * TOPIC_BYTES_MAX),
    ],
)
def test_a_topic_may_be_any_short_text(topic: str | bytes, name: bytes) -> None:
    assert encode_topic(topic) == name


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        ("", "must not be empty"),
        (b"", "must not be empty"),
        ("x" * (TOPIC_BYTES_MAX + 1), "513 bytes: use at most 512"),
        ("é" * 257, "514 bytes: use at most 512"),
        ("nc:x", "'nc:' is reserved, choose another name"),
        (b"nc:", "'nc:' is reserved, choose another name"),
        (b"\xff", "not UTF-8: encode it"),
        ("\udcff", "not UTF-8: encode it"),
        (7, "must be str or bytes, not int"),
        (None, "must be str or bytes, not NoneType"),
        (bytearray(b"a"), "must be str or bytes, not bytearray"),
    ],
)
def test_a_refusal_says_which_rule_is_broken(topic: object, says: str) -> None:
    with pytest.raises(InvalidTopic, match=says):
        encode_topic(topic)  # type: ignore[arg-type]


@given(st.text(min_size=1, max_size=100).filter(lambda text: not text.startswith("nc:")))
def test_an_allowed_name_survives_the_way_there_and_back(topic: str) -> None:
    assert decode_topic(encode_topic(topic)) == topic


@given(st.binary())
def test_names_of_other_programs_can_be_shown_whatever_they_are(name: bytes) -> None:
    assert decode_topic(name).encode("utf-8", "surrogateescape") == name


@given(st.text(min_size=1, max_size=20), st.integers(0, 2**32), st.text(min_size=1, max_size=20), st.integers(0, 2**32))
def test_readiness_channels_of_two_topics_or_epochs_differ(topic: str, epoch: int, other: str, later: int) -> None:
    one, two = readiness_channel(topic.encode(), epoch), readiness_channel(other.encode(), later)
    assert (one == two) == ((topic, epoch) == (other, later))


@pytest.mark.parametrize(
    ("channel", "name"),
    [
        (CONTROL + b"t", b"nc:c:t"),
        (readiness_channel(b"t", 7), b"nc:y:t:7"),
        (inbox_channel(255), b"nc:i:00000000000000ff"),
        (inbox_channel(2**64 - 1), b"nc:i:ffffffffffffffff"),
    ],
)
def test_channels_beside_a_topic_are_those_of_the_protocol(channel: bytes, name: bytes) -> None:
    assert channel == name
    assert channel.startswith(RESERVED)
