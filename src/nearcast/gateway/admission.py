"""Admission: limits that hold before anybody has said who she is.

Sessions in all, sessions of one address that have not logged in, refused logins of one address in a minute, and the
web pages (`Origin`) that may connect. Programs that are not browsers send no Origin.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from nearcast.gateway.addresses import Proxies
from nearcast.gateway.per_minute import PerMinute
from nearcast.gateway.settings import GatewaySettings


class Admission:
    """Of one gateway. It reads no clock: the caller says what time it is, in seconds."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._sessions = 0
        self._unknown: dict[str, int] = {}  # sessions not logged in, by address
        self._proxies = Proxies(settings.proxies)
        self._refused_logins = PerMinute(settings.refused_logins_per_minute)
        self._registrations = PerMinute(settings.registrations_per_minute)

    def address_of(self, connection: HTTPConnection) -> str:
        """Whose request this is."""
        peer = connection.client.host if connection.client else ""
        return self._proxies.address(peer, connection.headers.getlist("x-forwarded-for"))

    def problem(self, address: str, now_s: float) -> str:
        """Why a new session of this address is not let in; empty if it is."""
        if self._sessions >= self._settings.connections:
            return "the gateway is full: try again later"
        if self._unknown.get(address, 0) >= self._settings.unknown_per_address:
            return "too many connections of this address wait for their login"
        if self._refused_logins.is_full(address, now_s):
            return "too many refused logins of this address: wait a minute"
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
        """A login was."""
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
