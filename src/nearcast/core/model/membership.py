"""The cluster's membership as clients see it: brokers, their addresses, and the ring of directories."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from itertools import islice

import msgspec

from nearcast.core.model.bounds import Bound
from nearcast.core.model.logs import FORMER_MAX, GROUPS_MAX, FormerLife, Log, PartLoad, PartState, life_of
from nearcast.core.model.placement import Placement
from nearcast.core.model.settings import Agreed

# Dynamoth and its successors use about a hundred; the spread of shares falls with the square root of the count.
VIRTUAL_NODES = 128


def position(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


# --- the ring


class Ring:
    """Consistent hashing with virtual nodes; immutable.

    It gives the directory of a topic, which is also where a topic lives before it is placed. Hashes are BLAKE2b, so
    every process on every machine has the same ring.
    """

    __slots__ = ("_owners", "_positions", "brokers", "virtual_nodes")

    def __init__(self, brokers: Iterable[str], virtual_nodes: int = VIRTUAL_NODES) -> None:
        self.brokers = tuple(sorted(set(brokers)))
        self.virtual_nodes = virtual_nodes
        points = sorted(
            (position(b"%b#%d" % (broker.encode(), node)), broker)
            for broker in self.brokers
            for node in range(virtual_nodes)
        )
        self._positions = [point for point, _ in points]
        self._owners = [broker for _, broker in points]

    def owner(self, topic: bytes) -> str:
        """The broker whose virtual node follows the topic's position; the ring must not be empty."""
        index = bisect_right(self._positions, position(topic))
        return self._owners[index % len(self._owners)]


# --- membership


ERA = 1 << 20  # versions; there is room for 4,096 eras in the epochs of frames


class BrokerInfo(msgspec.Struct, frozen=True):
    """A broker, as clients know it."""

    url: str
    site: str = "local"
    joined: int = 0  # the membership version it joined with: the same name may come back as a new broker
    leaving: bool = False  # it no longer carries topics: pattern subscribers let go of it
    began: int = 0  # the membership version with which this run of its server began, and with it its life
    replicas: dict[str, str] = {}  # that may have something of this life: URL -> its run when it was listed; none goes
    admits: str = ""  # the run of the server whose replicas they are
    probes: str = ""  # where its agent answers probes: udp://host:port; empty if it does not

    def same(self, other: BrokerInfo | None) -> bool:
        """Whether the other is this very broker, and not one that joined later under its name."""
        return other is not None and (self.url, self.joined) == (other.url, other.joined)


class Membership(msgspec.Struct, frozen=True):
    """One document on every server, replaced as a whole, with a version that only grows.

    While the ring changes, `previous_ring` is set: topics whose directory differs between the two rings must not be
    used for the first time until it is cleared, because their records are being copied.
    """

    version: int
    term: int
    brokers: dict[str, BrokerInfo]
    ring: tuple[str, ...] = ()
    previous_ring: tuple[str, ...] | None = None
    store_url: str = ""
    cluster: str = ""  # random, drawn when the first membership is written: no two clusters have the same
    timers: Agreed | None = None  # None: its leader's version did not include them, and everyone had the defaults
    logs: tuple[Log, ...] = ()
    logs_version: int = 0  # the version in which they last changed, or in which readers must not mix before and after
    former: tuple[FormerLife, ...] = ()  # lives that have ended, oldest first
    bounds: dict[str, Bound] = {}  # by topic, or by pattern of topics

    @property
    def era(self) -> int:
        """How often the store has lost data and the journal was rebuilt."""
        return self.version // ERA

    def has(self, broker: str, placement: Placement) -> bool:
        """Whether the broker the placement means is a member: not another one that joined later under its name."""
        info = self.brokers.get(broker)
        return info is not None and info.joined <= placement.members

    def life(self, broker: str) -> str:
        """The life of a broker; empty if it is no member."""
        info = self.brokers.get(broker)
        return life_of(broker, info.began) if info is not None else ""

    def former_life(self, life: str) -> FormerLife | None:
        return next((former for former in self.former if former.life == life), None)

    def holder(self, life: str) -> str:
        """Where the parts of a life that has ended are read; empty if they are not held."""
        former = self.former_life(life)
        return former.url if former is not None and former.state is PartState.HELD else ""

    def fate(self, life: str, quorum: int) -> PartState:
        """What has become of the parts of a life that has ended. A log without a quorum does not rely on replicas."""
        former = self.former_life(life)
        return former.state if former is not None and quorum > 1 else PartState.LOST

    def directory(self, topic: bytes) -> str | None:
        """The broker that knows the topic; None while that is open (no ring yet, or the topic is being copied)."""
        if not self.ring:
            return None
        owner = ring_of(self.ring).owner(topic)
        if self.previous_ring and ring_of(self.previous_ring).owner(topic) != owner:
            return None
        return owner

    def has_first_use(self, broker: str, topic: bytes) -> bool:
        """Whether a first use of the topic counts there: any client may write one anywhere.

        While the topic is being copied it still counts where it was.
        """
        ring = self.previous_ring or self.ring
        return bool(ring) and ring_of(ring).owner(topic) == broker


def parted(now: Membership, after: Membership, ended: Iterable[FormerLife] = ()) -> Membership:
    """The next membership, with the lives that end with it.

    If lives end or directories change, a topic may continue elsewhere without a move of its own. Then the version of
    the logs is a new one: readers deliver nothing that was kept with it before everything that was kept earlier.
    """
    if not after.logs:
        return after
    former = (*now.former, *ended)[-FORMER_MAX:]
    changed = ended or (now.ring, now.previous_ring) != (after.ring, after.previous_ring)
    logs_version = after.version if changed else after.logs_version
    return msgspec.structs.replace(after, former=former, logs_version=logs_version)


def ended_with(membership: Membership, life: str, keeps: Mapping[str, PartLoad]) -> Membership:
    """Say how much a life had kept when it ended in good order. What nobody has read is given up, by replicas too."""
    counts = {log: load.total for log, load in keeps.items()}
    unread = {log: dict(islice(load.groups.items(), GROUPS_MAX)) for log, load in keeps.items() if load.groups}
    former = tuple(
        FormerLife(life, each.ended, counts=counts, unread=unread) if each.life == life else each
        for each in membership.former
    )
    return msgspec.structs.replace(membership, former=former)


class Ready(msgspec.Struct, frozen=True):
    """The ready key: which broker this server is, and in which run of the server its records were installed."""

    broker: str
    run_id: str


@lru_cache(maxsize=64)
def ring_of(brokers: tuple[str, ...]) -> Ring:
    """Rings are immutable and take a sort to build: one per list of brokers."""
    return Ring(brokers)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Membership).decode


def encode_membership(membership: Membership) -> bytes:
    return _encode(membership)


def decode_membership(data: bytes) -> Membership:
    return _decode(data)


def read_membership(document: bytes | None) -> Membership | None:
    """The membership on a server, if there is one that can be read."""
    try:
        return _decode(document) if document else None
    except (msgspec.DecodeError, UnicodeError):
        return None
