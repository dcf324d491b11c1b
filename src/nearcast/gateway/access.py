"""Whom a gateway lets in, and how much strangers and users may start there, per minute or per address.

`Proxies` finds the address behind a request. `Admission` applies before the login, `NewTopics` after it. `PerMinute`
does the counting. Who may register is decided in registrar.py, who is logged in by which token in users.py, and who may
use which topic in rights.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nearcast.errors import LimitReached, UsageError

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from nearcast.gateway.settings import GatewaySettings

# --- addresses


_CUSTOMER_BITS = 64


class Proxies:
    """The trusted proxies, as addresses or networks in CIDR notation.

    Behind a proxy all requests come from the proxy's address. A trusted proxy appends the address that it received the
    request from to `X-Forwarded-For`. So the list is read from its end, as long as the proxies are trusted; the part
    before that can have been written by anyone. An IPv6 address counts as its 64-bit network, which is what one
    customer has.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [_network(text) for text in networks]

    def address(self, peer: str, forwarded: Iterable[str] = ()) -> str:
        """The address behind a request. `forwarded`: the values of its X-Forwarded-For headers, in order."""
        found = _address(peer)
        chain = [part.strip() for value in forwarded for part in value.split(",")]
        while chain and found is not None and self._trusts(found):
            before = _address(chain.pop())
            if before is None:
                break  # not an address: the last valid one counts
            found = before
        return _shown(found) if found is not None else peer

    def _trusts(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise UsageError(f"bad proxy {text!r}: give an address or a network, such as 10.0.0.0/8 ({error})") from None


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text.strip("[]"))
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _shown(address: IPv4Address | IPv6Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((address, _CUSTOMER_BITS), strict=False))


# --- counting


_WINDOW_S = 60.0
_REMEMBERED = 10_000  # addresses or users; beyond that the ones not seen for longest are forgotten


class PerMinute:
    """How often something happened in the last minute, by address or user.

    It reads no clock: the caller passes the time, in seconds.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._times: dict[str, deque[float]] = {}

    def note(self, name: str, now_s: float) -> None:
        times = self._times.pop(name, deque(maxlen=self._limit))
        times.append(now_s)
        self._times[name] = times
        if len(self._times) > _REMEMBERED:
            del self._times[next(iter(self._times))]

    def is_full(self, name: str, now_s: float) -> bool:
        times = self._times.get(name)
        return times is not None and len(times) == self._limit and times[0] > now_s - _WINDOW_S


# --- before the login


class Admission:
    """Limits before the login, of one gateway. It reads no clock: the caller passes the time, in seconds.

    It limits the total number of sessions, the sessions of one address that have not logged in, the refused logins of
    one address per minute, and the web pages (`Origin`) that may connect. Only browsers send an Origin.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._sessions = 0
        self._unknown: dict[str, int] = {}  # sessions not logged in, by address
        self._proxies = Proxies(settings.proxies)
        self._refused_logins = PerMinute(settings.refused_logins_per_minute)
        self._registrations = PerMinute(settings.registrations_per_minute)

    def address_of(self, connection: HTTPConnection) -> str:
        """The address that the request comes from."""
        peer = connection.client.host if connection.client else ""
        return self._proxies.address(peer, connection.headers.getlist("x-forwarded-for"))

    def problem(self, address: str, now_s: float) -> str:
        """Why a new session from this address is refused; empty if it is let in."""
        if self._sessions >= self._settings.connections:
            return "the gateway is full: try again later"
        if self._unknown.get(address, 0) >= self._settings.unknown_per_address:
            return "too many connections from this address have not logged in yet"
        if self._refused_logins.is_full(address, now_s):
            return "too many refused logins from this address: wait a minute"
        return ""

    def opened(self, address: str) -> None:
        self._sessions += 1
        self._unknown[address] = self._unknown.get(address, 0) + 1

    def logged_in(self, address: str) -> None:
        self._unknown[address] = self._unknown.get(address, 1) - 1
        if not self._unknown[address]:
            del self._unknown[address]

    def closed(self, address: str, *, known: bool) -> None:
        self._sessions -= 1
        if not known:
            self.logged_in(address)

    def refused(self, address: str, now_s: float) -> None:
        """Count a refused login."""
        self._refused_logins.note(address, now_s)

    def may_register(self, address: str, now_s: float) -> bool:
        if self._registrations.is_full(address, now_s):
            return False
        self._registrations.note(address, now_s)
        return True

    def origin_allowed(self, origin: str | None, host: str) -> bool:
        """A page may connect to the host it came from, and to others if its origin is on the list."""
        if origin is None or origin in self._settings.origins:
            return True
        try:
            return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
        except ValueError:  # such as http://[
            return False


# --- new topics


KNOWN_MAX = 100_000  # names; beyond that the one not used for longest counts as new again


class NewTopics:
    """Limits how many unused topic names a user of one gateway may introduce per minute.

    A new name costs memory, here and at the brokers, for as long as it is remembered there. A name in use costs nothing
    more, no matter who uses it.
    """

    def __init__(self, per_minute: int) -> None:
        self._limit = per_minute
        self._known: dict[str, None] = {}
        self._begun = PerMinute(per_minute)

    def use(self, user: str, topic: str, now_s: float) -> None:
        """Raises LimitReached if the topic is new and the user has introduced too many."""
        if topic in self._known:
            del self._known[topic]
        elif self._begun.is_full(user, now_s):
            raise LimitReached(f"you have used {self._limit} new topics in a minute: use one of them, or wait a minute")
        else:
            self._begun.note(user, now_s)
        self._known[topic] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
