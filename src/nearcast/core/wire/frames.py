"""Frames: how a message looks on a server's channel, and the small control messages next to it.

A frame is a fixed header and the payload. The first word is a magic number and the frame's kind, so one integer
comparison tells our plain messages from everything else, foreign messages included. Big-endian:

    word   u32  0xFB4E43 << 8 | kind      0xFB starts no UTF-8 text and no useful JSON or msgpack document
    epoch  u32  placement epoch the frame was sent in
    publisher u64, sequence u64, time u64 (nanoseconds since the Unix epoch)

A user's message, published by a gateway, has a kind of its own: the user's name comes before the payload.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

import msgspec

from nearcast.core.model.distances import CANDIDATES_MAX, Sought
from nearcast.core.model.placement import Mode, Record, Unreadable
from nearcast.core.wire.link import publish_prefix

HEADER = Struct(">IIQQQ")
HEADER_BYTES = HEADER.size
PUSH_BYTES = HEADER_BYTES + 40  # RESP3 push framing and channel name around a payload, roughly

_MAGIC = 0xFB4E43 << 8
DATA = _MAGIC | 1  # a message
SKIP = _MAGIC | 2  # a number that was assigned and then given up; carries no payload
MARK = _MAGIC | 3  # on an inbox: everything up to `sequence` was acknowledged
ASK = _MAGIC | 4  # on an inbox: the client named as publisher has everything up to `sequence` and wants the rest
FIRST = _MAGIC | 5  # a message with nothing before it any more: its publisher had forgotten the topic
FIRST_SKIP = _MAGIC | 6  # a SKIP of that kind
USER_DATA = _MAGIC | 7  # a message of a user: u16 length of the name, the name in UTF-8, the payload
USER_FIRST = _MAGIC | 8  # a message of a user with nothing before it any more
BATCH = _MAGIC | 9  # messages that were kept in one step: see `batches.py`

SKIPS = frozenset((SKIP, FIRST_SKIP))
FIRSTS = frozenset((FIRST, FIRST_SKIP, USER_FIRST))
OF_USERS = frozenset((USER_DATA, USER_FIRST))
NUMBERED = frozenset((DATA, SKIP)) | FIRSTS | OF_USERS  # what may appear on the channel of a topic
OWN_KINDS = NUMBERED | {MARK}
_SPOKEN = OWN_KINDS | {BATCH}

CRLF = b"\r\n"


@lru_cache(maxsize=4096)
def publish_command(channel: bytes, payload_bytes: int) -> tuple[Struct, bytes]:
    """The packer for a whole PUBLISH command with a payload of this length, and its constant first part.

    `packer.pack(prefix, word, epoch, publisher, sequence, time, payload, CRLF)` is one C call per message.
    """
    prefix = publish_prefix(channel, HEADER_BYTES + payload_bytes)
    return Struct(f">{len(prefix)}sIIQQQ{payload_bytes}s2s"), prefix


class UserPayload(bytes):
    """What a user's message carries after the header; in a buffer, its type tells it from a plain payload."""

    @classmethod
    def of(cls, user: str, payload: bytes) -> UserPayload:
        name = user.encode()
        return cls(b"%b%b%b" % (len(name).to_bytes(2, "big"), name, payload))


def split_user(body: bytes) -> tuple[str, bytes]:
    """The user's name and the payload; for anything not made by a gateway, an empty name and all of it."""
    end = 2 + int.from_bytes(body[:2], "big")
    try:
        return (body[2:end].decode(), body[end:]) if len(body) >= end else ("", body)
    except UnicodeDecodeError:
        return "", body


def word_of(payload: bytes | None, *, first: bool = False) -> int:
    """The kind of the frame for a payload; None is a number that was given up. `first`: there is nothing before it."""
    if payload is None:
        return FIRST_SKIP if first else SKIP
    if type(payload) is UserPayload:
        return USER_FIRST if first else USER_DATA
    return FIRST if first else DATA


def speaker_of(payload: bytes) -> tuple[int | None, int]:
    """(publisher, epoch) of a frame; the publisher is None if the frame is not ours."""
    if len(payload) < HEADER_BYTES:
        return None, 0
    word, epoch, publisher, _, _ = HEADER.unpack_from(payload)
    return (publisher, epoch) if word in _SPOKEN else (None, 0)


# --- records and control messages


_RECORD = b"R"
_SOUGHT = b"P"
RECORD_BYTES_MAX = 16 << 10  # two placements of some hundred brokers each
_encode = msgspec.json.Encoder().encode
_decode_record = msgspec.json.Decoder(Record).decode
_decode_sought = msgspec.json.Decoder(Sought).decode


def encode_record(record: Record) -> bytes:
    return _encode(record)


@lru_cache(maxsize=4096)
def decode_record(data: bytes) -> Record:
    """The record; one object for all topics that share it, as topics that were never placed do at their directory."""
    return _decode_record(data)


class _PlacementOutline(msgspec.Struct, array_like=True):
    """What every version of a placement has."""

    epoch: int
    mode: str
    brokers: tuple[str, ...]


class _RecordOutline(msgspec.Struct):
    """What every version of a record has."""

    version: int
    placement: _PlacementOutline
    next: _PlacementOutline | None = None
    previous: _PlacementOutline | None = None


_MODES = frozenset(Mode)
_decode_outline = msgspec.json.Decoder(_RecordOutline).decode


@lru_cache(maxsize=256)
def read_record(data: bytes) -> Record | Unreadable:
    """A record as an agent has written it, possibly of a newer version; many topics have the same one."""
    try:
        return _decode_record(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return _newer(data) or Unreadable(f"what cannot be read ({error})")


def _newer(data: bytes) -> Unreadable | None:
    """What a newer version says that we do not understand; None if this is no record at all."""
    try:
        outline = _decode_outline(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    places = [place for place in (outline.placement, outline.next, outline.previous) if place is not None]
    unknown = [place.mode for place in places if place.mode not in _MODES]
    return Unreadable(f"mode {unknown[0]!r}") if unknown else None


def encode_sought(sought: Sought) -> bytes:
    """For the control channel of a topic. Clients that do not know it ignore it."""
    return _SOUGHT + _encode(sought)


def decode_control(payload: bytes) -> Record | Unreadable | Sought | None:
    """A message from a control channel; None for one that is not ours, which is ignored."""
    if len(payload) > RECORD_BYTES_MAX + 1:
        return None
    if payload.startswith(_SOUGHT):
        return _sought(payload)
    if not payload.startswith(_RECORD):
        return None
    try:
        record = _decode_record(payload[1:])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _newer(payload[1:])
    return record if record.well_formed else None


def _sought(payload: bytes) -> Sought | None:
    try:
        sought = _decode_sought(payload[1:])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return sought if len(sought.brokers) <= CANDIDATES_MAX else None


def encode_repair(topic: bytes, frame: bytes) -> bytes:
    """A frame for an inbox, which serves all topics and so must name one."""
    return b"%b%b%b" % (len(topic).to_bytes(2, "big"), topic, frame)


def encode_ask(topic: bytes, asker: int, have: int) -> bytes:
    """A subscriber's request for repair, for the inbox of its publisher."""
    return encode_repair(topic, HEADER.pack(ASK, 0, asker, have, 0))


def decode_repair(payload: bytes) -> tuple[bytes, bytes] | None:
    """(topic, frame), or None for what is not a repair."""
    end = 2 + int.from_bytes(payload[:2], "big")
    frame = payload[end:]
    if len(frame) < HEADER_BYTES:
        return None
    return payload[2:end], frame
