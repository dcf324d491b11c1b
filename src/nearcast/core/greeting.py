"""The greeting of a server: which protocol, who we are, and what a refusal means."""

from __future__ import annotations

import msgspec

from nearcast.errors import AuthenticationFailed, ClusterError, ConnectFailed

CLIENT_NAMES = "nearcast-"  # connections of clients have names that begin so: an agent cuts them off by it

_WHO_ARE_YOU = ("NOAUTH", "WRONGPASS", "ERR Client sent AUTH", "ERR AUTH")


class Credentials(msgspec.Struct, frozen=True):
    username: str = ""
    password: str = ""


def hello(credentials: Credentials, name: str) -> tuple[str | int, ...]:
    """The command that begins every connection: RESP3, credentials if there are any, a name for CLIENT LIST."""
    auth = ("AUTH", credentials.username or "default", credentials.password) if credentials.password else ()
    return ("HELLO", 3, *auth, "SETNAME", name)


def unanswered(reason: str) -> str:
    """What to think of a connection that ended before the greeting was answered."""
    return f"{reason}, before it answered: is that a Valkey or Redis server? If it expects TLS, use rediss://"


def refusal(url: str, text: str) -> ClusterError:
    """The error for a refused greeting, with what to do about it."""
    if text.startswith(_WHO_ARE_YOU):
        return AuthenticationFailed(
            f"{url}: {text}: give the user name and password in the URL, redis://user:password@host:port"
        )
    return ConnectFailed(f"{url}: {text}: nearcast needs Valkey, or Redis 6.2 or newer")
