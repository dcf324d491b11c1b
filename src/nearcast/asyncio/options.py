"""What the drop-in keeps of redis-py's interface: keywords of its constructor and URL, its encoder, exception names.

Each keyword is kept, ignored or refused:

Kept       host, port, unix_socket_path, username, password, ssl, encoding, encoding_errors, decode_responses,
           socket_timeout (of a call until it is acknowledged), socket_connect_timeout (of the first connection).
Ignored    keywords that make no difference to a pub/sub program; IGNORED says why, one line each.
Refused    everything else, with UsageError: a program that relies on it must know.

Programs catch exceptions by redis-py's names; these are the names for the exceptions nearcast raises:

redis.asyncio         here
RedisError            NearcastError       everything
ConnectionError       ClusterError        no server, no agent, or no answer
AuthenticationError   AuthenticationFailed
TimeoutError          Unavailable         `socket_timeout` has passed; a ConnectionError too
NoPermissionError     AccessDenied        the user may not use the channel (the name is redis-py's alone)
DataError             UsageError          a value that cannot be sent, a keyword that cannot be kept
ResponseError         ProtocolError       a server refused a command
PubSubError           PubSubError         also a RuntimeError, which redis-py raises in some of these places

If the program has imported redis-py's own exceptions, and only then, what we raise is of both kinds: it is caught both
by `except redis.exceptions.ConnectionError` and by `except nearcast.errors.ClusterError`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from ssl import CERT_REQUIRED
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from nearcast.core.model.settings import DEFAULT_LIMITS, DEFAULT_TIMING, Limits, Timing
from nearcast.core.wire.backend import Credentials
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
from nearcast.runtime.client import BOOTSTRAP_S, Client
from nearcast.runtime.connect import connect
from nearcast.runtime.driver import DEFAULT_PORT, Address, Resolve, parse_url

# --- the encoder


Encodable = bytes | bytearray | memoryview | str | int | float
Decoded = bytes | str


class Encoder(msgspec.Struct, frozen=True):
    """Turns values of the program into bytes and back, by redis-py's rules."""

    encoding: str = "utf-8"
    encoding_errors: str = "strict"
    decode_responses: bool = False

    def encode(self, value: Encodable) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode(self.encoding, self.encoding_errors)
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return repr(value).encode()
        raise UsageError(f"cannot send a {type(value).__name__}: convert it to bytes, str, int or float first")

    def decode(self, data: bytes) -> Decoded:
        return data.decode(self.encoding, self.encoding_errors) if self.decode_responses else data

    def normal(self, name: Encodable) -> Decoded:
        """A channel as messages name it, and so the key under which its handler is kept."""
        return self.decode(self.encode(name))


# --- keywords


CALL_TIMEOUT_S = 10.0  # longer than a broker's death and the move of its topics: dead_s + ready_s

KEPT = frozenset(
    (
        "host",
        "port",
        "unix_socket_path",
        "username",
        "password",
        "ssl",
        "encoding",
        "encoding_errors",
        "decode_responses",
        "socket_timeout",
        "socket_connect_timeout",
        "timing",
        "limits",
        "resolve",
    )
)
IGNORED = frozenset(
    (
        "db",  # publish/subscribe has no databases
        "client_name",  # our connections are named after the client's number
        "lib_name",
        "lib_version",
        "driver_info",
        "protocol",  # always RESP3; the messages look the same
        "legacy_responses",
        "max_connections",  # one connection to each broker in use
        "single_connection_client",
        "auto_close_connection_pool",
        "socket_keepalive",  # a lease is proven twice a second on every connection
        "socket_keepalive_options",
        "health_check_interval",
        "socket_read_size",
        "retry",  # the client connects and sends again by itself until socket_timeout
        "retry_on_timeout",
        "retry_on_error",
        "maint_notifications_config",  # topics are moved away for maintenance
    )
)
TLS_AS_WE_DO = {"ssl_cert_reqs": ("required", CERT_REQUIRED), "ssl_check_hostname": (True,)}
TLS_HINT = "certificates are checked against the system's; set the environment variable SSL_CERT_FILE to use others"
REFUSED = {
    "credential_provider": "give username and password",
    "redis_connect_func": "there are several connections, and the library makes them",
    "event_dispatcher": "redis-py's events are not sent; see on_event= of pubsub()",
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a Redis object."""

    url: str
    credentials: Credentials
    encoder: Encoder
    call_timeout_s: float | None
    connect_timeout_s: float = BOOTSTRAP_S
    timing: Timing = DEFAULT_TIMING
    limits: Limits = DEFAULT_LIMITS
    resolve: Resolve | None = None

    def client(self) -> Client:
        """A client of the cluster, to be awaited."""
        return connect(
            self.with_credentials(self.url),
            timing=self.timing,
            limits=self.limits,
            resolve=self.resolve,
            bootstrap_s=self.connect_timeout_s,
            patient=False,
        )

    def with_credentials(self, url: str) -> str:
        username, password = self.credentials.username, self.credentials.password
        if not username and not password:
            return url
        scheme, _, rest = url.partition("://")
        return f"{scheme}://{quote(username, safe='')}:{quote(password, safe='')}@{rest}"


def options_of(keywords: Mapping[str, Any]) -> Options:
    """The keywords of a constructor, checked."""
    check_others({name: value for name, value in keywords.items() if name not in KEPT})
    given = {name: value for name, value in keywords.items() if value is not None}
    path, tls = given.get("unix_socket_path", ""), given.get("ssl", False)
    encoding = given.get("encoding", "utf-8"), given.get("encoding_errors", "strict")
    return Options(
        url=Address(given.get("host", "localhost"), int(given.get("port", DEFAULT_PORT)), tls=tls, path=path).url,
        credentials=Credentials(given.get("username", ""), given.get("password", "")),
        encoder=Encoder(*encoding, given.get("decode_responses", False)),
        call_timeout_s=keywords.get("socket_timeout", CALL_TIMEOUT_S),  # None means no limit
        connect_timeout_s=given.get("socket_connect_timeout", 0.0) or BOOTSTRAP_S,
        timing=given.get("timing", DEFAULT_TIMING),
        limits=given.get("limits", DEFAULT_LIMITS),
        resolve=given.get("resolve"),
    )


def check_others(keywords: Mapping[str, object]) -> None:
    """Raise UsageError for a keyword that is neither kept nor harmless."""
    for name, value in keywords.items():
        if name in IGNORED or value in TLS_AS_WE_DO.get(name, ()):
            continue
        if name.startswith("ssl_"):
            if value is not None:
                raise UsageError(f"{name}={value!r} is not supported: {TLS_HINT}")
        elif name not in REFUSED:
            raise UsageError(f"unknown keyword {name!r}: see nearcast.asyncio.options for the known ones")
        elif value is not None:
            raise UsageError(f"{name} is not supported: {REFUSED[name]}")


def _truth(text: str) -> bool:
    if text.lower() in ("1", "true", "t", "yes", "y", "on"):
        return True
    if text.lower() in ("", "0", "false", "f", "no", "n", "off"):
        return False
    raise ValueError(text)


_QUERY_TYPES: dict[str, Callable[[str], object]] = {
    "socket_timeout": float,
    "socket_connect_timeout": float,
    "decode_responses": _truth,
    "ssl_check_hostname": _truth,
}


def url_keywords(url: str) -> dict[str, Any]:
    """A URL as keywords of the constructor; options in its query are keywords too."""
    address, credentials = parse_url(url)
    keywords: dict[str, Any] = {}
    for name, (value, *_) in parse_qs(urlsplit(url).query).items():
        try:
            keywords[name] = _QUERY_TYPES.get(name, str)(value)
        except ValueError:
            raise UsageError(f"bad value {value!r} for {name} in the server URL") from None
    if address.path:
        keywords["unix_socket_path"] = address.path
    else:
        keywords |= {"host": address.host, "port": address.port, "ssl": address.tls}
    if credentials.username:
        keywords["username"] = credentials.username
    if credentials.password:
        keywords["password"] = credentials.password
    return keywords


# --- exceptions


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
_NAMES: tuple[
    tuple[type[NearcastError], str], ...
] = (  # the first that fits counts, so the specific come before the general
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
    """If the program uses redis-py, what the method raises is also an exception that redis-py would raise."""

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
    """The same error, which is also an exception of redis-py."""
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
