"""Replicas of a simulated server: what was written, how far each replica has it, who waits for them, whom it follows.

A server that has replicas counts its writes. Every command that changes something is one of them, and what it changed
is handed to all replicas, as values of keys. How long that takes, and what happens when a connection breaks, is up to
`sim/replicas.py`; here is what a server does about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nearcast.sim.valkey.replies import OK, SYNTAX, CommandError, User, integer, parse_integer

if TYPE_CHECKING:
    from nearcast.sim.valkey.keys import Changes
    from nearcast.sim.valkey.server import Session

Later = Callable[[float, Callable[[], None]], None]


class Follower(Protocol):
    """A replica's connection to the server it follows."""

    def changed(self, offset: int, changes: Changes) -> None: ...

    def ended(self) -> None:
        """The server has closed the connection."""
        ...


class _Wait(NamedTuple):
    """A session that is held up by a WAIT."""

    session: Session
    replicas: int


class Replication:
    """The replicas of one server. Only those that are connected count, whoever they are."""

    def __init__(self, later: Later) -> None:
        self.offset = 0  # writes so far, since it first had a replica
        self._later = later
        self._acknowledged: dict[Follower, int] = {}
        self._waits: list[_Wait] = []

    @property
    def followers(self) -> list[Follower]:
        return list(self._acknowledged)

    def attach(self, follower: Follower) -> None:
        self._acknowledged[follower] = -1

    def detach(self, follower: Follower) -> None:
        self._acknowledged.pop(follower, None)

    def cut_off(self) -> int:
        """Close the connections of all replicas. Returns how many there were."""
        followers = self.followers
        self._acknowledged.clear()
        for follower in followers:
            follower.ended()
        return len(followers)

    def acknowledge(self, follower: Follower, offset: int) -> None:
        """A connected replica has everything up to here."""
        if follower in self._acknowledged:
            self._acknowledged[follower] = max(offset, self._acknowledged[follower])
            for wait in list(self._waits):
                if self._count(wait.session) >= wait.replicas:
                    self._end(wait)

    def wrote(self, session: Session, changes: Changes) -> None:
        self.offset += 1
        session.written = self.offset
        for follower in self.followers:
            follower.changed(self.offset, changes)

    def wait(self, session: Session, replicas: int, limit_s: float) -> bytes | None:
        """The answer; None if it comes later, and the session is held up until then."""
        found = self._count(session)
        if found >= replicas:
            return integer(found)
        wait = _Wait(session, replicas)
        self._waits.append(wait)
        if limit_s:
            self._later(limit_s, lambda: self._end(wait))
        return None

    def _count(self, session: Session) -> int:
        return sum(offset >= session.written for offset in self._acknowledged.values())

    def _end(self, wait: _Wait) -> None:
        if wait in self._waits:
            self._waits.remove(wait)
            wait.session.resume(integer(self._count(wait.session)))

    def clear(self) -> None:
        """The server has lost its memory."""
        self.offset = 0
        self._waits.clear()
        self.cut_off()


# --- the other side


class Following:
    """Whom a server follows, as which user, and how far it has come."""

    def __init__(self) -> None:
        self.address: tuple[bytes, int] | None = None
        self.user = b""
        self.password = b""
        self.in_step = False
        self.offset = 0
        self.left_at = -1  # how far it had come when it stopped
        self.changed: Callable[[], None] = lambda: None  # called when it shall follow another server, or none

    def follow(self, address: tuple[bytes, int]) -> None:
        if address != self.address:
            self.address, self.in_step = address, False
            self.changed()

    def stop(self) -> None:
        if self.address is not None:
            self.address, self.in_step, self.left_at = None, False, self.offset
            self.changed()

    def clear(self) -> None:
        """The server has lost its memory, and its settings."""
        self.address, self.user, self.password = None, b"", b""
        self.in_step, self.offset, self.left_at = False, 0, -1
        self.changed()

    def info(self, offset: int) -> dict[str, object]:
        """What INFO says."""
        if self.address is None:
            said = {"role": "master", "master_repl_offset": offset}
        else:
            host, port = self.address
            up = "up" if self.in_step else "down"
            said = {"role": "slave", "master_host": host.decode(), "master_port": port, "master_link_status": up}
        return {**said, "second_repl_offset": self.left_at + 1 if self.left_at >= 0 else -1}


# --- commands


def wait(session: Session, arguments: list[bytes]) -> bytes:
    """WAIT replicas milliseconds"""
    replicas, limit_ms = parse_integer(arguments[0]), _milliseconds(arguments[1])
    if limit_ms < 0:
        raise CommandError("ERR timeout is negative")
    answer = session.server.replication.wait(session, replicas, limit_ms / 1000)
    if answer is None:
        session.held_up = True
    return answer or b""


def _milliseconds(argument: bytes) -> int:
    try:
        return parse_integer(argument)
    except CommandError:
        raise CommandError("ERR timeout is not an integer or out of range") from None


def replicaof(session: Session, arguments: list[bytes]) -> bytes:
    """REPLICAOF host port, or REPLICAOF NO ONE"""
    following = session.server.following
    if [argument.upper() for argument in arguments] == [b"NO", b"ONE"]:
        following.stop()
    else:
        following.follow((arguments[0], parse_integer(arguments[1])))
    return OK


def config_set(session: Session, arguments: list[bytes]) -> bytes:
    """CONFIG SET name value; what nearcast sets."""
    name, value = arguments
    following = session.server.following
    if name == b"masteruser":
        following.user = value
    elif name == b"masterauth":
        following.password = value
    elif name != b"repl-diskless-sync-delay":
        raise CommandError(f"ERR Unknown option or number of arguments for CONFIG SET - '{name.decode()}'")
    return OK


def acl_setuser(session: Session, arguments: list[bytes]) -> bytes:
    """ACL SETUSER name rule ...: of the rules, those that nearcast sets."""
    name, *rules = arguments
    users = session.server.users
    if name == b"default":
        session.server.default_replicates = b"-psync" not in rules
        return OK
    if b"+psync" not in rules:
        raise CommandError(SYNTAX)
    password = next(rule[1:] for rule in rules if rule.startswith(b">"))
    users[name] = User(password, replicates=True)
    return OK
