"""The backend for Valkey and Redis: every command and script that nearcast's machines run on a server.

`link.py` has the encoding and keeps the order of one connection, `parts.py` has what is about logs, `replication.py`
what is about replicas, `scripts.py` the atomic steps. The rest of nearcast knows servers only through `backend.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.journal import Position
from nearcast.core.model.membership import Membership, encode_membership, read_membership
from nearcast.core.model.names import CLAIM_KEY, FIRST_USES, GRANTS, MEMBERS, READY_KEY, RECORDS, is_topic
from nearcast.core.model.placement import EPOCH_DIGITS, Record, Unreadable, first_use
from nearcast.core.wire.backend import (
    CLIENT_NAMES,
    Credentials,
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
    OnInstalled,
    OnLease,
    OnLookup,
    OnMembers,
    OnPassed,
    OnRecord,
    OnRecords,
    OnScanned,
    OnStanding,
    OnVersions,
    Parts,
    Standing,
    hello,
    refusal,
)
from nearcast.core.wire.frames import encode_record, read_record
from nearcast.core.wire.lease import Lease
from nearcast.core.wire.link import Link, Reply, is_error
from nearcast.core.wire.replication import ReplicationLink, lines_of
from nearcast.core.wire.scripts import CLAIM, END_UNUSED, FIRST_USE, INSTALL, INSTALL_MEMBERS, KEEP, READ

if TYPE_CHECKING:
    from nearcast.core.wire.backend import AgentLink, ClientLink


SUBSCRIBERS_MAX = 1 << 20  # no server has this many connections, and no address is this low
FIRST_NUDGES = 4
NUDGES_MAX = 1 << 14  # enough for a table of 200,000 subscribers; one that needs more is counted again later


class Headcount:
    """How many connections subscribe to each of some channels, at one moment.

    PUBSUB NUMSUB gives it, but not always. Valkey (seen with 9.1.2) keeps a channel's subscribers in a hash table that
    it resizes bucket by bucket, each time one comes or goes. During a resize, NUMSUB mistakes the table for another
    type and answers with an address instead of a number. A channel with 8, 15, 16, 29 ... 32 subscribers stays like
    this until another one comes or goes. So we subscribe and unsubscribe ourselves until the resize is done: each time
    moves two buckets.
    """

    def __init__(self, link: Link, channels: Sequence[bytes], then: OnCounts) -> None:
        self._link = link
        self._channels = channels
        self._then = then
        self._nudges = FIRST_NUDGES

    def take(self) -> None:
        self._link.send(self._counted, "PUBSUB", "NUMSUB", *self._channels)

    def _counted(self, reply: Reply, now_s: float) -> None:
        if not isinstance(reply, list):
            return
        numbers = [int(number) for number in reply[1::2]]
        counts = zip(self._channels, numbers, strict=True)
        resizing = {channel for channel, number in counts if number > SUBSCRIBERS_MAX}
        if not resizing:
            self._then(numbers)
        elif self._nudges <= NUDGES_MAX:
            for channel in resizing:
                self._nudge(channel)
            self._nudges *= 2
            self.take()

    def _nudge(self, channel: bytes) -> None:
        """Subscribe and unsubscribe. The link drops messages that arrive in between."""
        for _ in range(self._nudges):
            self._link.subscribe(channel)
            self._link.unsubscribe(channel)


# --- links


_READ_MEMBERS = ("HGET", MEMBERS, "document")
_READ_LEASE = ("HMGET", CLAIM_KEY, "beat", "granted")
SCAN_COUNT = 1000  # records looked at in one step: about a millisecond of the server's time
BATCH = 256  # topics in one question for records: takes as long
_NO_FIRST_USE = Denied("a client has written something that is not a first use: the agent deletes it within T_idle")


class ValkeyLink(ReplicationLink):
    """Questions for records that are asked in one turn are sent together, after everything else in that turn.

    So a client with many topics asks few questions; and a record that must be read after a subscription, as the
    protocol requires, is still read after it.
    """

    __slots__ = ("_first_reads", "_lookups", "_reads", "unanswered")

    def __init__(self, broker: str) -> None:
        super().__init__(broker)
        self.unanswered = 0  # records asked for
        self._reads: list[tuple[bytes, OnRecord]] = []
        self._first_reads: list[tuple[bytes, OnRecord]] = []  # where a first use counts
        self._lookups: dict[int, list[tuple[bytes, OnLookup]]] = {}  # by the membership's version

    @property
    def waiting(self) -> bool:
        later = self._keeping or self._reads or self._first_reads or self._lookups or self._numbers
        return bool(self._outbox or later)

    def take(self) -> bytes:
        if self._keeping:
            self._send_steps()
        if self._lookups:
            self._send_lookups()
        if self._reads:
            reads, self._reads = self._reads, []
            self._send_reads(reads, "HMGET", RECORDS)
        if self._first_reads:
            reads, self._first_reads = self._first_reads, []
            self._send_reads(reads, "EVAL", READ, 0)
        if self._numbers:
            self._send_numbers()
        return super().take()

    def _send_reads(self, reads: list[tuple[bytes, OnRecord]], *head: bytes | str | int) -> None:
        for start in range(0, len(reads), BATCH):
            batch = reads[start : start + BATCH]
            self.send(partial(self._were_read, batch), *head, *(topic for topic, _ in batch))

    def _send_lookups(self) -> None:
        lookups, self._lookups = self._lookups, {}
        for members, asked in lookups.items():
            head = ("EVAL", FIRST_USE, 1, FIRST_USES, members)
            for start in range(0, len(asked), BATCH):
                batch = asked[start : start + BATCH]
                self.send(partial(self._were_looked_up, batch), *head, *(topic for topic, _ in batch))

    def _were_read(self, batch: list[tuple[bytes, OnRecord]], reply: Reply, now_s: float) -> None:
        self.unanswered -= len(batch)
        if not isinstance(reply, list):
            for _, then in batch:
                then(Denied(str(reply)), now_s)
            return
        broker = self.broker
        for (_, then), found in zip(batch, reply, strict=True):
            then(_record(found, broker) if found else None, now_s)

    def _were_looked_up(self, batch: list[tuple[bytes, OnLookup]], reply: Reply, now_s: float) -> None:
        self.unanswered -= len(batch)
        if not isinstance(reply, list):
            denied = Denied(str(reply))
            for _, then in batch:
                then(denied, now_s)
        elif reply[0] == b"found":
            broker = self.broker
            for (_, then), found in zip(batch, reply[1:], strict=True):
                then(_record(found, broker) if found else _NO_FIRST_USE, now_s)
        else:
            membership = read_membership(reply[1])  # None: it is read again when it has changed
            for _, then in batch:
                then(membership, now_s)

    # --- everyone

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

    def look_up(self, topic: bytes, members: int, then: OnLookup) -> None:
        self.unanswered += 1
        self._lookups.setdefault(members, []).append((topic, then))

    # --- clients

    def read_lease(self, then: OnLease) -> None:
        self.send(lambda reply, now_s: then(_lease_of(reply), now_s), *_READ_LEASE)

    def read_members(self, then: OnMembers) -> None:
        self.send(lambda reply, now_s: then(reply if isinstance(reply, bytes) else None, now_s), *_READ_MEMBERS)

    def read_record(self, topic: bytes, membership: Membership, then: OnRecord) -> None:
        self.unanswered += 1
        reads = self._first_reads if membership.has_first_use(self.broker, topic) else self._reads
        reads.append((topic, then))

    # --- agents

    def claim(self, holder: str, stale: int, then: OnClaim) -> None:
        def claimed(reply: Reply, now_s: float) -> None:
            if not isinstance(reply, list):
                raise LinkRefused(f"the claim on the server is refused: {reply}")
            then(reply[0].decode(), int(reply[1]), now_s)

        self.send(claimed, "EVAL", CLAIM, 1, CLAIM_KEY, holder, stale)

    def install(self, term: int, records: Mapping[str, Record], parts: Parts, then: OnInstalled) -> None:
        def installed(reply: Reply, now_s: float) -> None:
            if isinstance(reply, list):
                versions, ends = reply[: len(records)], reply[len(records) :]
                then([int(version) for version in versions], [end.decode() for end in ends], now_s)

        keys = (RECORDS, FIRST_USES, parts.totals, *parts.marks)
        arguments: list[bytes | str | int] = [term, *parts.marks.values()]
        for topic, record in records.items():
            arguments += [topic, record.version, encode_record(record)]
        self.send(installed, "EVAL", INSTALL, len(keys), *keys, *arguments)

    def install_members(self, membership: Membership, then: OnVersions) -> None:
        document = encode_membership(membership)
        arguments = (membership.version, document, membership.logs_version)
        self.send(partial(_installed, then), "EVAL", INSTALL_MEMBERS, 1, MEMBERS, *arguments)

    def find_records(self, wanted: Callable[[bytes], bool], then: OnRecords) -> None:
        self._find(RECORDS, wanted, lambda found, now_s: then(_records(found.items()), now_s))

    def find_first_uses(self, members: int, wanted: Callable[[bytes], bool], then: OnRecords) -> None:
        def found_all(found: dict[bytes, bytes], now_s: float) -> None:
            versions = {topic: int(first) for topic, first in found.items() if is_topic(topic) and _is_version(first)}
            then({topic: first_use(first, self.broker) for topic, first in versions.items() if first <= members}, now_s)

        self._find(FIRST_USES, wanted, found_all)

    def _find(
        self, key: bytes, wanted: Callable[[bytes], bool], then: Callable[[dict[bytes, bytes], float], None]
    ) -> None:
        found: dict[bytes, bytes] = {}

        def step(reply: Reply, now_s: float) -> None:
            if not isinstance(reply, list):
                return
            cursor, pairs = reply
            found.update((topic, value) for topic, value in zip(pairs[::2], pairs[1::2], strict=True) if wanted(topic))
            if cursor == b"0":
                then(found, now_s)
            else:
                self.send(step, "HSCAN", key, cursor, "COUNT", SCAN_COUNT)

        self.send(step, "HSCAN", key, "0", "COUNT", SCAN_COUNT)

    def scan_first_uses(self, cursor: bytes, then: OnScanned) -> None:
        def scanned(reply: Reply, now_s: float) -> None:
            if isinstance(reply, list):
                then(reply[0], reply[1][::2])

        self.send(scanned, "HSCAN", FIRST_USES, cursor, "COUNT", SCAN_COUNT)

    def keep_first_uses(self, term: int, first_uses: Mapping[bytes, Record], then: OnRecords) -> None:
        def kept(reply: Reply, now_s: float) -> None:
            if isinstance(reply, list):
                then(_records(zip(first_uses, reply, strict=True)), now_s)

        arguments: list[bytes | int] = []
        for topic, record in first_uses.items():
            arguments += [topic, record.epoch, encode_record(msgspec.structs.replace(record, term=term))]
        self.send(kept, "EVAL", KEEP, 2, RECORDS, FIRST_USES, *arguments)

    def end_unused(self, members: int, topics: Sequence[bytes], then: OnEnded) -> None:
        def ended(reply: Reply, now_s: float) -> None:
            then(int(reply[0]) if isinstance(reply, list) else 0)

        self.send(ended, "EVAL", END_UNUSED, 1, FIRST_USES, members, *topics)

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
                self.send(partial(_done, then), "DEL", RECORDS, FIRST_USES, READY_KEY, MEMBERS)

        self.send(None, "DEL", READY_KEY)  # first, so that no client that connects now is let in
        self.send(listed, "CLIENT", "LIST")

    def count(self, channels: Sequence[bytes], then: OnCounts) -> None:
        Headcount(self, channels, then).take()

    def observe(self, then: OnFigures) -> None:
        def observed(reply: Reply, now_s: float) -> None:
            if isinstance(reply, bytes):
                then(figures_of(reply), now_s)

        self.send(observed, "INFO")


@lru_cache(maxsize=256)
def _record(found: bytes, broker: str) -> Record | Unreadable:
    """A record, or the version of a first use: the server it is on says where the topic is.

    Many topics have the same one.
    """
    return read_record(found) if found.startswith(b"{") else first_use(int(found), broker)


def _records(found: Iterable[tuple[bytes, bytes]]) -> dict[bytes, Record]:
    """The records that exist and can be read: a newer version may have written some."""
    read = ((topic, read_record(value)) for topic, value in found if value)
    return {topic: record for topic, record in read if isinstance(record, Record)}


def _is_version(first: bytes) -> bool:
    return first.isdigit() and len(first) <= EPOCH_DIGITS


def _lease_of(reply: Reply) -> Lease:
    if not isinstance(reply, list):
        raise LinkRefused(f"the server does not show its lease ({reply}): give the user the rights in docs/security.md")
    beat, granted = (int(number or 0) for number in reply)
    return Lease(beat, granted)


def _installed(then: OnVersions, reply: Reply, now_s: float) -> None:
    if isinstance(reply, list):
        then([int(version) for version in reply], now_s)


def _done(then: OnDone, reply: Reply, now_s: float) -> None:
    if not is_error(reply):
        then(now_s)


def _client_ids(listing: str) -> list[str]:
    """Ids of our clients' connections in a CLIENT LIST, without agents and consoles."""
    ids = []
    for line in listing.splitlines():
        fields = dict(field.split("=", 1) for field in line.split(" ") if "=" in field)
        if fields.get("name", "").startswith(CLIENT_NAMES):
            ids.append(fields["id"])
    return ids


def figures_of(info: Reply) -> Figures:
    """The figures in an INFO; whatever a server does not report is 0."""
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
        memory_max_bytes=int(figure("maxmemory")),
    )


if TYPE_CHECKING:
    _for_clients: type[ClientLink] = ValkeyLink
    _for_agents: type[AgentLink] = ValkeyLink
