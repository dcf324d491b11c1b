"""The backend: what nearcast needs from a publish/subscribe server, and nothing more.

A machine of the core talks to servers through links. These protocols say what a link must be able to do, by user;
`valkey.py` implements them for Valkey and Redis. docs/backends.md says why each part is needed, and what fails without
it.

    ServerLink    everyone: greet, subscribe, tell, and one order for everything that happens on the connection
    ClientLink    clients: publish in runs, look up records, prove leases
    AgentLink     agents: install records, note grants, count subscribers, observe the load

What matters most is order. A server runs the commands of one link in the order they were sent and answers in that
order, and its pushes are in the same stream. So whatever it did before a marker is seen before the marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from nearcast.core.model.cursors import Cursor
from nearcast.core.model.journal import Position
from nearcast.core.model.logs import EntryId
from nearcast.core.model.membership import Membership
from nearcast.core.model.placement import Record, Unreadable
from nearcast.core.wire.lease import Lease, Proof
from nearcast.errors import AuthenticationFailed, ClusterError, ConnectFailed

if TYPE_CHECKING:
    from nearcast.core.wire.replication import Admission
    from nearcast.core.wire.steps import Outcome, Step

CLIENT_NAMES = "nearcast-"  # prefix of the names of client connections: an agent uses it to cut them off

_WHO_ARE_YOU = ("NOAUTH", "WRONGPASS", "ERR Client sent AUTH", "ERR AUTH")


# --- greeting


class Credentials(msgspec.Struct, frozen=True):
    username: str = ""
    password: str = ""


def hello(credentials: Credentials, name: str) -> tuple[str | int, ...]:
    """The first command of every connection: RESP3, credentials if there are any, a name for CLIENT LIST."""
    auth = ("AUTH", credentials.username or "default", credentials.password) if credentials.password else ()
    return ("HELLO", 3, *auth, "SETNAME", name)


def unanswered(reason: str) -> str:
    """The error for a connection that ended before the greeting was answered."""
    return f"{reason}, before it answered: is that a Valkey or Redis server? If it expects TLS, use rediss://"


def refusal(url: str, text: str) -> ClusterError:
    """The error for a refused greeting, with what to do about it."""
    if text.startswith(_WHO_ARE_YOU):
        return AuthenticationFailed(
            f"{url}: {text}: give the user name and password in the URL, redis://user:password@host:port"
        )
    return ConnectFailed(f"{url}: {text}: nearcast needs Valkey, or Redis 6.2 or newer")


class LinkRefused(Exception):
    """The server said something that makes this connection useless; the text says what, and what to do."""


# --- what a server says


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says about itself to a newcomer: all of it read in one go, none of it judged."""

    run_id: str  # changes with each start of the server
    ready: bytes | None  # written by an agent: the run for which the records are complete
    membership: bytes | None
    lease: Lease


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The server's own counts since its start, and what it holds now."""

    output_bytes: float = 0.0
    input_bytes: float = 0.0
    cpu_s: float = 0.0
    connections: int = 0
    memory_bytes: int = 0
    memory_max_bytes: int = 0  # that it may use; 0: no limit


class Denied(msgspec.Struct, frozen=True):
    """The server refused: usually the user lacks the rights."""

    text: str


class Parts(msgspec.Struct, frozen=True):
    """The parts that keep the topics of some records."""

    totals: bytes  # the key of the totals
    marks: dict[bytes, bytes] = {}  # stream -> the mark it gets with new records, or nothing


class PartKeys(msgspec.Struct, frozen=True):
    """The keys of one part, on the server that has it."""

    stream: bytes
    totals: bytes
    cursors: bytes


Entry = tuple[EntryId, list[bytes]]  # id, fields


class Page(msgspec.Struct, frozen=True):
    """What a server says of a part: all entries after some place, up to a limit."""

    logs: int  # the version of the logs there before it was read: what is kept later is of this one, or a newer one
    total: int  # messages ever kept, before it was read
    entries: list[Entry]


class Taken(msgspec.Struct, frozen=True):
    """The cursor of a group after somebody asked for it, and the other members that are there."""

    cursor: Cursor | None  # None: the group has none here
    members: dict[str, int]  # member -> its beat
    unreadable: bytes = b""  # what somebody else has written instead of a cursor


class Weight(msgspec.Struct, frozen=True):
    """How much has ever been kept in a part, and its last entry."""

    messages: int
    size_bytes: int
    last: EntryId
    entries: int  # that are still there


# --- callbacks; times are those of the input that brought the answer

OnGreeted = Callable[[ClusterError | None, float], None]  # why not, or None
OnRefused = Callable[[str, float], None]  # the server's words
OnPassed = Callable[[float], None]
OnStanding = Callable[[Standing, float], None]
OnLease = Callable[[Lease, float], None]
OnClaim = Callable[[str, int, float], None]  # the holder, and its beat
OnHeard = Callable[[Position], None]
OnMembers = Callable[[bytes | None, float], None]
OnRecord = Callable[[Record | Unreadable | Denied | None, float], None]
OnLookup = Callable[[Record | Unreadable | Membership | Denied | None, float], None]
OnVersions = Callable[[Sequence[int], float], None]
OnInstalled = Callable[[Sequence[int], Sequence[str], float], None]  # versions, and the last id in each stream
OnRecords = Callable[[dict[bytes, Record], float], None]
OnScanned = Callable[[bytes, Sequence[bytes]], None]  # where to continue, b"0" at the end; topics
OnEnded = Callable[[int], None]
OnCounts = Callable[[list[int]], None]
OnFigures = Callable[[Figures, float], None]
OnDone = Callable[[float], None]
OnKept = Callable[["Outcome", float], None]
OnNumber = Callable[[int, float], None]
OnPage = Callable[[Page | None, float], None]  # None: refused
OnTaken = Callable[[Taken | None, float], None]
OnCursor = Callable[[Cursor | None, float], None]
OnWeight = Callable[[Weight, float], None]
OnTrimmed = Callable[[int], None]
OnKeys = Callable[[list[bytes]], None]
OnAppended = Callable[[bool], None]  # whether the server accepted it
OnPayload = Callable[[bytes, float], None]
OnMatch = Callable[[bytes, bytes, float], None]  # channel, payload


class FrameSink(Protocol):
    """Takes a run of payloads of one channel."""

    def frames(self, payloads: list[bytes], now_s: float) -> None: ...


class ReplySink(Protocol):
    """Takes a run of acknowledgements: for each the number of receivers, or the server's error."""

    def replied(self, receivers: list[int], now_s: float) -> None: ...

    def refused(self, error: str, now_s: float) -> None: ...


class Flow(Protocol):
    """Something with subscriptions or publications on a link: it must know when the link is up and when it is gone."""

    def linked(self, link: ClientLink, now_s: float) -> None: ...

    def unlinked(self, link: ClientLink, now_s: float) -> None: ...


class LeaseWaiter(Protocol):
    """Something that cannot continue before a lease is proven."""

    def leased(self, link: ClientLink, now_s: float) -> None: ...


# --- links


class ServerLink(Protocol):
    """A connection to one server without a socket: the driver writes `take()` and passes what it reads to `feed()`."""

    broker: str
    control: dict[bytes, OnPayload]  # what to do with messages of a channel, one at a time
    heard_s: float  # when bytes were last read, however long they had been waiting

    def greet(self, url: str, credentials: Credentials, name: str, then: OnGreeted) -> None:
        """Agree on the protocol and say who we are, under a name by which the server can tell us from others."""
        ...

    def subscribe(self, *channels: bytes, refused: OnRefused | None = None) -> None:
        """All of them or none. Without `refused`, a refusal makes the connection useless."""
        ...

    def unsubscribe(self, *channels: bytes) -> None:
        """All of them at one moment."""
        ...

    def tell(self, channel: bytes, payload: bytes) -> None:
        """Publish something small whose acknowledgement is not needed."""
        ...

    def append(self, stream: bytes, records_max: int, fields: Sequence[bytes | str | int], then: OnAppended) -> None:
        """Add a record of names and values to a stream that keeps about this many and drops the oldest."""
        ...

    def barrier(self, then: OnPassed) -> None:
        """Call `then` after everything the server did on this connection before it saw this."""
        ...

    @property
    def waiting(self) -> bool:
        """Whether there is something to write."""
        ...

    def take(self) -> bytes:
        """What to write now."""
        ...

    def feed(self, data: bytes, now_s: float) -> None:
        """Handle what was read. Raises LinkRefused if the connection must be closed."""
        ...


class ClientLink(ServerLink, Protocol):
    """The link of a client. The first ones are the client's own notes, which a link keeps for it."""

    up: bool  # greeted, and its server marked ready by its agent
    run_id: str  # of the server
    users: dict[Flow, None]
    proof: Proof  # what was read about the lease
    lease_until_s: float  # until then acknowledgements of this server count
    sound_s: float  # what the server sent before then has been read, and it had its lease then
    asking_members: bool  # a question for the membership is in flight
    logs_version: int  # of the newest membership that was read there
    lease_waiters: dict[LeaseWaiter, None]  # notified when it is next proven
    topics: dict[bytes, FrameSink]  # where runs of messages go
    patterns: dict[bytes, OnMatch]
    watched: set[bytes]  # control channels: their messages go, with the channel, to
    on_watched: OnMatch | None
    unanswered: int  # records asked for; maintained by the link itself

    def psubscribe(self, *patterns: bytes, refused: OnRefused | None = None) -> None: ...

    def punsubscribe(self, *patterns: bytes) -> None: ...

    def publish(self, commands: Sequence[bytes], sink: ReplySink | None) -> None:
        """Commands of `wire.publish_command`; acknowledged in order, and only after the server has run them."""
        ...

    def keep(self, logs: int, keys: tuple[bytes, ...], publisher: int, step: Step, then: OnKept) -> None:
        """Publish a batch and append it to streams, in one atomic step.

        `keys` are those of `logs.keys_of`. Steps of one turn are sent together, after everything else in that turn.
        """
        ...

    def read_number(self, keys: tuple[bytes, bytes], topic: bytes, publisher: int, then: OnNumber) -> None:
        """The last number of this topic and publisher that is kept there; 0 if there is none.

        Sent after everything else in this turn, records that are read included.
        """
        ...

    def read_part(self, keys: PartKeys, after: EntryId, count: int, then: OnPage) -> None:
        """At most this many entries of a part after an id."""
        ...

    def confirm_number(self, keys: tuple[bytes, bytes], topic: bytes, publisher: int, then: OnNumber) -> None:
        """Like `read_number`, and a write."""
        ...

    def touch_part(self, keys: PartKeys, then: OnDone) -> None:
        """A write that changes nothing, behind what was read of a part."""
        ...

    def read_last(self, keys: PartKeys, then: OnPage) -> None:
        """The last entry of a part alone."""
        ...

    def take_cursor(
        self, keys: PartKeys, group: str, member: str, stale: int, new: Cursor | None, *, wanted: bool, then: OnTaken
    ) -> None:
        """Say that the member is there, and own the group's cursor if it is wanted and free, in one atomic step.

        It is free if nobody owns it, if its owner is no longer connected, or if its beat is the stale one. `new` is
        written if there is none.
        """
        ...

    def commit_cursor(self, keys: PartKeys, group: str, cursor: Cursor, *, release: bool, then: OnCursor) -> None:
        """Write the cursor, if its owner is still the same and so is its term; `then` gets what is there now."""
        ...

    def look(self, then: OnStanding) -> None: ...

    def read_lease(self, then: OnLease) -> None: ...

    def read_members(self, then: OnMembers) -> None:
        """The membership, from where no client may write: our password is sent to the addresses in it."""
        ...

    def read_record(self, topic: bytes, membership: Membership, then: OnRecord) -> None:
        """The record of a topic, or that of its first use if this is its directory by the membership.

        Sent after everything else in this turn, so that many topics make one question.
        """
        ...

    def look_up(self, topic: bytes, members: int, then: OnLookup) -> None:
        """The record of a topic, or that of its first use, which this may be.

        The server's membership if its version differs from ours. Many topics of one turn make one question here too.
        """
        ...


class AgentLink(ServerLink, Protocol):
    """The link of an agent to its own server."""

    def claim(self, holder: str, stale: int, then: OnClaim) -> None:
        """Take the claim on the server, in one atomic step, if no other agent has it.

        Another agent has it if it holds its `claim_channel` here and its beat is not the stale one. Success is a beat:
        the beats of one run of the server only grow.
        """
        ...

    def look(self, then: OnStanding) -> None: ...

    def look_up(self, topic: bytes, members: int, then: OnLookup) -> None: ...

    def install(self, term: int, records: Mapping[str, Record], parts: Parts, then: OnInstalled) -> None:
        """Store each record that is not older, and publish it on its topic's control channel, in one atomic step.

        This removes a first use of the topic. If a record is new here, the parts get their marks.

        `then` gets the version now there for each, or -1 where our term is older than the record's; and for each part
        the id of its last entry, empty if it has none.
        """
        ...

    def install_members(self, membership: Membership, then: OnVersions) -> None:
        """The same for the membership."""
        ...

    def find_records(self, wanted: Callable[[bytes], bool], then: OnRecords) -> None:
        """The records of all wanted topics, without those of first uses."""
        ...

    def find_first_uses(self, members: int, wanted: Callable[[bytes], bool], then: OnRecords) -> None:
        """The wanted first uses, if they are no newer than this version of the membership."""
        ...

    def scan_first_uses(self, cursor: bytes, then: OnScanned) -> None:
        """Some topics with a first use, starting with b"0". A round sees at least once whatever is there throughout.

        They are whatever clients have written, so they need not be names of topics.
        """
        ...

    def read_members(self, then: OnMembers) -> None: ...

    def keep_first_uses(self, term: int, first_uses: Mapping[bytes, Record], then: OnRecords) -> None:
        """Store the records of these first uses, with the term, where they have not changed and there is none yet.

        `then` gets all records that there are. From then on `end_unused` leaves the topics alone.
        """
        ...

    def end_unused(self, members: int, topics: Sequence[bytes], then: OnEnded) -> None:
        """Delete the first uses whose topic and control channel have no holder, and anything that is not a first use.

        In one atomic step, and only if this is the version of the membership on the server.
        """
        ...

    def note_grant(self, beat: int) -> None:
        """The leader has granted this beat: clients may read it, and those waiting for it are notified."""
        ...

    def note_heard(self, journal: Position) -> None:
        """Note the journal position the leader's words are based on, for the agent after this one.

        Noted before the leader's orders are carried out.
        """
        ...

    def read_heard(self, then: OnHeard) -> None: ...

    def mark_ready(self, ready: bytes, then: OnDone) -> None: ...

    def admit(self, admission: Admission, then: Callable[[str, float], None]) -> None:
        """See to it that replicas can attach with this admission, and in no other way; `then` gets what is wrong."""
        ...

    def begin_anew(self, then: OnDone) -> None:
        """Cut off every nearcast client and delete everything of nearcast's."""
        ...

    def count(self, channels: Sequence[bytes], then: OnCounts) -> None:
        """How many connections subscribe to each channel, at one moment."""
        ...

    def observe(self, then: OnFigures) -> None: ...

    def weigh(self, keys: PartKeys, then: OnWeight) -> None: ...

    def trim(self, stream: bytes, upto: EntryId, *, exactly: bool, then: OnTrimmed) -> None:
        """Forget the entries up to an id: all of them, or a bounded number, which costs little."""
        ...

    def read_cursors(self, keys: PartKeys, then: Callable[[dict[str, Cursor]], None]) -> None:
        """The cursors of all groups in a part."""
        ...

    def find_keys(self, prefix: bytes, then: OnKeys) -> None: ...

    def forget_keys(self, keys: Sequence[bytes]) -> None: ...

    def age_numbers(self, keys: tuple[bytes, bytes]) -> None:
        """Last numbers that were not used since the last time are forgotten, all others are the older ones now."""
        ...
