"""The exception names programs catch, for the exceptions nearcast raises.

redis.asyncio         here
RedisError            NearcastError       everything
ConnectionError       ClusterError        no server, no agent, or no answer
AuthenticationError   AuthenticationFailed
TimeoutError          Unavailable         `socket_timeout` has passed; a ConnectionError too
DataError             UsageError          a value that cannot be sent, a keyword that cannot be kept
ResponseError         ProtocolError       a server refused a command
PubSubError           PubSubError         also a RuntimeError, which redis-py raises in some of these places
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nearcast.errors import (
    AuthenticationFailed,
    Closed,
    ClusterError,
    NearcastError,
    ProtocolError,
    Unavailable,
    UsageError,
)

RedisError = NearcastError
ConnectionError = ClusterError
AuthenticationError = AuthenticationFailed
TimeoutError = Unavailable
DataError = UsageError
ResponseError = ProtocolError


class PubSubError(UsageError, RuntimeError):
    """The PubSub is not ready for this call: subscribe first, or give every channel a handler."""


class ClosedWhileUsed(Closed, ClusterError):
    """Another task closed the PubSub that this one was using: stop, or subscribe again."""


@asynccontextmanager
async def within(limit_s: float | None, what: str) -> AsyncIterator[None]:
    """Do it in this time or raise `TimeoutError` as redis-py names it."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except builtins.TimeoutError:
        problem = f"{what} took longer than socket_timeout={limit_s:g} s"
        raise Unavailable(f"{problem}: look at the brokers, or give it more time") from None
