"""The bus: what agents, the controller and the command line tell each other.

Messages are JSON on channels of the store's server: `nc:a:BROKER` towards an agent, `nc:k` towards the controller,
`nc:q:ASKER` towards whoever asked; a request is numbered ASKER.N. Any of them may be lost, doubled or late: orders are
idempotent and carry their term.
"""

from __future__ import annotations

import msgspec

from nearcast.core.counters import TopicCounters
from nearcast.core.journal import Pace
from nearcast.core.membership import Membership
from nearcast.core.placement import Mode, Placement
from nearcast.core.record import Record

AGENT_CHANNEL = b"nc:a:"
CONTROLLER_CHANNEL = b"nc:k"
ANSWER_CHANNEL = b"nc:q:"


# --- agent to controller


class Hello(msgspec.Struct, frozen=True, tag=True):
    """I am here. Sent twice a heartbeat; the answer is a Grant."""

    broker: str
    agent: int
    sequence: int
    url: str
    site: str
    run_id: str
    answering: bool  # the server answered within the last heartbeats
    dead: bool = False  # the server's process was seen to end
    ready: bool = False  # the ready key of this run is set


class Report(msgspec.Struct, frozen=True, tag=True):
    """One second of one broker: the server's own figures, and the sum of what clients counted."""

    broker: str
    at_s: float
    seconds: float
    output_bytes_per_s: float
    input_bytes_per_s: float
    connections: int
    memory_bytes: int
    cpu_share: float
    counted_bytes_per_s: float  # what the clients' counters explain of the output
    topics: dict[str, TopicCounters] = {}


class Answer(msgspec.Struct, frozen=True, tag=True):
    """An order was carried out. `versions`, `counts` and `records` belong to Install, Count, and Collect or Lookup."""

    broker: str
    order: int
    versions: dict[str, int] = {}
    counts: dict[str, tuple[int, int]] = {}
    records: dict[str, Record] = {}


# --- controller to agent


class Grant(msgspec.Struct, frozen=True, tag=True):
    term: int
    sequence: int  # of the Hello it answers


class Install(msgspec.Struct, frozen=True, tag=True):
    order: int
    term: int
    records: dict[str, Record]


class InstallMembers(msgspec.Struct, frozen=True, tag=True):
    order: int
    term: int
    membership: Membership


class Count(msgspec.Struct, frozen=True, tag=True):
    """Subscribers of each topic, and of its readiness channel for the epoch, at one moment.

    The empty topic stands for pattern subscribers.
    """

    order: int
    term: int
    epochs: dict[str, int]


class Collect(msgspec.Struct, frozen=True, tag=True):
    """Records of topics whose directory was this broker by the old ring and is another by the new one."""

    order: int
    term: int
    old_ring: tuple[str, ...]
    new_ring: tuple[str, ...]


class Lookup(msgspec.Struct, frozen=True, tag=True):
    """The record of one topic at its directory, made if there is none."""

    order: int
    term: int
    topic: str
    membership: Membership


class Reset(msgspec.Struct, frozen=True, tag=True):
    """Begin anew: cut off clients, forget records. For a broker that joins, whatever it was before."""

    order: int
    term: int


class MarkReady(msgspec.Struct, frozen=True, tag=True):
    order: int
    term: int
    run_id: str


Order = Install | InstallMembers | Count | Collect | Lookup | Reset | MarkReady


# --- the command line


class MoveTopics(msgspec.Struct, frozen=True, tag=True):
    """Place topics as given: all of them or, if one is refused, none."""

    request: str
    placements: dict[str, tuple[Mode, tuple[str, ...]]]
    pace: Pace = Pace.EAGER


class Show(msgspec.Struct, frozen=True, tag=True):
    """Ask for the state: of these topics, or of all if none is named."""

    request: str
    topics: tuple[str, ...] = ()


class TopicState(msgspec.Struct, frozen=True):
    placement: Placement
    target: Placement | None = None
    stage: str = ""
    planned: bool = True  # False: nobody has placed it, it lives on its directory


class BrokerView(msgspec.Struct, frozen=True):
    url: str
    site: str
    state: str
    alive: bool
    report: Report | None = None


class State(msgspec.Struct, frozen=True, tag=True):
    """The answer to Show and to MoveTopics. `problem` is set if the request was refused; it says what to do."""

    request: str
    leader: str = ""
    term: int = 0
    version: int = 0
    problem: str = ""
    topics: dict[str, TopicState] = {}
    brokers: dict[str, BrokerView] = {}


ToController = Hello | Report | Answer | MoveTopics | Show
ToAgent = Grant | Install | InstallMembers | Count | Collect | Lookup | Reset | MarkReady

encode = msgspec.json.Encoder().encode
_to_controller: msgspec.json.Decoder[ToController] = msgspec.json.Decoder(ToController)
_to_agent: msgspec.json.Decoder[ToAgent] = msgspec.json.Decoder(ToAgent)
_state = msgspec.json.Decoder(State)


def decode_for_controller(payload: bytes) -> ToController | None:
    try:
        return _to_controller.decode(payload)
    except msgspec.DecodeError:
        return None  # not ours, or of a newer version


def decode_for_agent(payload: bytes) -> ToAgent | None:
    try:
        return _to_agent.decode(payload)
    except msgspec.DecodeError:
        return None


def decode_state(payload: bytes) -> State | None:
    try:
        return _state.decode(payload)
    except msgspec.DecodeError:
        return None
