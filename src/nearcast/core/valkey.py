"""The backend for Valkey and Redis: every command and script that nearcast's machines run on a server.

`link.py` keeps the order of one connection, `scripts.py` has the atomic steps, `headcount.py` a way around a defect of
Valkey's counts, `resp.py` the encoding. Everything else of nearcast knows servers by `backend.py` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from nearcast.core.backend import (
    Denied,
    Figures,
    LinkRefused,
    OnAppended,
    OnClaim,
    OnCounts,
    OnDone,
    OnEnded,
    OnFigures,
    OnGreeted,
    OnHeard,
    OnLease,
    OnLookup,
    OnMembers,
    OnPassed,
    OnRecord,
    OnRecords,
    OnScanned,
    OnStanding,
    OnVersions,
    Standing,
)
from nearcast.core.greeting import CLIENT_NAMES, Credentials, hello, refusal
from nearcast.core.headcount import Headcount
from nearcast.core.journal import Position
from nearcast.core.link import Link, Reply, is_error
from nearcast.core.membership import Membership, encode_membership, read_membership
from nearcast.core.names import CLAIM_KEY, GRANTS, MEMBERS, READY_KEY, RECORDS, is_topic
from nearcast.core.proof import Lease
from nearcast.core.record import Record, Unreadable
from nearcast.core.scripts import CLAIM, END_UNUSED, FIRST_USE, INSTALL, INSTALL_MEMBERS, KEEP
from nearcast.core.wire import encode_record, read_record

if TYPE_CHECKING:
    from nearcast.core.backend import AgentLink, ClientLink

_READ_MEMBERS = ("HGET", MEMBERS, "document")
_READ_LEASE = ("HMGET", CLAIM_KEY, "beat", "granted")
SCAN_COUNT = 1000  # records looked at in one step: about a millisecond of the server's time
BATCH = 256  # topics in one question for records: as long


class ValkeyLink(Link):
    """Questions for records that are asked in one turn travel together, behind all else of that turn.

    So a client with many topics asks few questions; and a record that is read after a subscription, as the protocol
    wants it, is still read after it.
    """

    __slots__ = ("_lookups", "_reads", "unanswered")

    def __init__(self, broker: str) -> None:
        super().__init__(broker)
        self.unanswered = 0  # records asked for
        self._reads: list[tuple[bytes, OnRecord]] = []
        self._lookups: dict[tuple[int, Record], list[tuple[bytes, OnLookup]]] = {}

    @property
    def waiting(self) -> bool:
        return bool(self._outbox or self._reads or self._lookups)

    def take(self) -> bytes:
        if self._lookups:
            self._send_lookups()
        if self._reads:
            self._send_reads()
        return super().take()

    def _send_reads(self) -> None:
        reads, self._reads = self._reads, []
        for start in range(0, len(reads), BATCH):
            batch = reads[start : start + BATCH]
            self.send(partial(self._were_read, batch), "HMGET", RECORDS, *(topic for topic, _ in batch))

    def _send_lookups(self) -> None:
        lookups, self._lookups = self._lookups, {}
        for (members, first_use), asked in lookups.items():
            head = ("EVAL", FIRST_USE, 1, RECORDS, members, encode_record(first_use))
            for start in range(0, len(asked), BATCH):
                batch = asked[start : start + BATCH]
                self.send(partial(self._were_looked_up, batch), *head, *(topic for topic, _ in batch))

    def _were_read(self, batch: list[tuple[bytes, OnRecord]], reply: Reply, now_s: float) -> None:
        self.unanswered -= len(batch)
        if not isinstance(reply, list):
            for _, then in batch:
                then(Denied(str(reply)), now_s)
            return
        for (_, then), record in zip(batch, reply, strict=True):
            found = read_record(record) if record is not None else None
            then(None if isinstance(found, Unreadable) and found.rubbish else found, now_s)

    def _were_looked_up(self, batch: list[tuple[bytes, OnLookup]], reply: Reply, now_s: float) -> None:
        self.unanswered -= len(batch)
        if not isinstance(reply, list):
            denied = Denied(str(reply))
            for _, then in batch:
                then(denied, now_s)
        elif reply[0] == b"records":
            for (_, then), record in zip(batch, reply[1:], strict=True):
                then(read_record(record), now_s)
        else:
            membership = read_membership(reply[1])  # None: it is read again when it has changed
            for _, then in batch:
                then(membership, now_s)

    # --- everybody

    def greet(self, url: str, credentials: Credentials, name: str, then: OnGreeted) -> None:
        def greeted(reply: Reply, now_s: float) -> None:
            then(refusal(url, str(reply)) if is_error(reply) else None, now_s)

        self.send(greeted, *hello(credentials, name))

    def append(self, stream: bytes, records_max: int, fields: Sequence[bytes | str | int], then: OnAppended) -> None:
        # "~" lets the server drop whole nodes of the stream, which costs it next to nothing.
        limit = ("MAXLEN", "~", records_max)
        self.send(lambda reply, _: then(not is_error(reply)), "XADD", stream, *limit, "*", *fields)

    def barrier(self, then: OnPassed) -> None:
        self.send(lambda _, now_s: then(now_s), "PING")

    def look(self, then: OnStanding) -> None:
        found: list[Reply] = []

        def looked(info: Reply, now_s: float) -> None:
            ready, document = (reply if isinstance(reply, bytes) else None for reply in found[:2])
            run_id = lines_of(info).get("run_id", "")
            then(Standing(run_id=run_id, ready=ready, membership=document, lease=_lease_of(found[2])), now_s)

        self.send(lambda reply, _: found.append(reply), "GET", READY_KEY)
        self.send(lambda reply, _: found.append(reply), *_READ_MEMBERS)
        self.send(lambda reply, _: found.append(reply), *_READ_LEASE)
        self.send(looked, "INFO", "server")

    def look_up(self, topic: bytes, members: int, first_use: Record, then: OnLookup) -> None:
        self.unanswered += 1
        self._lookups.setdefault((members, first_use), []).append((topic, then))

    # --- clients

    def read_lease(self, then: OnLease) -> None:
        self.send(lambda reply, now_s: then(_lease_of(reply), now_s), *_READ_LEASE)

    def read_members(self, then: OnMembers) -> None:
        self.send(lambda reply, now_s: then(reply if isinstance(reply, bytes) else None, now_s), *_READ_MEMBERS)

    def read_record(self, topic: bytes, then: OnRecord) -> None:
        self.unanswered += 1
        self._reads.append((topic, then))

    # --- agents

    def claim(self, holder: str, stale: int, then: OnClaim) -> None:
        def claimed(reply: Reply, now_s: float) -> None:
            if not isinstance(reply, list):
                raise LinkRefused(f"the claim on the server is refused: {reply}")
            then(reply[0].decode(), int(reply[1]), now_s)

        self.send(claimed, "EVAL", CLAIM, 1, CLAIM_KEY, holder, stale)

    def install(self, term: int, records: Mapping[str, Record], then: OnVersions) -> None:
        arguments: list[bytes | str | int] = []
        for topic, record in records.items():
            arguments += [topic, record.version, encode_record(record)]
        self.send(partial(_installed, then), "EVAL", INSTALL, 1, RECORDS, term, *arguments)

    def install_members(self, membership: Membership, then: OnVersions) -> None:
        document = encode_membership(membership)
        self.send(partial(_installed, then), "EVAL", INSTALL_MEMBERS, 1, MEMBERS, membership.version, document)

    def find_records(self, wanted: Callable[[bytes], bool], then: OnRecords) -> None:
        found: dict[bytes, bytes] = {}

        def step(reply: Reply, now_s: float) -> None:
            if not isinstance(reply, list):
                return
            cursor, pairs = reply
            found.update((topic, value) for topic, value in zip(pairs[::2], pairs[1::2], strict=True) if wanted(topic))
            if cursor != b"0":
                self.send(step, "HSCAN", RECORDS, cursor, "COUNT", SCAN_COUNT)
                return
            then(_records(found.items()), now_s)

        self.send(step, "HSCAN", RECORDS, "0", "COUNT", SCAN_COUNT)

    def scan_records(self, cursor: bytes, then: OnScanned) -> None:
        def scanned(reply: Reply, now_s: float) -> None:
            if isinstance(reply, list):
                then(reply[0], _records(zip(reply[1][::2], reply[1][1::2], strict=True)))

        self.send(scanned, "HSCAN", RECORDS, cursor, "COUNT", SCAN_COUNT)

    def keep_records(self, term: int, topics: Sequence[bytes], then: OnRecords) -> None:
        def kept(reply: Reply, now_s: float) -> None:
            if isinstance(reply, list):
                then(_records(zip(topics, reply, strict=True)), now_s)

        self.send(kept, "EVAL", KEEP, 1, RECORDS, term, *topics)

    def end_unused(self, members: int, topics: Sequence[bytes], then: OnEnded) -> None:
        def ended(reply: Reply, now_s: float) -> None:
            then(int(reply[0]) if isinstance(reply, list) else 0)

        self.send(ended, "EVAL", END_UNUSED, 1, RECORDS, members, *topics)

    def note_grant(self, beat: int) -> None:
        self.send(None, "HSET", CLAIM_KEY, "granted", beat)
        self.tell(GRANTS, b"%d" % beat)

    def note_heard(self, journal: Position) -> None:
        self.send(None, "HSET", CLAIM_KEY, "loss", journal[0], "journal", journal[1])

    def read_heard(self, then: OnHeard) -> None:
        def read(reply: Reply, now_s: float) -> None:
            if isinstance(reply, list):
                loss, version = (int(number or 0) for number in reply)
                then((loss, version))

        self.send(read, "HMGET", CLAIM_KEY, "loss", "journal")

    def mark_ready(self, ready: bytes, then: OnDone) -> None:
        self.send(partial(_done, then), "SET", READY_KEY, ready)

    def begin_anew(self, then: OnDone) -> None:
        def listed(reply: Reply, now_s: float) -> None:
            if isinstance(reply, bytes):
                for connection in _client_ids(reply.decode(errors="replace")):
                    self.send(None, "CLIENT", "KILL", "ID", connection)
                self.send(partial(_done, then), "DEL", RECORDS, READY_KEY, MEMBERS)

        self.send(None, "DEL", READY_KEY)  # first, so that nobody who comes meanwhile is let in
        self.send(listed, "CLIENT", "LIST")

    def count(self, channels: Sequence[bytes], then: OnCounts) -> None:
        Headcount(self, channels, then).take()

    def observe(self, then: OnFigures) -> None:
        def observed(reply: Reply, now_s: float) -> None:
            if isinstance(reply, bytes):
                then(figures_of(reply), now_s)

        self.send(observed, "INFO")


def _records(found: Iterable[tuple[bytes, bytes]]) -> dict[bytes, Record]:
    """Those that can be read, of topics that can be: any client may have written anything under any name."""
    read = ((topic, read_record(value)) for topic, value in found if is_topic(topic))
    return {topic: record for topic, record in read if isinstance(record, Record)}


def _lease_of(reply: Reply) -> Lease:
    if not isinstance(reply, list):
        raise LinkRefused(f"the server does not show its lease ({reply}): give the user its rights")
    beat, granted = (int(number or 0) for number in reply)
    return Lease(beat, granted)


def _installed(then: OnVersions, reply: Reply, now_s: float) -> None:
    if isinstance(reply, list):
        then([int(version) for version in reply], now_s)


def _done(then: OnDone, reply: Reply, now_s: float) -> None:
    if not is_error(reply):
        then(now_s)


def _client_ids(listing: str) -> list[str]:
    """Ids of our clients' connections in a CLIENT LIST, agents and consoles excepted."""
    ids = []
    for line in listing.splitlines():
        fields = dict(field.split("=", 1) for field in line.split(" ") if "=" in field)
        if fields.get("name", "").startswith(CLIENT_NAMES):
            ids.append(fields["id"])
    return ids


def lines_of(info: Reply) -> dict[str, str]:
    """The lines `name:value` of an INFO; none if it was refused."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else ""
    return {name: value for name, colon, value in (line.partition(":") for line in text.splitlines()) if colon}


def figures_of(info: Reply) -> Figures:
    """The figures in an INFO; what a server does not tell is 0."""
    lines = lines_of(info)

    def figure(name: str) -> float:
        try:
            return float(lines.get(name, 0.0))
        except ValueError:
            return 0.0

    return Figures(
        output_bytes=figure("total_net_output_bytes"),
        input_bytes=figure("total_net_input_bytes"),
        cpu_s=figure("used_cpu_sys") + figure("used_cpu_user"),
        connections=int(figure("connected_clients")),
        memory_bytes=int(figure("used_memory")),
    )


if TYPE_CHECKING:
    _for_clients: type[ClientLink] = ValkeyLink
    _for_agents: type[AgentLink] = ValkeyLink
