"""`nearcast agent`: one agent beside one server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli import gateway_options
from nearcast.cli.options import StoreUrl, checked_name
from nearcast.cli.rates import bytes_per_s
from nearcast.cli.running import (
    errors_as_exit_codes,
    log_problems,
    log_to_stderr,
    run,
    until_one_ends,
    until_told_to_stop,
)
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.cli.gateway import Door
    from nearcast.runtime.agent import Agent
    from nearcast.runtime.collector import Collector

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
    gateway: gateway_options.ListenOption = "",
    gateway_url: gateway_options.UrlOption = "",
    origin: gateway_options.OriginOption = None,
    trust_proxy: gateway_options.ProxyOption = None,
    register: gateway_options.RegisterOption = "",
    allow: gateway_options.AllowOption = None,
    forget_days: gateway_options.ForgetOption = 90.0,
    position: gateway_options.PositionOption = "",
) -> None:
    """Run the agent beside one server, until it is stopped.

    Example: nearcast agent --broker b1 --site paris --server redis://127.0.0.1:6379
    --advertise redis://paris.example.com:6379 --store redis://store.example.com:6379 --gateway 0.0.0.0:8080
    --gateway-url https://paris.example.com --register closed

    --register secret takes the one in NEARCAST_REGISTER_SECRET. A data cluster that wants a token gets the one in
    NEARCAST_GATEWAY_TOKEN.
    """
    from nearcast.core.agent import Identity
    from nearcast.runtime.agent import Agent
    from nearcast.runtime.collector import Collector

    log_to_stderr()
    with errors_as_exit_codes():
        url = _advertised(advertise or server, advertise)
        rate = bytes_per_s(capacity) if capacity else 0.0
        identity = Identity(checked_name("broker", broker), url, checked_name("site", site), rate)
        process = Agent(identity, server, store)
        door = None
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
            door = open_gateway(options, identity, server, store)
        collector = Collector(broker, server, store)
    run(lambda: _serve(process, identity.url, broker, server, server_pid, door, collector))


def _advertised(url: str, given: str) -> str:
    from nearcast.runtime.connection import parse_url

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
    door: Door | None,
    collector: Collector,
) -> None:
    from nearcast.runtime.watch import watch_server

    await process.start()
    log.info("agent of broker %s; clients use %s", broker, url)
    jobs = [
        log_problems(log, lambda: process.problem or collector.problem),
        until_told_to_stop(),
        process.until_refused(),
        collector.serve(),
    ]
    if door is not None:
        jobs.append(door.serve())
    if server_pid is not None:
        jobs.append(watch_server(server_pid, server, process.server_ended))
    try:
        await until_one_ends(*jobs)
    finally:
        await process.stop()
