"""The exception names programs catch, for the exceptions nearcast raises.

redis.asyncio         here
RedisError            NearcastError       everything
ConnectionError       ClusterError        no server, no agent, or no answer
AuthenticationError   AuthenticationFailed
TimeoutError          Unavailable         `socket_timeout` has passed; a ConnectionError too
NoPermissionError     AccessDenied        the user may not use the channel (the name is redis-py's alone)
DataError             UsageError          a value that cannot be sent, a keyword that cannot be kept
ResponseError         ProtocolError       a server refused a command
PubSubError           PubSubError         also a RuntimeError, which redis-py raises in some of these places

A program that catches redis-py's own exceptions has imported them. Then, and only then, what we raise is of both kinds:
`except redis.exceptions.ConnectionError` and `except nearcast.errors.ClusterError` both catch it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from nearcast.errors import (
    AccessDenied,
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


_REDIS_PY = "redis.exceptions"
_NAMES: tuple[tuple[type[NearcastError], str], ...] = (  # the first that fits, so the special before the general
    (AuthenticationFailed, "AuthenticationError"),
    (AccessDenied, "NoPermissionError"),
    (Unavailable, "TimeoutError"),
    (ClusterError, "ConnectionError"),
    (PubSubError, "PubSubError"),
    (UsageError, "DataError"),
    (ProtocolError, "ResponseError"),
    (NearcastError, "RedisError"),
)

_TWINS: dict[tuple[type[NearcastError], type[Exception]], type[NearcastError]] = {}  # one per kind of error of ours

P = ParamSpec("P")
R = TypeVar("R")


def raises_as_redis_py(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """What the method raises is also of the kind redis-py would raise, if the program uses redis-py."""

    @wraps(method)
    async def calling(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await method(*args, **kwargs)
        except NearcastError as error:
            if _REDIS_PY not in sys.modules:
                raise
            raise of_both_kinds(error) from error.__cause__

    return calling


def of_both_kinds(error: NearcastError) -> NearcastError:
    """The same error, which is an exception of redis-py too."""
    name = next(name for kind, name in _NAMES if isinstance(error, kind))
    other = getattr(sys.modules[_REDIS_PY], name)
    if isinstance(error, other):
        return error
    pair = (type(error), other)
    both = _TWINS[pair] = _TWINS.get(pair) or _both_kinds(*pair)
    twin: NearcastError = both.__new__(both, *error.args)
    other.__init__(twin, *error.args)
    twin.__dict__.update(error.__dict__)
    return twin.with_traceback(error.__traceback__)


def _both_kinds(ours: type[NearcastError], theirs: type[Exception]) -> type[NearcastError]:
    return type(ours.__name__, (ours, theirs), {"__module__": ours.__module__, "__doc__": ours.__doc__})
