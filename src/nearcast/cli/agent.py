"""`nearcast agent`: one agent beside one server, optionally with a gateway."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from nearcast.cli.data import GATEWAY_TOKEN_VARIABLE
from nearcast.cli.shared import (
    StoreUrl,
    bytes_per_s,
    checked_name,
    errors_as_exit_codes,
    log_problems,
    log_to_stderr,
    run,
    until_told_to_stop,
)
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.agent.distances import ProbeOptions
    from nearcast.agent.gateway import GatewayOptions
    from nearcast.agent.parts import Parts
    from nearcast.core.agent.machine import Identity


ListenOption = Annotated[
    str, typer.Option("--gateway", metavar="HOST:PORT", help="Run a gateway for subscribers at this address.")
]
UrlOption = Annotated[
    str,
    typer.Option(
        "--gateway-url", metavar="URL", help="Where subscribers reach the gateway. Default: the address of --gateway."
    ),
]
OriginOption = Annotated[
    list[str] | None,
    typer.Option("--origin", metavar="URL", help="A web site whose pages may use the gateway. Repeatable."),
]
ProxyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-proxy",
        metavar="NETWORK",
        help="A trusted proxy in front of the gateway, whose X-Forwarded-For header is believed. Repeatable.",
    ),
]
RegisterOption = Annotated[
    str,
    typer.Option(
        "--register",
        metavar="open|secret|closed|URL",
        help="Who may register a free name. Required unless the gateway listens on loopback only, where it defaults "
        "to open.",
    ),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="ACT:PATTERN",
        help="Topics that users may use, such as publish:chat.* or subscribe:inbox.{user}. All others are refused. "
        "Repeatable.",
    ),
]
ForgetOption = Annotated[
    float,
    typer.Option("--forget-days", min=0, help="Forget users not seen for this many days; 0 keeps all users."),
]
PositionOption = Annotated[
    str, typer.Option("--position", metavar="LAT,LON", help="The gateway's latitude and longitude, in degrees.")
]


ReplicaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--replica",
        metavar="URL",
        help="A server that becomes a replica of this one, for logs with a quorum: whatever it has is deleted. The"
        " agent uses its own server's user and password there. Repeatable.",
    ),
]


ProbeOption = Annotated[
    str,
    typer.Option(
        "--probe",
        metavar="HOST:PORT|off",
        help="Where the agent answers probes, by UDP, from which clients learn how far brokers are. Clients use the"
        " host of --advertise. Default: all addresses, at the port of --advertise.",
    ),
]
ProbeViaOption = Annotated[
    Path | None,
    typer.Option(
        "--probe-via",
        metavar="FILE",
        help="Where other agents are reached by UDP, if not where they say, as in networks that translate addresses: "
        'JSON such as {"udp://announced:6379": "udp://10.0.0.7:6379"}. Read again when it changes.',
    ),
]


log = logging.getLogger("nearcast.agent")


def agent(
    broker: Annotated[str, typer.Option("--broker", metavar="NAME", help="The name of this broker in the cluster.")],
    server: Annotated[
        str,
        typer.Option("--server", envvar="NEARCAST_SERVER", metavar="URL", help="Where the agent reaches the server."),
    ],
    store: StoreUrl,
    advertise: Annotated[
        str, typer.Option("--advertise", metavar="URL", help="Where clients reach the server. Default: as --server.")
    ] = "",
    site: Annotated[str, typer.Option("--site", metavar="NAME", help="The site of this broker.")] = "local",
    capacity: Annotated[
        str,
        typer.Option(
            "--capacity",
            metavar="RATE",
            help="How much the server can send, such as 1Gbit. Default: as measured by `nearcast brokers calibrate`.",
        ),
    ] = "",
    server_pid: Annotated[
        int | None, typer.Option("--server-pid", min=1, help="The server's process ID, to notice its end at once.")
    ] = None,
    replica: ReplicaOption = None,
    probe: ProbeOption = "",
    probe_via: ProbeViaOption = None,
    gateway: ListenOption = "",
    gateway_url: UrlOption = "",
    origin: OriginOption = None,
    trust_proxy: ProxyOption = None,
    register: RegisterOption = "",
    allow: AllowOption = None,
    forget_days: ForgetOption = 90.0,
    position: PositionOption = "",
) -> None:
    """Run the agent beside one server until it is stopped.

    Example: nearcast agent --broker b1 --site paris --server redis://127.0.0.1:6379
    --advertise redis://paris.example.com:6379 --store redis://store.example.com:6379 --gateway 0.0.0.0:8080
    --gateway-url https://paris.example.com --register closed

    --register secret reads the secret from NEARCAST_REGISTER_SECRET. If the data cluster requires a token, the gateway
    presents the one in NEARCAST_GATEWAY_TOKEN.
    """
    from nearcast.agent.parts import AgentSettings, assemble
    from nearcast.core.agent.machine import Identity

    log_to_stderr()
    with errors_as_exit_codes():
        url = _advertised(advertise or server, advertise)
        rate, replicas = bytes_per_s(capacity) if capacity else 0.0, [_advertised(each, "") for each in replica or ()]
        identity = Identity(checked_name("broker", broker), url, checked_name("site", site), rate, tuple(replicas))
        options = None
        if gateway:
            options = _gateway(
                listen=gateway,
                url=gateway_url,
                origins=origin or (),
                proxies=trust_proxy or (),
                register=register,
                allow=allow or (),
                forget_days=forget_days,
                position=position,
            )
        settings = AgentSettings(identity=identity, server_url=server, store_url=store, server_pid=server_pid)
        parts = assemble(msgspec.structs.replace(settings, gateway=options, probes=_probes(probe, url, probe_via)))
    run(lambda: _serve(parts, identity))


def _gateway(**given: Any) -> GatewayOptions:
    from nearcast.agent.gateway import GatewayOptions
    from nearcast.gateway.registrar import SECRET_VARIABLE

    secret, token = os.environ.get(SECRET_VARIABLE, ""), os.environ.get(GATEWAY_TOKEN_VARIABLE, "")
    return GatewayOptions(**given, register_secret=secret, data_token=token)


def _probes(given: str, url: str, via: Path | None) -> ProbeOptions | None:
    from nearcast.agent.distances import ProbeOptions
    from nearcast.runtime.driver import parse_url

    if given == "off":
        return None
    if not given:
        address, _ = parse_url(url)
        return ProbeOptions(port=address.port, via=via)
    host, _, port = given.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise UsageError(f"--probe {given}: give HOST:PORT, such as 0.0.0.0:6379, or off")
    return ProbeOptions(host or "0.0.0.0", int(port), via)


def _advertised(url: str, given: str) -> str:
    from nearcast.runtime.driver import parse_url

    address, credentials = parse_url(url)
    if given and (credentials.username or credentials.password):
        raise UsageError("--advertise must not contain a user or password: clients get this URL and use their own")
    return address.url


async def _serve(parts: Parts, identity: Identity) -> None:
    from nearcast.runtime.workers import until_one_ends

    log.info("agent of broker %s; clients connect to %s", identity.broker, identity.url)
    try:
        await until_one_ends(log_problems(log, lambda: parts.problem), until_told_to_stop(), _work(parts))
    finally:
        await parts.stop()


async def _work(parts: Parts) -> None:
    await parts.start()
    await parts.ended()
