"""The frames between a subscriber and a gateway: JSON objects, told apart by their field `type`.

A subscriber's operation carries a `ref` of its own choice; the answer, `done` or `refused`, carries it back. A frame
that cannot be understood is answered by `refused` with what is wrong with it, never by a closed connection.

Exactness comes from numbers: executions of a channel are numbered, a result names its execution, and a subscriber that
gets one at or below its cursor drops it. Publisher numbers have 64 bits, more than a browser can count to, so they are
text.

The nesting depth of values from outside is limited: every level costs a stack frame wherever they are handled.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, get_args

import msgspec

from nearcast.errors import ProtocolError

NESTING_MAX = 20


def is_too_deep(value: Any, most: int = NESTING_MAX) -> bool:
    """Whether lists and objects are nested deeper than `most`; looks no deeper than that."""
    if not isinstance(value, (dict, list)):
        return False
    if most == 0:
        return True
    inner = value.values() if isinstance(value, dict) else value
    return any(is_too_deep(one, most - 1) for one in inner)


TEXT, BASE64 = "text", "base64"
LOGGED_OUT = "logged out"  # the reason of the `bye` that answers a `logout`: everything before it has been sent
LOGGED_IN_AGAIN = "you have logged in elsewhere"


Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # of an execution: what a browser can count to
Ref = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class _Frame(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Base of all frames; an absent field has its default."""


# --- to the gateway


class Login(_Frame, frozen=True, tag="login"):
    """The first frame. `cursors`: the last execution the subscriber has of each subscription."""

    user: str
    token: str
    cursors: dict[str, Number] = {}


class Subscribe(_Frame, frozen=True, tag="subscribe"):
    """Subscribe to a channel with these parameters."""

    ref: Ref
    channel: str
    parameters: dict[str, Any] = {}


class Unsubscribe(_Frame, frozen=True, tag="unsubscribe"):
    """End a subscription to a channel."""

    ref: Ref
    subscription: str


class Ack(_Frame, frozen=True, tag="ack"):
    """Everything of the subscription up to this execution has been handled."""

    subscription: str
    execution: Number


class Publish(_Frame, frozen=True, tag="publish"):
    """Publish to a topic, in the user's name."""

    ref: Ref
    topic: str
    payload: str
    encoding: str = TEXT


class SubscribeTopic(_Frame, frozen=True, tag="subscribe_topic"):
    """Subscribe to a plain topic."""

    ref: Ref
    topic: str


class UnsubscribeTopic(_Frame, frozen=True, tag="unsubscribe_topic"):
    """End a subscription to a plain topic."""

    ref: Ref
    topic: str


class Logout(_Frame, frozen=True, tag="logout"):
    """Subscriptions stay: results are kept for the next login. The gateway sends what waits, then `bye`."""


class Ping(_Frame, frozen=True, tag="ping"):
    """Answered by `pong`, for programs that cannot send WebSocket pings."""


ToGateway = Login | Subscribe | Unsubscribe | Ack | Publish | SubscribeTopic | UnsubscribeTopic | Logout | Ping
Operation = Subscribe | Unsubscribe | Publish | SubscribeTopic | UnsubscribeTopic


# --- from the gateway


class Held(msgspec.Struct, frozen=True):
    """A frontend subscription of the user."""

    subscription: str
    channel: str
    parameters: dict[str, Any]
    from_execution: int


class Welcome(_Frame, frozen=True, tag="welcome"):
    """Logged in. `gateways`: the others by broker, to use if this one is gone."""

    broker: str
    subscriptions: list[Held]
    gateways: dict[str, str] = {}


class Done(_Frame, frozen=True, tag="done"):
    """The operation was carried out. The other fields belong to `subscribe`."""

    ref: int
    subscription: str = ""
    from_execution: int = 0


class Refused(_Frame, frozen=True, tag="refused"):
    """Nothing was changed. `ref` is null if the frame had none. `final`: asking again changes nothing."""

    ref: int | None
    problem: str
    final: bool = False


class Result(_Frame, frozen=True, tag="result"):
    """The rows of one execution of a channel, for one subscription."""

    subscription: str
    channel: str
    execution: int
    rows: list[dict[str, Any]]


class Missed(_Frame, frozen=True, tag="missed"):
    """Results after one execution up to and including another are not delivered: no longer kept, or too far back."""

    subscription: str
    after: int
    upto: int


class TopicMessage(_Frame, frozen=True, tag="message"):
    """A message of a plain topic."""

    topic: str
    payload: str
    publisher: str
    sequence: int
    published_at: float
    encoding: str = TEXT
    user: str = ""  # the user who published it through a gateway; empty for a program's own message


class TopicGap(_Frame, frozen=True, tag="gap"):
    """Messages of a topic that will not come; `count` is null if the number is unknown."""

    topic: str
    count: int | None
    reason: str


class Lagging(_Frame, frozen=True, tag="lagging"):
    """The subscriber is slower than its results: they follow from storage once it has taken what waits."""

    subscription: str


class Move(_Frame, frozen=True, tag="move"):
    """Log in at that gateway with your cursors, then log out here."""

    broker: str
    url: str


class Bye(_Frame, frozen=True, tag="bye"):
    """The last frame of a session. `final`: a client must not reconnect by itself."""

    reason: str
    final: bool = False


class Pong(_Frame, frozen=True, tag="pong"):
    pass


FromGateway = Welcome | Done | Refused | Result | Missed | TopicMessage | TopicGap | Lagging | Move | Bye | Pong

encode = msgspec.json.Encoder().encode
_to_gateway = msgspec.json.Decoder(ToGateway)
_from_gateway = msgspec.json.Decoder(FromGateway)


# --- decoding


class _Reference(msgspec.Struct):
    ref: Ref | None = None


class _Type(msgspec.Struct):
    type: str


_reference = msgspec.json.Decoder(_Reference)
_type = msgspec.json.Decoder(_Type)
_KNOWN: frozenset[str] = frozenset(kind.__struct_config__.tag for kind in get_args(FromGateway))


def decode_for_gateway(text: str | bytes) -> ToGateway | Refused:
    """The frame; if it is not one, the answer to it."""
    try:
        frame: ToGateway = _to_gateway.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return Refused(_ref_of(text), f"not a frame: {error}")
    if isinstance(frame, Subscribe) and is_too_deep(frame.parameters):
        return Refused(frame.ref, f"parameters nested deeper than {NESTING_MAX}: give values without lists and objects")
    return frame


def decode_for_subscriber(text: str | bytes) -> FromGateway | None:
    """The frame; None for an unknown type, which a newer gateway may send."""
    try:
        frame: FromGateway = _from_gateway.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        if _type_of(text) not in _KNOWN:
            return None
        raise ProtocolError(f"the gateway sent something that is not a frame: {error}") from None
    return frame


def _type_of(text: str | bytes) -> str:
    """The type of a frame. One we know if it has none, because no version has a frame without a type."""
    try:
        return _type.decode(text).type
    except (msgspec.DecodeError, UnicodeError):
        return next(iter(_KNOWN))


def _ref_of(text: str | bytes) -> int | None:
    try:
        return _reference.decode(text).ref
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


# --- payloads: bytes on a topic, text in a frame


def packed(payload: bytes) -> tuple[str, str]:
    """A payload as text, and its encoding: bytes that are not UTF-8 go as base64."""
    try:
        return payload.decode(), TEXT
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), BASE64


def unpacked(payload: str, encoding: str) -> bytes:
    """The inverse of `packed`; ProtocolError says what is wrong."""
    if encoding == TEXT:
        try:
            return payload.encode()
        except UnicodeEncodeError:
            raise ProtocolError("the payload holds half of a surrogate pair: send base64") from None
    if encoding != BASE64:
        raise ProtocolError(f"unknown encoding {encoding!r}: use {TEXT} or {BASE64}")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(f"the payload is not base64: {error}") from None
