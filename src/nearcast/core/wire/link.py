"""A link: one RESP3 connection to one server, without the socket.

The driver writes what `take()` returns and passes what it reads to `feed()`. In between, a link keeps the two orders
the protocol relies on: replies come back in the order of the commands, and pushes are in the same stream. So whatever a
server did before a marker is seen before the marker.

Hot path: runs of messages on one topic, and runs of replies to PUBLISH, are handed over as one list each. Everything
else is handled one by one, after the runs before it. A reply is matched to its command by position alone; no object is
created per message.

Commands are encoded here as RESP bytes. Replies are parsed by hiredis.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from hiredis import ProtocolError, PushNotification, Reader, ReplyError

from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire.backend import (
    Flow,
    FrameSink,
    LeaseWaiter,
    LinkRefused,
    OnMatch,
    OnPayload,
    OnRefused,
    ReplySink,
)
from nearcast.core.wire.lease import Proof

# --- RESP commands


def command(*parts: bytes | str | int) -> bytes:
    """One command as a RESP array of bulk strings."""
    out = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogateescape")
        out.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(out)


def publish_prefix(channel: bytes, payload_bytes: int) -> bytes:
    """A PUBLISH command up to its payload, which is followed by CR LF."""
    return b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$%d\r\n" % (len(channel), channel, payload_bytes)


Reply = object
OnReply = Callable[[Reply, float], None]

_NOTHING = object()


# --- links


class _Run:
    """This many PUBLISH replies in a row belong to one sink."""

    __slots__ = ("count", "sink")

    def __init__(self, sink: ReplySink | None, count: int) -> None:
        self.sink = sink
        self.count = count


class _Confirm:
    """This many confirmations of one (p)(un)subscribe command, which come as pushes; a refusal is a single error."""

    __slots__ = ("count", "refused")

    def __init__(self, count: int, refused: OnRefused | None) -> None:
        self.count = count
        self.refused = refused


class Link:
    """One connection: what to write, and what to do with what is read."""

    __slots__ = (
        "_outbox",
        "_pending",
        "_reader",
        "asking_members",
        "broker",
        "control",
        "heard_s",
        "lease_until_s",
        "lease_waiters",
        "logs_version",
        "on_watched",
        "patterns",
        "proof",
        "run_id",
        "sound_s",
        "topics",
        "up",
        "users",
        "watched",
    )

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.up = False  # handshake done, server marked ready by its agent
        self.run_id = ""  # of the server, once it is up
        self.topics: dict[bytes, FrameSink] = {}
        self.control: dict[bytes, OnPayload] = {}
        self.watched: set[bytes] = set()
        self.on_watched: OnMatch | None = None
        self.patterns: dict[bytes, OnMatch] = {}
        self.heard_s = 0.0  # when bytes were last read, however long they had been waiting
        self.sound_s = 0.0  # what the server sent before then has been read, and it had its lease then
        self.proof = Proof()  # what was read about the lease
        self.lease_until_s = NEVER_S  # until then replies of this server count
        self.lease_waiters: dict[LeaseWaiter, None] = {}
        self.asking_members = False  # a question for the membership is in flight
        self.logs_version = 0  # of the newest membership that was read there
        self.users: dict[Flow, None] = {}  # ordered, so that one seed gives one run
        self._outbox: list[bytes] = []
        self._pending: deque[_Run | _Confirm | OnReply] = deque()
        self._reader = Reader(notEnoughData=_NOTHING)

    # --- writing

    def send(self, on_reply: OnReply | None, *parts: bytes | str | int) -> None:
        """A command with one reply."""
        self._outbox.append(command(*parts))
        self._pending.append(on_reply or _ignore)

    def subscribe(self, *channels: bytes, refused: OnRefused | None = None) -> None:
        self._subscription(b"SUBSCRIBE", channels, refused)

    def unsubscribe(self, *channels: bytes) -> None:
        self._subscription(b"UNSUBSCRIBE", channels)

    def psubscribe(self, *patterns: bytes, refused: OnRefused | None = None) -> None:
        self._subscription(b"PSUBSCRIBE", patterns, refused)

    def punsubscribe(self, *patterns: bytes) -> None:
        self._subscription(b"PUNSUBSCRIBE", patterns)

    def _subscription(self, verb: bytes, channels: tuple[bytes, ...], refused: OnRefused | None = None) -> None:
        if channels:
            self._outbox.append(command(verb, *channels))
            self._pending.append(_Confirm(len(channels), refused))

    def publish(self, commands: Sequence[bytes], sink: ReplySink | None) -> None:
        """Ready-made PUBLISH commands whose replies go to the sink."""
        self._outbox += commands
        pending = self._pending
        if pending:
            last = pending[-1]
            if type(last) is _Run and last.sink is sink:
                last.count += len(commands)
                return
        pending.append(_Run(sink, len(commands)))

    def tell(self, channel: bytes, payload: bytes) -> None:
        """PUBLISH something small whose reply is not needed."""
        self.publish((command(b"PUBLISH", channel, payload),), None)

    def take(self) -> bytes:
        """What to write now."""
        data = b"".join(self._outbox)
        self._outbox.clear()
        return data

    @property
    def waiting(self) -> bool:
        """Whether there is something to write."""
        return bool(self._outbox)

    # --- reading

    def feed(self, data: bytes, now_s: float) -> None:
        """Handle what was read. Raises LinkRefused if the connection must be closed."""
        try:
            self._read(data, now_s)
        except ProtocolError as error:
            problem = f"the server does not speak RESP ({error})"
            raise LinkRefused(f"{problem}: is the address right? With TLS use rediss://") from error

    def _read(self, data: bytes, now_s: float) -> None:
        reader = self._reader
        reader.feed(data)
        gets = reader.gets
        topics = self.topics
        receivers: list[int] = []
        run: list[bytes] = []
        run_channel: bytes | None = None
        while (reply := gets()) is not _NOTHING:
            kind = type(reply)
            if kind is int:
                receivers.append(reply)
                continue
            if kind is PushNotification and reply[0] == b"message":
                channel = reply[1]
                if channel == run_channel:
                    run.append(reply[2])
                    continue
                if channel in topics:
                    if run:
                        self._frames(run_channel, run, now_s)
                    run_channel, run = channel, [reply[2]]
                    continue
            # Order matters from here on: first what came before.
            if run:
                self._frames(run_channel, run, now_s)
                run_channel, run = None, []
            if receivers:
                self._settle(receivers, now_s)
                receivers = []
            if kind is PushNotification:
                self._push(reply, now_s)
            else:
                self._reply(reply, now_s)
        if run:
            self._frames(run_channel, run, now_s)
        if receivers:
            self._settle(receivers, now_s)
        self.heard_s = now_s

    def _frames(self, channel: bytes | None, run: list[bytes], now_s: float) -> None:
        sink = self.topics.get(channel or b"")
        if sink is not None:  # it may have been detached by something handled in this same batch
            sink.frames(run, now_s)

    def _settle(self, receivers: list[int], now_s: float) -> None:
        """Match a run of integer replies to the commands they answer."""
        pending = self._pending
        done, total = 0, len(receivers)
        while done < total:
            head = self._head()
            if type(head) is _Run:
                count = min(head.count, total - done)
                head.count -= count
                if not head.count:
                    pending.popleft()
                if head.sink is not None:
                    head.sink.replied(receivers[done : done + count], now_s)
                done += count
            else:
                self._reply(receivers[done], now_s)
                done += 1

    def _head(self) -> _Run | _Confirm | OnReply:
        """What the next answer belongs to."""
        if not self._pending:
            raise LinkRefused("the server sent an unexpected answer: is there a proxy in between?")
        return self._pending[0]

    def _reply(self, reply: Reply, now_s: float) -> None:
        head = self._head()
        if isinstance(head, _Confirm):
            if head.refused is None or not is_error(reply):
                raise LinkRefused(
                    f"the server refused a subscription ({reply}): give the user the rights in docs/security.md"
                )
            self._pending.popleft()
            head.refused(str(reply), now_s)
            return
        if isinstance(head, _Run):
            head.count -= 1
            if not head.count:
                self._pending.popleft()
            if head.sink is not None:
                head.sink.refused(str(reply), now_s)
            return
        self._pending.popleft()
        head(reply, now_s)

    def _push(self, push: list[bytes], now_s: float) -> None:
        kind = push[0]
        if kind == b"message":
            handler = self.control.get(push[1])
            if handler is not None:
                handler(push[2], now_s)
            elif push[1] in self.watched and self.on_watched is not None:
                self.on_watched(push[1], push[2], now_s)
        elif kind == b"pmessage":
            pattern = self.patterns.get(push[1])
            if pattern is not None:
                pattern(push[2], push[3], now_s)
        elif kind in _CONFIRMATIONS:
            self._confirmed()

    def _confirmed(self) -> None:
        head = self._head()
        if type(head) is not _Confirm:
            raise LinkRefused("the server confirmed a subscription not asked for: is there a proxy in between?")
        head.count -= 1
        if not head.count:
            self._pending.popleft()


_CONFIRMATIONS = frozenset((b"subscribe", b"unsubscribe", b"psubscribe", b"punsubscribe"))


def _ignore(reply: Reply, now_s: float) -> None:
    pass


def is_error(reply: Reply) -> bool:
    return isinstance(reply, ReplyError)
