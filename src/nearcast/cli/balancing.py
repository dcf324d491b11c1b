"""Options that say how subscribers get their gateways: placement of newcomers, balancing, and its thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.planning import settings_given
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.coordination import Coordinating

PlacementOption = Annotated[
    str,
    typer.Option(
        "--placement",
        metavar="RULE",
        help="The gateway of a new subscriber: nr (nearest), rr (in turn), rnd (any), ll (least loaded).",
    ),
]
BalanceOption = Annotated[
    str,
    typer.Option(
        "--balance",
        metavar="SCHEME",
        help="Move subscribers between gateways: ldm (to the least loaded), sdm (to those that share most), or none.",
    ),
]
BalanceSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--balance-set",
        metavar="NAME=VALUE",
        help="A threshold of balancing: alpha, beta_bytes_per_s, gamma, theta_bytes_per_s. Repeatable.",
    ),
]
BalanceEveryOption = Annotated[
    float, typer.Option("--balance-every", min=0.1, metavar="SECONDS", help="Between two looks at the gateways.")
]

DEFAULT_PLACEMENT = "nr"
DEFAULT_BALANCE_S = 10.0
NO_BALANCE = "none"


def chosen_coordinating(placement: str, balance: str, thresholds: list[str] | None, every_s: float) -> Coordinating:
    """The settings; what cannot be used is refused here, where somebody reads it."""
    from nearcast.core.coordination import Coordinating
    from nearcast.core.seating import SeatRule
    from nearcast.policies.catalog import balancer_named

    if placement not in tuple(SeatRule):
        raise UsageError(f"no placement is called {placement!r}: choose one of {', '.join(SeatRule)}")
    settings = settings_given("--balance-set", thresholds, "alpha=0.1")
    if balance == NO_BALANCE and settings:
        raise UsageError("--balance-set needs a scheme: add --balance ldm")
    balancer = None if balance == NO_BALANCE else balancer_named(balance, settings)
    return Coordinating(placement=SeatRule(placement), balancer=balancer, balance_s=every_s)


def balancing_arguments(placement: str, balance: str, thresholds: list[str] | None, every_s: float) -> list[str]:
    """The same options for `nearcast controller` in a process of its own."""
    chosen_coordinating(placement, balance, thresholds, every_s)
    arguments = ["--placement", placement, "--balance", balance, "--balance-every", str(every_s)]
    for threshold in thresholds or []:
        arguments += ["--balance-set", threshold]
    return arguments
