"""The socket under a link: writing to one that is gone."""

from __future__ import annotations

import asyncio
from typing import Any

from nearcast.runtime.driver import Connection


class ClosedByItsLoop(asyncio.Transport):
    """As uvloop's after the peer has gone and before that is reported: it does not say so, and takes nothing."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        raise RuntimeError("unable to perform operation: the handler is closed")


class Nobody:
    def opened(self, connection: Connection) -> None: ...

    def arrived(self, connection: Connection, data: bytes) -> None: ...

    def ended(self, connection: Connection, reason: str) -> None: ...


def test_a_socket_that_is_gone_keeps_nothing_from_the_others() -> None:
    """A driver writes to all connections in one go: what one of them raised, the next ones would have missed."""
    connection = Connection("b1", Nobody())
    connection.connection_made(ClosedByItsLoop())
    connection.write(b"PING")
