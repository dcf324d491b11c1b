"""`nearcast agent`: one agent beside one server, with its gateway if wanted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.shared import (
    StoreUrl,
    bytes_per_s,
    checked_name,
    errors_as_exit_codes,
    log_problems,
    log_to_stderr,
    run,
    until_one_ends,
    until_told_to_stop,
)
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.agent.collector import Collector
    from nearcast.agent.process import Agent
    from nearcast.cli.gateway import GatewayProcess


ListenOption = Annotated[
    str, typer.Option("--gateway", metavar="HOST:PORT", help="Run a gateway for subscribers at this address.")
]
UrlOption = Annotated[
    str, typer.Option("--gateway-url", metavar="URL", help="Where subscribers reach it. Default: the same.")
]
OriginOption = Annotated[
    list[str] | None, typer.Option("--origin", metavar="URL", help="A web site whose pages may use the gateway.")
]
ProxyOption = Annotated[
    list[str] | None,
    typer.Option("--trust-proxy", metavar="NETWORK", help="A proxy before the gateway, which says who asks."),
]
RegisterOption = Annotated[
    str,
    typer.Option(
        "--register",
        metavar="open|secret|closed|URL",
        help="Who may take a free name. To be chosen, unless the gateway is for this machine only: then open.",
    ),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="ACT:PATTERN",
        help="Topics that users may use: publish:chat.* or subscribe:inbox.{user}. Others are refused.",
    ),
]
ForgetOption = Annotated[
    float, typer.Option("--forget-days", min=0, help="Users not seen for so long are forgotten; 0: nobody is.")
]
PositionOption = Annotated[str, typer.Option("--position", metavar="LAT,LON", help="Where the gateway is, in degrees.")]


log = logging.getLogger("nearcast.agent")


def agent(
    broker: Annotated[str, typer.Option("--broker", metavar="NAME", help="The name of this broker in the cluster.")],
    server: Annotated[
        str,
        typer.Option("--server", envvar="NEARCAST_SERVER", metavar="URL", help="Where the agent reaches the server."),
    ],
    store: StoreUrl,
    advertise: Annotated[
        str, typer.Option("--advertise", metavar="URL", help="Where clients reach it. Default: the same.")
    ] = "",
    site: Annotated[str, typer.Option("--site", metavar="NAME", help="The place this broker is at.")] = "local",
    capacity: Annotated[
        str,
        typer.Option(
            "--capacity",
            metavar="RATE",
            help="What the server can send, such as 1Gbit. Default: as calibrated, see `nearcast brokers calibrate`.",
        ),
    ] = "",
    server_pid: Annotated[
        int | None, typer.Option("--server-pid", min=1, help="The server's process, to see its death at once.")
    ] = None,
    gateway: ListenOption = "",
    gateway_url: UrlOption = "",
    origin: OriginOption = None,
    trust_proxy: ProxyOption = None,
    register: RegisterOption = "",
    allow: AllowOption = None,
    forget_days: ForgetOption = 90.0,
    position: PositionOption = "",
) -> None:
    """Run the agent beside one server, until it is stopped.

    Example: nearcast agent --broker b1 --site paris --server redis://127.0.0.1:6379
    --advertise redis://paris.example.com:6379 --store redis://store.example.com:6379 --gateway 0.0.0.0:8080
    --gateway-url https://paris.example.com --register closed

    --register secret takes the secret in NEARCAST_REGISTER_SECRET. A data cluster that wants a token gets the one in
    NEARCAST_GATEWAY_TOKEN.
    """
    from nearcast.agent.collector import Collector
    from nearcast.agent.process import Agent
    from nearcast.core.agent.machine import Identity

    log_to_stderr()
    with errors_as_exit_codes():
        url = _advertised(advertise or server, advertise)
        rate = bytes_per_s(capacity) if capacity else 0.0
        identity = Identity(checked_name("broker", broker), url, checked_name("site", site), rate)
        process = Agent(identity, server, store)
        gateway_process = None
        if gateway:
            from nearcast.cli.gateway import GatewayOptions, open_gateway

            options = GatewayOptions(
                listen=gateway,
                url=gateway_url,
                origins=origin or (),
                proxies=trust_proxy or (),
                register=register,
                allow=allow or (),
                forget_days=forget_days,
                position=position,
            )
            gateway_process = open_gateway(options, identity, server, store)
        collector = Collector(broker, server, store)
    run(lambda: _serve(process, identity.url, broker, server, server_pid, gateway_process, collector))


def _advertised(url: str, given: str) -> str:
    from nearcast.runtime.driver import parse_url

    address, credentials = parse_url(url)
    if given and (credentials.username or credentials.password):
        raise UsageError("--advertise must hold no user or password: clients are told it and bring their own")
    return address.url


async def _serve(
    process: Agent,
    url: str,
    broker: str,
    server: str,
    server_pid: int | None,
    gateway_process: GatewayProcess | None,
    collector: Collector,
) -> None:
    from nearcast.agent.process import watch_server

    await process.start()
    log.info("agent of broker %s; clients use %s", broker, url)
    jobs = [
        log_problems(log, lambda: process.problem or collector.problem),
        until_told_to_stop(),
        process.until_refused(),
        collector.serve(),
    ]
    if gateway_process is not None:
        jobs.append(gateway_process.serve())
    if server_pid is not None:
        jobs.append(watch_server(server_pid, server, process.server_ended))
    try:
        await until_one_ends(*jobs)
    finally:
        await process.stop()
