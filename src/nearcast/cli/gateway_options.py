"""The options of `nearcast agent` that are about its gateway."""

from __future__ import annotations

from typing import Annotated

import typer

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
