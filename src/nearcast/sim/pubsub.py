"""The simulated server's commands for publish/subscribe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.sim.glob import matcher
from nearcast.sim.replies import NULL_RESP3, CommandError, array, bulk, bulks, integer
from nearcast.sim.rights import check_channels

if TYPE_CHECKING:
    from nearcast.sim.server import Held, Session

_RESP3_ONLY = "ERR the simulated server pushes in RESP3 only: send HELLO 3 first"


def publish(session: Session, arguments: list[bytes]) -> bytes:
    check_channels(session, arguments[:1])
    return b":%d\r\n" % session.server.publish(arguments[0], arguments[1])


def subscribe(session: Session, arguments: list[bytes]) -> bytes:
    return _hold(session, b"subscribe", session.channels, arguments)


def psubscribe(session: Session, arguments: list[bytes]) -> bytes:
    return _hold(session, b"psubscribe", session.patterns, arguments)


def unsubscribe(session: Session, arguments: list[bytes]) -> bytes:
    return _release(session, b"unsubscribe", session.channels, arguments)


def punsubscribe(session: Session, arguments: list[bytes]) -> bytes:
    return _release(session, b"punsubscribe", session.patterns, arguments)


def _hold(session: Session, verb: bytes, held: Held, names: list[bytes]) -> bytes:
    if not session.resp3:
        raise CommandError(_RESP3_ONLY)
    check_channels(session, names)
    confirmations = []
    for name in names:
        held.add(name)
        confirmations.append(_confirmation(session, verb, bulk(name)))
    return b"".join(confirmations)


def _release(session: Session, verb: bytes, held: Held, names: list[bytes]) -> bytes:
    """Every name is confirmed, held or not; without names all that are held, and if there are none, that fact."""
    if not session.resp3:
        raise CommandError(_RESP3_ONLY)
    confirmations = []
    for name in names or list(held.names):
        held.drop(name)
        confirmations.append(_confirmation(session, verb, bulk(name)))
    return b"".join(confirmations) or _confirmation(session, verb, NULL_RESP3)


def _confirmation(session: Session, verb: bytes, name: bytes) -> bytes:
    count = len(session.channels.names) + len(session.patterns.names)
    return b">3\r\n%b%b%b" % (bulk(verb), name, integer(count))


def numsub(session: Session, arguments: list[bytes]) -> bytes:
    table = session.server.channels
    return array(part for name in arguments for part in (bulk(name), integer(len(table.get(name, ())))))


def channels(session: Session, arguments: list[bytes]) -> bytes:
    if len(arguments) > 1:
        raise CommandError("ERR unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP.")
    names = session.server.channels
    return bulks(filter(matcher(arguments[0]), names) if arguments else names)


def numpat(session: Session, arguments: list[bytes]) -> bytes:
    return integer(len(session.server.patterns))
