"""A Valkey server in memory, for the message-level simulator: bytes in, bytes out, with time given from outside.

    commands -> Session.feed -> commands.execute -> outbox of each session -> one `deliver` per session and feed

The protocol relies on the order within one session's stream, so that order is the real server's: replies in the order
of commands, a message where its PUBLISH ran, and a session's own message right after the reply to its PUBLISH (Valkey
holds back pushes to the caller until it has replied). In a real server it is chance which of several subscribers is
served first. Here it is the order of subscribing, so that one seed gives one run; hence dicts, not sets.

Pub/sub speaks RESP3 only. `tests/sim/test_server_conformance.py` compares the rest with a real server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

from hiredis import ProtocolError, Reader

from nearcast.core.model.globs import matcher
from nearcast.core.model.names import RECORDS
from nearcast.sim.valkey.commands import execute
from nearcast.sim.valkey.keys import Keyspace
from nearcast.sim.valkey.replication import Following, Later, Replication
from nearcast.sim.valkey.replies import User, error

_SAMPLE_S = 1.0  # rates are taken over at least this long; the real server averages 16 samples of 100 ms


class Traffic:
    """What a server has read and written, as its INFO reports it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.input_bytes = 0
        self.output_bytes = 0
        self._sampled_s = clock()
        self._sampled_bytes = 0
        self._output_kbps = 0.0

    def output_kbps(self) -> float:
        """KiB per second, despite the name, which is the server's."""
        elapsed_s = self._clock() - self._sampled_s
        if elapsed_s >= _SAMPLE_S:
            self._output_kbps = (self.output_bytes - self._sampled_bytes) / 1024 / elapsed_s
            self._sampled_s += elapsed_s
            self._sampled_bytes = self.output_bytes
        return self._output_kbps


# --- the server


_NOTHING = object()
_MESSAGE = b">3\r\n$7\r\nmessage\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
_PATTERN_MESSAGE = b">4\r\n$8\r\npmessage\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"

Subscribers = dict["Session", None]


class Observer(Protocol):
    """A checker that sees what a server does as it happens. `receivers` is only valid during the call."""

    def published(self, server: SimServer, channel: bytes, payload: bytes, receivers: Collection[Session]) -> None: ...

    def installed(self, server: SimServer, topic: bytes, record: bytes) -> None: ...

    def appended(self, stream: bytes, topic: bytes, batch: bytes) -> None: ...

    def wiped(self, server: SimServer) -> None: ...


class SimServer:
    """The server: its keys, users, sessions, and who holds which channels and patterns."""

    def __init__(
        self,
        name: str,
        clock: Callable[[], float],
        run_id: str,
        password: str = "",
        later: Later = lambda delay_s, action: None,
    ) -> None:
        """`later`: calls something after a time. Without it, no WAIT ever gives up."""
        self.name = name
        self.clock = clock
        self.run_id = run_id
        self.password = password.encode()
        self.users: dict[bytes, User] = {}  # besides the default user, who may do everything
        self.keys = Keyspace(clock)
        self.replication = Replication(later)
        self.following = Following()
        self.default_replicates = True  # whether the default user may attach as a replica
        self.traffic = Traffic(clock)
        self.sessions: dict[Session, None] = {}
        self.channels: dict[bytes, Subscribers] = {}
        self.patterns: dict[bytes, Subscribers] = {}
        self.observers: list[Observer] = []
        self.connections = 0
        self.killed: list[Session] = []  # by CLIENT KILL: the network closes their connections and empties this
        self._unsent: deque[Session] = deque()

    def connect(self, deliver: Callable[[bytes], None]) -> Session:
        self.connections += 1
        session = Session(self, self.connections, deliver)
        self.sessions[session] = None
        return session

    def restart(self, run_id: str) -> None:
        """Start over, like a server that keeps nothing on disk: all data and connections are gone."""
        for session in list(self.sessions):
            session.close()
        self.keys.clear()
        self.replication.clear()
        self.following.clear()
        self.default_replicates = True
        self.users = {
            name: user for name, user in self.users.items() if not user.replicates
        }  # the others are in a file
        self.traffic = Traffic(self.clock)
        self.connections = 0
        self.killed.clear()
        self.run_id = run_id

    # --- publishing

    def publish(self, channel: bytes, payload: bytes) -> int:
        """Returns the number of receivers; a session that gets it by channel and by pattern counts twice."""
        receivers: Collection[Session] = self.channels.get(channel, ())
        if receivers:
            self._push(receivers, _MESSAGE % (len(channel), channel, len(payload), payload))
        if self.patterns:
            receivers = [*receivers, *self._publish_to_patterns(channel, payload)]
        for observer in self.observers:
            observer.published(self, channel, payload, receivers)
        return len(receivers)

    def _publish_to_patterns(self, channel: bytes, payload: bytes) -> list[Session]:
        receivers: list[Session] = []
        for pattern, subscribers in self.patterns.items():
            if matcher(pattern)(channel):
                names = (len(pattern), pattern, len(channel), channel)
                self._push(subscribers, _PATTERN_MESSAGE % (*names, len(payload), payload))
                receivers += subscribers
        return receivers

    def _push(self, subscribers: Collection[Session], push: bytes) -> None:
        unsent = self._unsent
        for session in subscribers:
            outbox = session.outbox
            if not outbox:
                unsent.append(session)
            outbox.append(push)

    def note_installed(self, topic: bytes, record: bytes) -> None:
        for observer in self.observers:
            observer.installed(self, topic, record)

    def note_kept(self, stream: bytes, topic: bytes, batch: bytes) -> None:
        for observer in self.observers:
            observer.appended(stream, topic, batch)

    def note_deleted(self, keys: list[bytes]) -> None:
        if RECORDS in keys:
            for observer in self.observers:
                observer.wiped(self)

    # --- sending

    def send_later(self, session: Session) -> None:
        """The session is about to have output."""
        self._unsent.append(session)

    def flush(self) -> None:
        """Deliver the output of every session, one by one: a `deliver` that feeds again must not change any order."""
        unsent = self._unsent
        while unsent:
            session = unsent.popleft()
            if session.outbox:
                data = b"".join(session.outbox)
                session.outbox.clear()
                self.traffic.output_bytes += len(data)
                session.deliver(data)


class Held:
    """What one session holds in one of the server's two tables, channels or patterns."""

    __slots__ = ("_session", "_table", "names")

    def __init__(self, session: Session, table: dict[bytes, Subscribers]) -> None:
        self._session = session
        self._table = table
        self.names: dict[bytes, None] = {}

    def add(self, name: bytes) -> None:
        self.names[name] = None
        self._table.setdefault(name, {})[self._session] = None

    def drop(self, name: bytes) -> None:
        if name not in self.names:
            return
        del self.names[name]
        subscribers = self._table[name]
        del subscribers[self._session]
        if not subscribers:
            del self._table[name]

    def drop_all(self) -> None:
        for name in list(self.names):
            self.drop(name)


class Session:
    """One connection, seen from the server. It is `closed` after QUIT, a protocol error or a restart."""

    __slots__ = (
        "_reader",
        "authenticated",
        "channels",
        "closed",
        "deliver",
        "held_up",
        "id",
        "name",
        "outbox",
        "patterns",
        "queued",
        "resp3",
        "server",
        "spoiled",
        "user",
        "watched",
        "written",
    )

    def __init__(self, server: SimServer, number: int, deliver: Callable[[bytes], None]) -> None:
        self.server = server
        self.id = number
        self.name = ""
        self.deliver = deliver
        self.resp3 = False
        self.authenticated = not server.password
        self.user: User | None = None  # None is the default user
        self.closed = False
        self.held_up = False  # by a WAIT: commands behind it have not run yet
        self.queued: list[list[bytes]] | None = None  # the commands of a transaction
        self.watched: dict[bytes, bytes | None] = {}
        self.spoiled = False  # a command of the transaction was refused
        self.written = 0  # the last write of this session, as the server counts them
        self.channels = Held(self, server.channels)
        self.patterns = Held(self, server.patterns)
        self.outbox: list[bytes] = []
        self._reader = Reader(notEnoughData=_NOTHING)

    def feed(self, data: bytes) -> None:
        """Execute the complete commands and deliver the results, here and at other sessions."""
        if self.closed:
            return
        self.server.traffic.input_bytes += len(data)
        self.server.send_later(self)
        self._reader.feed(data)
        try:
            self._execute_all()
        except ProtocolError as problem:
            self.outbox.append(error(f"ERR Protocol error: {problem}"))
            self.leave()
        self.server.flush()

    def _execute_all(self) -> None:
        gets, outbox = self._reader.gets, self.outbox
        keys = self.server.keys
        while not self.closed and not self.held_up and (parts := gets()) is not _NOTHING:
            if not isinstance(parts, list):
                raise ProtocolError("expected an array of bulk strings")
            if parts:
                own = len(outbox)
                # What the command pushed to its own session comes after its reply.
                outbox.insert(own, execute(self, parts))
                if changes := keys.take_changes():
                    self.server.replication.wrote(self, changes)

    def resume(self, reply: bytes) -> None:
        """A WAIT is over."""
        if not self.closed:
            self.held_up = False
            self.server.send_later(self)
            self.outbox.append(reply)
            self._execute_all()
            self.server.flush()

    def leave(self) -> None:
        """End the session once its outbox has been delivered."""
        self.closed = True
        self.channels.drop_all()
        self.patterns.drop_all()
        self.server.sessions.pop(self, None)

    def close(self) -> None:
        """The connection is gone: nothing more is delivered."""
        self.leave()
        self.outbox.clear()
