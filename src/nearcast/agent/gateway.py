"""The gateway as a part of the agent process: made from the operator's options."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from nearcast.core.agent.machine import Identity
from nearcast.errors import UsageError
from nearcast.gateway.coordination import BusCoordination, Whereabouts
from nearcast.gateway.registrar import OPEN
from nearcast.gateway.server import GatewayServer, listen
from nearcast.gateway.service import Gateway
from nearcast.gateway.settings import GatewaySettings


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """As the operator gives them."""

    listen: str  # HOST:PORT
    url: str = ""
    origins: Sequence[str] = ()
    proxies: Sequence[str] = ()
    register: str = ""
    allow: Sequence[str] = ()
    forget_days: float = 90.0
    position: str = ""  # latitude and longitude, in degrees
    register_secret: str = ""
    data_token: str = ""  # presented to the data cluster


def open_gateway(options: GatewayOptions, identity: Identity, server_url: str, store_url: str) -> GatewayServer:
    """A gateway that already listens, but serves only after it is started. Raises UsageError if an option is wrong."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # at INFO it logs every request
    settings = GatewaySettings(
        origins=tuple(options.origins),
        proxies=tuple(options.proxies),
        register=options.register or OPEN,
        register_secret=options.register_secret,
        allow=tuple(options.allow),
        forget_days=options.forget_days or None,
    )
    latitude, longitude = _position(options.position)
    whereabouts = Whereabouts(site=identity.site, latitude=latitude, longitude=longitude)
    advertised = _advertised(options.url)
    listening, own_url = listen(options.listen)
    if not options.register:
        _need_local(listening, advertised)
    gateway = Gateway(
        identity.broker,
        advertised or own_url,
        server_url,
        store_url,
        settings=settings,
        data_token=options.data_token,
        coordination=BusCoordination(store_url, whereabouts),
    )
    return GatewayServer(gateway, listening)


def _need_local(listening: socket.socket, advertised: str) -> None:
    """Refuse a gateway that others can reach: who may register there is for the operator to decide."""
    host = urlsplit(advertised).hostname or listening.getsockname()[0]
    if not (_is_loopback(listening.getsockname()[0]) and _is_loopback(host)):
        listening.close()
        raise UsageError(
            f"the gateway can be reached from other machines ({host}): say who may register, "
            "with --register open, secret, closed or a URL"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _advertised(url: str) -> str:
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query):
        raise UsageError(f"bad --gateway-url {url!r}: use http://host:port or https://host")
    return url.rstrip("/")


def _position(text: str) -> tuple[float | None, float | None]:
    if not text:
        return None, None
    try:
        latitude, longitude = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"bad --position {text!r}: give latitude and longitude in degrees: 48.86,2.35") from None
    return latitude, longitude
