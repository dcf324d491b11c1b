"""Rights of the simulated server's users: the part of a real server's ACLs that a topic can meet.

A user may use all commands and keys, and all channels but those denied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nearcast.sim.replies import CommandError

if TYPE_CHECKING:
    from nearcast.sim.server import Session, SimServer

NO_CHANNEL = "NOPERM No permissions to access a channel"


class User:
    def __init__(self, password: bytes) -> None:
        self.password = password
        self.denied: set[bytes] = set()  # channels and patterns


def check_channels(session: Session, names: Iterable[bytes]) -> None:
    """Refuse the whole command if one of the channels is denied, as a server does before it runs anything."""
    user = session.user
    if user is not None and user.denied and not user.denied.isdisjoint(names):
        raise CommandError(NO_CHANNEL)


def deny(server: SimServer, user: User, *names: bytes) -> None:
    """As ACL SETUSER: the user's connections that hold one of the channels are closed."""
    user.denied.update(names)
    for session in list(server.sessions):
        held = session.channels.names.keys() | session.patterns.names.keys()
        if session.user is user and not user.denied.isdisjoint(held):
            session.close()
            server.killed.append(session)
