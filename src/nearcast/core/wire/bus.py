"""The bus: what agents, the controller and the command line say to each other.

Messages are JSON on channels of the store's server: `nc:a:BROKER:AGENT` to an agent, `nc:g:BROKER` to a gateway, `nc:k`
to the controller, `nc:rent` to the provider of servers, `nc:q:ASKER` to the asker of a request. A request is numbered
ASKER.N. Any message may be lost, duplicated or late: orders are idempotent and carry their term.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec

from nearcast.core.model.bounds import Bound
from nearcast.core.model.distances import BrokerDistances, TopicDistances
from nearcast.core.model.journal import BEGINNING, Known, LossEntry, Pace, Position
from nearcast.core.model.logs import FormerLife, Log, PartLoad, Sealed
from nearcast.core.model.membership import Membership
from nearcast.core.model.placement import Mode, Record
from nearcast.core.model.planning import Explanation
from nearcast.core.model.reports import Report
from nearcast.core.wire import views

REPORT_S = 2.0  # between two reports of a gateway
TOPICS_MAX = 1 << 40  # that anyone may count
SHOWN_MAX = 1000  # topics in one answer to a Show: a small part of what a leader has time for and a server may queue


# --- agent to controller


class Hello(msgspec.Struct, frozen=True, tag=True):
    """I am here. Sent with every beat on the server, at least once a heartbeat; the answer is a Grant."""

    broker: str
    agent: int
    beat: int  # the newest on the server, in its current run
    url: str
    site: str
    run_id: str
    answering: bool  # the server answered within the last heartbeats
    dead: bool = False  # the server's process was seen to end
    ready: bool = False  # the ready key of this run is set
    capacity_bytes_per_s: float = 0.0  # as configured; 0: not known
    known: Known = Known()
    replicas: dict[str, str] = {}  # those that answer: URL -> run
    probes: str = ""  # where the agent answers probes


class Answer(msgspec.Struct, frozen=True, tag=True):
    """An order was carried out.

    `versions`, `counts`, `records` and `membership` belong to Install, Count, Collect or Lookup or Recall, and Recall;
    `life` and `ends` to Install too: the last entries of the parts that keep the topics.
    """

    broker: str
    order: int
    versions: dict[str, int] = {}
    counts: dict[str, tuple[int, int]] = {}
    records: dict[str, Record] = {}
    more: bool = False  # there are records after these, in the order of topics
    membership: Membership | None = None
    life: str = ""
    ends: dict[str, str] = {}  # log -> id
    parts: dict[str, PartLoad] = {}  # log -> how much there is, for CountParts
    sealed: Sealed | None = None  # of Seal


# --- controller to agent; `journal` is its position when this is sent


class Grant(msgspec.Struct, frozen=True, tag=True):
    """The leader relies on the broker: the answer to a Hello."""

    term: int
    beat: int  # of the Hello it answers
    run_id: str  # of the Hello too: beats of another run mean nothing
    journal: Position = BEGINNING


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Another agent already is what this one claims to be: it gets no grant and no orders."""

    term: int
    reason: str
    other_heard: bool  # lately, so it seems to be alive
    final: bool  # waiting is useless
    journal: Position = BEGINNING


class Install(msgspec.Struct, frozen=True, tag=True):
    """Store these records, and push each to the clients of its topic.

    `after`: what readers of a log must have read before they continue here: log -> life -> id of an entry.
    """

    order: int
    term: int
    records: dict[str, Record]
    after: dict[str, dict[str, str]] = {}
    journal: Position = BEGINNING


class InstallMembers(msgspec.Struct, frozen=True, tag=True):
    """Store the membership, and push it to all clients."""

    order: int
    term: int
    membership: Membership
    journal: Position = BEGINNING


class Count(msgspec.Struct, frozen=True, tag=True):
    """Subscribers of each topic, and of its readiness channel for the epoch, at one moment.

    The empty topic stands for pattern subscribers, its epoch for the membership version a broker joined with.
    """

    order: int
    term: int
    epochs: dict[str, int]
    journal: Position = BEGINNING


class Collect(msgspec.Struct, frozen=True, tag=True):
    """One batch of records of topics whose directory is this broker by the old ring and another one by the new ring."""

    order: int
    term: int
    old_ring: tuple[str, ...]
    new_ring: tuple[str, ...]
    after: str = ""  # the last topic of the previous batch
    members: int = -1  # version of the membership with the new ring, which is closed for these topics
    journal: Position = BEGINNING


class Lookup(msgspec.Struct, frozen=True, tag=True):
    """The record of one topic at its directory, created if there is none."""

    order: int
    term: int
    topic: str
    membership: Membership
    journal: Position = BEGINNING


class Recall(msgspec.Struct, frozen=True, tag=True):
    """All records, one batch; with the first one also the membership on the server."""

    order: int
    term: int
    after: str = ""  # the last topic of the previous batch
    journal: Position = BEGINNING


class CountParts(msgspec.Struct, frozen=True, tag=True):
    """How much there is in each part of this broker's life, and how much of it is not read yet."""

    order: int
    term: int
    journal: Position = BEGINNING


class Reset(msgspec.Struct, frozen=True, tag=True):
    """Start over: cut off clients, forget records. For a broker that joins, whatever it was before."""

    order: int
    term: int
    journal: Position = BEGINNING


class MarkReady(msgspec.Struct, frozen=True, tag=True):
    """Set the ready key for this run of the server: clients may connect."""

    order: int
    term: int
    run_id: str
    journal: Position = BEGINNING


class Seal(msgspec.Struct, frozen=True, tag=True):
    """Stop a replica of a life that has ended, so that what it has is final. Any agent can do it."""

    order: int
    term: int
    life: str
    url: str
    journal: Position = BEGINNING


Order = Install | InstallMembers | Count | Collect | Lookup | Recall | CountParts | Reset | MarkReady | Seal


# --- controller to provider: each is repeated until it takes effect


class Rent(msgspec.Struct, frozen=True, tag=True):
    """Start a server with its agent under this name."""

    broker: str
    term: int


class Release(msgspec.Struct, frozen=True, tag=True):
    """Stop it: it has left and carries no topics."""

    broker: str
    term: int
    url: str  # of the one that is meant: another may run under the same name by now


ToProvider = Rent | Release


# --- gateways


class GatewayReport(msgspec.Struct, frozen=True, tag=True):
    """A gateway is there, with these users online: registerbroker (BAD, section 3), sent every two seconds."""

    broker: str
    url: str  # where subscribers reach it: http://host:port
    site: str = "local"
    latitude: float | None = None  # degrees; None: not known
    longitude: float | None = None
    online: dict[str, tuple[str, ...]] = {}  # user -> ids of the backend subscriptions it wants
    rates: dict[str, float] = {}  # id -> bytes per second of its results, as the gateway saw them


class RegisterUser(msgspec.Struct, frozen=True, tag=True):
    """May a user have this name? The answer is an Assignment without a broker."""

    request: str
    user: str


class RequestBroker(msgspec.Struct, frozen=True, tag=True):
    """Which gateway should serve this user? The answer is an Assignment."""

    request: str
    user: str
    latitude: float | None = None
    longitude: float | None = None
    home: str = ""  # the broker recorded as the user's home, if the asker has looked
    round_trips_s: dict[str, float] = {}  # by broker, as the user has measured its gateways


class Assignment(msgspec.Struct, frozen=True, tag=True):
    """The gateway of a user. `problem` is set if there is none, and says what to do."""

    request: str
    broker: str = ""
    url: str = ""
    problem: str = ""


class MoveSubscribers(msgspec.Struct, frozen=True, tag=True):
    """Send these users to other gateways: user -> (broker, URL). Repeated until reports show that they went."""

    term: int
    moves: dict[str, tuple[str, str]]


# --- the command line


class ShowSubscribers(msgspec.Struct, frozen=True, tag=True):
    """Ask for the gateways and the subscribers that are moving; and where these users are."""

    request: str
    users: tuple[str, ...] = ()


class PlaceSubscriber(msgspec.Struct, frozen=True, tag=True):
    """Send a user that is online to another gateway."""

    request: str
    user: str
    broker: str


class ShuffleSubscribers(msgspec.Struct, frozen=True, tag=True):
    """Place all subscribers again."""

    request: str


Placements = dict[str, tuple[Mode, tuple[str, ...]]]  # topic -> mode and brokers


class MoveTopics(msgspec.Struct, frozen=True, tag=True):
    """Place topics as given: all of them or, if one is refused, none."""

    request: str
    placements: Placements
    pace: Pace = Pace.EAGER


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Move everything away from a broker and let it leave; or cancel that. `abandon`: what it keeps of logs is lost."""

    request: str
    broker: str
    cancel: bool = False
    abandon: bool = False


class SetCapacity(msgspec.Struct, frozen=True, tag=True):
    """How many bytes per second a broker can send."""

    request: str
    broker: str
    bytes_per_s: float


class SetMessagesHigh(msgspec.Struct, frozen=True, tag=True):
    """How many messages per second a broker may deliver before its latency suffers; 0: as the policy says."""

    request: str
    broker: str
    per_s: float


class AcknowledgeLoss(msgspec.Struct, frozen=True, tag=True):
    """The operator knows that the store has lost data: names may be registered again."""

    request: str


class SetBound(msgspec.Struct, frozen=True, tag=True):
    """How long messages may take on a topic, or on all that match a pattern; None: as long as they like."""

    request: str
    topics: str
    bound: Bound | None = None


class ExplainTopic(msgspec.Struct, frozen=True, tag=True):
    """Ask the policy why a topic is where it is."""

    request: str
    topic: str


class CreateLog(msgspec.Struct, frozen=True, tag=True):
    """Keep the messages of more topics. The answer comes when everything published from then on is kept."""

    request: str
    log: Log  # the leader says when it was created


class DropLog(msgspec.Struct, frozen=True, tag=True):
    """Keep nothing more for this log."""

    request: str
    name: str


class ShowLogs(msgspec.Struct, frozen=True, tag=True):
    """Ask for the logs, and how much there is in each of their parts."""

    request: str


class AbandonPart(msgspec.Struct, frozen=True, tag=True):
    """Wait no longer for what a life that has ended may have kept."""

    request: str
    life: str


class Show(msgspec.Struct, frozen=True, tag=True):
    """Ask for the state: of these topics, or of all if none is named; of SHOWN_MAX of them, from `start` on.

    All are counted in the order of the leader's journal, where topics are added at the end and never removed. The next
    leader may have another order: an asker that sees a new term in the middle starts over. An asker that needs only
    brokers says so.
    """

    request: str
    topics: tuple[str, ...] = ()
    brokers_only: bool = False
    start: Annotated[int, msgspec.Meta(ge=0, le=TOPICS_MAX)] = 0


class State(msgspec.Struct, frozen=True, tag=True):
    """The answer to every request. `problem` is set if it was refused, and says what to do."""

    request: str
    leader: str = ""
    term: int = 0
    version: int = 0
    problem: str = ""
    topics: dict[str, views.TopicState] = {}
    brokers: dict[str, views.BrokerView] = {}
    decisions: list[views.Decision] = []  # the newest of the policy, oldest first
    gateways: dict[str, views.GatewayView] = {}  # in answers about subscribers
    assignments: dict[str, str] = {}  # where the requested users are; offline users are missing
    moving: dict[str, tuple[str, str]] = {}  # user -> (from, to), only some if there are many
    loss: LossEntry | None = None  # the last time the store had lost data
    next_start: int = 0  # where to continue asking for topics; 0: these were the last
    logs: tuple[Log, ...] = ()
    parts: dict[str, dict[str, PartLoad]] = {}  # in answers to ShowLogs: life -> log -> how much there is
    former: tuple[FormerLife, ...] = ()
    bounds: dict[str, Bound] = {}  # all of the cluster
    distances: dict[str, TopicDistances] = {}  # of the topics shown
    round_trips_s: dict[str, dict[str, float]] = {}  # between brokers
    explanation: Explanation | None = None


AboutTopics = MoveTopics | Drain | SetCapacity | SetMessagesHigh | AcknowledgeLoss | Show
AboutLogs = CreateLog | DropLog | ShowLogs
AboutSubscribers = ShowSubscribers | PlaceSubscriber | ShuffleSubscribers
Request = AboutTopics | SetBound | ExplainTopic | AboutLogs | AbandonPart | AboutSubscribers
FromGateway = GatewayReport | RegisterUser | RequestBroker
ToController = Hello | Report | Answer | Request | FromGateway
ToAgent = Grant | Refusal | BrokerDistances | Order
FromController = ToAgent | ToProvider | MoveSubscribers | State | Assignment

encode = msgspec.json.Encoder().encode

_Message = TypeVar("_Message")


def _reading(kind: type[_Message]) -> Callable[[bytes], _Message | None]:
    """What reads messages of one kind. It gives None for one that is not ours, or from a newer version."""
    decode = msgspec.json.Decoder(kind).decode

    def read(payload: bytes) -> _Message | None:
        try:
            return decode(payload)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None

    return read


decode_for_controller: Callable[[bytes], ToController | None] = _reading(ToController)  # type: ignore[arg-type]
decode_for_agent: Callable[[bytes], ToAgent | None] = _reading(ToAgent)  # type: ignore[arg-type]
decode_for_provider: Callable[[bytes], ToProvider | None] = _reading(ToProvider)  # type: ignore[arg-type]
decode_for_gateway = _reading(MoveSubscribers)
decode_state = _reading(State)
decode_assignment = _reading(Assignment)
