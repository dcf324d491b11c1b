"""What clients, dispatchers and the load balancer of the variant send each other, and its timers.

Messages are frames; everything else is JSON.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from nearcast.core.wire.frames import DATA, HEADER, HEADER_BYTES
from nearcast.errors import UsageError

DISPATCHER = b"nc:d"  # channel on a broker's server: messages for its dispatcher


class Frame(NamedTuple):
    """One message as it ran on a server.

    It has the header of `core/wire/frames.py`; publisher and sequence number are the globally unique identifier of the
    paper's section IV.A.3. After the header come the brokers whose dispatchers have forwarded it, so that it is sent to
    no server twice.
    """

    publisher: int
    sequence: int
    via: tuple[str, ...] = ()  # brokers whose dispatchers forwarded it, in order


def pack_frame(frame: Frame) -> bytes:
    return HEADER.pack(DATA, 0, frame.publisher, frame.sequence, 0) + ",".join(frame.via).encode()


def read_frame(payload: bytes) -> Frame | None:
    """The message, or None if it is none: on a topic's channel, that is a request to switch."""
    if len(payload) < HEADER_BYTES:
        return None
    word, _, publisher, sequence, _ = HEADER.unpack_from(payload)
    if word != DATA:
        return None
    via = payload[HEADER_BYTES:].decode()
    return Frame(publisher, sequence, tuple(via.split(",")) if via else ())


# --- plans


class Route(msgspec.Struct, frozen=True, array_like=True):
    """Where a topic is, since which version of the plan, and where it was before."""

    broker: str
    version: int
    previous: str


class Plan(msgspec.Struct, frozen=True, tag=True):
    """Load balancer to dispatcher: the complete plan. Topics it does not name are where the ring puts them."""

    version: int
    routes: dict[str, Route]


class Holding(msgspec.Struct, frozen=True, tag=True):
    """Dispatcher to load balancer: which plan it has; 0 asks for one."""

    broker: str
    version: int


# --- to clients


class Redirect(msgspec.Struct, frozen=True, tag=True):
    """The `<switch to H1>` of section IV.A.2 on the topic's channel, and the notice of IV.A.4 in a client's inbox."""

    topic: str
    broker: str
    version: int  # of the route: a client ignores versions older than the one it knows


# --- to dispatchers


class Joined(msgspec.Struct, frozen=True, tag=True):
    """A client's SUBSCRIBE has run on this server.

    In section IV.A.1, dispatchers intercept subscriptions. Here the client reports it, on the same connection and right
    after the command, so the dispatcher hears about it as fast as its local link allows.
    """

    topic: str
    client: int


class Left(msgspec.Struct, frozen=True, tag=True):
    """A client's UNSUBSCRIBE has run on this server."""

    topic: str


class Emptied(msgspec.Struct, frozen=True, tag=True):
    """Dispatcher to dispatcher: no subscriber is left at my server (section IV.A.5)."""

    topic: str
    broker: str
    version: int


Word = Plan | Holding | Redirect | Joined | Left | Emptied

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Word).decode


def encode(word: Word) -> bytes:
    return _encode(word)


def decode(payload: bytes) -> Word:
    return _decode(payload)


# --- timers


class Timers(msgspec.Struct, frozen=True, kw_only=True):
    """Two times that the paper names without giving their length, and one that is not in the paper. In seconds."""

    # Section IV.A.5: a client forgets a topic it has not used for this long, and the dispatcher of the former server
    # stops listening this long after the plan. It is several times the slowest round trip of the simulated network.
    forget_s: float = 2.0

    # T_wait of section III.B: between two plans that move the same topic, "to make sure that most of the configuration
    # overhead of the last plan change is completed". Not shorter than forget_s, so that one move is over before the
    # next begins.
    wait_s: float = 2.0

    # How long a subscriber stays at the old server after the new one has confirmed. In the paper it leaves at once.
    linger_s: float = 0.0

    def __post_init__(self) -> None:
        if self.forget_s <= 0 or self.wait_s < 0 or self.linger_s < 0:
            raise UsageError("forget_s must be above 0, wait_s and linger_s must not be negative")
