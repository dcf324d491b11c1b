"""Addresses: who a request comes from, for the limits that hold before a login.

Behind a proxy all requests come from its address. The proxies that are trusted say in `X-Forwarded-For` for whom they
ask, each behind what it was told itself; so the list is read from its end, as far as the proxies are ours. What stands
before that anybody can have written. An IPv6 address counts as its network of 64 bits, which is what one customer has.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from nearcast.errors import UsageError

_CUSTOMER_BITS = 64


class Proxies:
    """The trusted ones, as addresses or networks in CIDR notation."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [_network(text) for text in networks]

    def address(self, peer: str, forwarded: Iterable[str] = ()) -> str:
        """Whose request it is. `forwarded`: the values of its X-Forwarded-For headers, in order."""
        found = _address(peer)
        chain = [part.strip() for value in forwarded for part in value.split(",")]
        while chain and found is not None and self._trusts(found):
            told = _address(chain.pop())
            if told is None:
                break  # nonsense: the last address that is one counts
            found = told
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
