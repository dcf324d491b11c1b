"""The commands of the simulated server: how one is found, checked and run, and the table of them all.

A function of the table gets the session and the arguments and returns the reply as bytes, or raises CommandError. The
texts of errors are the real server's, because the core and people look at them. Options that nearcast does not use are
refused as syntax errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from nearcast.sim import connection, keys, pubsub, scripts, streams
from nearcast.sim.replies import CommandError, error, wrong_number

if TYPE_CHECKING:
    from nearcast.sim.server import Session

Handler = Callable[["Session", list[bytes]], bytes]

UNLIMITED = 1 << 20  # arguments; the protocol's own limit
_QUOTED_BYTES = 128  # of a command nobody knows


class Command(NamedTuple):
    handler: Handler
    least: int  # arguments
    most: int


def execute(session: Session, parts: list[bytes]) -> bytes:
    """The reply to one command, which has at least a name."""
    name = parts[0]
    command = COMMANDS.get(name) or COMMANDS.get(name.upper())
    if not session.authenticated and (command is None or command.handler not in WITHOUT_AUTH):
        return error("NOAUTH Authentication required.")
    if command is None:
        return error(_unknown(parts))
    try:
        return _run(session, command, name, parts[1:])
    except CommandError as refused:
        return error(str(refused))


def _run(session: Session, command: Command, name: bytes, arguments: list[bytes]) -> bytes:
    handler, least, most = command
    if least <= len(arguments) <= most:
        return handler(session, arguments)
    raise wrong_number(name)


def _unknown(parts: list[bytes]) -> bytes:
    quoted = b""
    for part in parts[1:]:
        if len(quoted) >= _QUOTED_BYTES:
            break
        quoted += b"'%b' " % part[: _QUOTED_BYTES - len(quoted)]
    return b"ERR unknown command '%b', with args beginning with: %b" % (parts[0][:_QUOTED_BYTES], quoted)


def _family(name: str, members: dict[bytes, Command]) -> Command:
    """A command whose first argument says which of several it is."""

    def handler(session: Session, arguments: list[bytes]) -> bytes:
        which = arguments[0]
        member = members.get(which.upper())
        if member is None:
            text = which.decode("utf-8", "surrogateescape")
            raise CommandError(f"ERR unknown subcommand '{text}'. Try {name} HELP.")
        return _run(session, member, b"%b|%b" % (name.encode(), which), arguments[1:])

    return Command(handler, 1, UNLIMITED)


CLIENT = {
    b"SETNAME": Command(connection.client_setname, 1, 1),
    b"GETNAME": Command(connection.client_getname, 0, 0),
    b"LIST": Command(connection.client_list, 0, 0),
    b"KILL": Command(connection.client_kill, 1, UNLIMITED),
}
PUBSUB = {
    b"NUMSUB": Command(pubsub.numsub, 0, UNLIMITED),
    b"CHANNELS": Command(pubsub.channels, 0, UNLIMITED),
    b"NUMPAT": Command(pubsub.numpat, 0, 0),
}
COMMANDS = {
    b"PUBLISH": Command(pubsub.publish, 2, 2),
    b"SUBSCRIBE": Command(pubsub.subscribe, 1, UNLIMITED),
    b"UNSUBSCRIBE": Command(pubsub.unsubscribe, 0, UNLIMITED),
    b"PSUBSCRIBE": Command(pubsub.psubscribe, 1, UNLIMITED),
    b"PUNSUBSCRIBE": Command(pubsub.punsubscribe, 0, UNLIMITED),
    b"PUBSUB": _family("PUBSUB", PUBSUB),
    b"GET": Command(keys.get, 1, 1),
    b"SET": Command(keys.set_string, 2, UNLIMITED),
    b"DEL": Command(keys.delete, 1, UNLIMITED),
    b"EXISTS": Command(keys.exists, 1, UNLIMITED),
    b"INCR": Command(keys.incr, 1, 1),
    b"PEXPIRE": Command(keys.pexpire, 2, 2),
    b"PTTL": Command(keys.pttl, 1, 1),
    b"HGET": Command(keys.hget, 2, 2),
    b"HMGET": Command(keys.hmget, 2, UNLIMITED),
    b"HSET": Command(keys.hset, 3, UNLIMITED),
    b"HSETNX": Command(keys.hsetnx, 3, 3),
    b"HDEL": Command(keys.hdel, 2, UNLIMITED),
    b"HGETALL": Command(keys.hgetall, 1, 1),
    b"HLEN": Command(keys.hlen, 1, 1),
    b"HSCAN": Command(keys.hscan, 2, UNLIMITED),
    b"XADD": Command(streams.xadd, 4, UNLIMITED),
    b"XLEN": Command(streams.xlen, 1, 1),
    b"EVAL": Command(scripts.evaluate, 2, UNLIMITED),
    b"HELLO": Command(connection.hello, 0, UNLIMITED),
    b"AUTH": Command(connection.auth, 1, UNLIMITED),
    b"CLIENT": _family("CLIENT", CLIENT),
    b"INFO": Command(connection.info, 0, UNLIMITED),
    b"PING": Command(connection.ping, 0, 1),
    b"ECHO": Command(connection.echo, 1, 1),
    b"QUIT": Command(connection.quit_session, 0, UNLIMITED),
}
WITHOUT_AUTH: frozenset[Handler] = frozenset((connection.hello, connection.auth, connection.quit_session))
